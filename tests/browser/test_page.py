"""The leaderboard page as a reader meets it, in headless Chromium."""

import csv
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from typer.testing import CliRunner

from kvbench.cli import app
from kvbench.commands.plot import reads_attention
from kvbench.commands.table import is_bound
from kvbench.leaderboard.content import make_content
from kvbench.leaderboard.page import make_page, write_page
from kvbench.records import FULL
from kvbench.store import ResultsFolder, load
from simulated import PRESSES, make_environment, make_protocol, make_record
from tiny_models import CONFIGS, tiny_network, tiny_tokenizer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Download, Locator, Page

pytestmark = pytest.mark.browser

LABEL = "snapkv:window=32,kernel=7"
HOSTILE = """</script><img src=x onerror=document.title='broken'>{{data}}"'"""
SCHEMES = ("light", "dark")


@contextmanager
def opened(browser: "Browser", address: str, width: int = 1280, scheme: str = "light") -> "Iterator[Page]":
    """Open the page; it must neither complain nor ask anybody for anything."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True)
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.set_default_timeout(10_000)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    yield page
    context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith(("data:", "blob:"))} == {address.partition("#")[0]}


@pytest.fixture
def page(browser: "Browser", address: str) -> "Iterator[Page]":
    with opened(browser, address) as page:
        yield page


def board(page: "Page", number: int = 0) -> "Locator":
    return page.locator(".board").nth(number)


def texts(board: "Locator", column: int) -> list[str]:
    """Return a column of a table, the full cache's row left out."""
    return board.locator(f"tbody tr:not(.full) > :nth-child({column + 1})").all_inner_texts()


def numbers(board: "Locator", column: int) -> list[float]:
    return [float(text.partition("±")[0]) for text in texts(board, column)]


def press_names(board: "Locator") -> list[str]:
    return [str(row.get_attribute("data-press")) for row in board.locator("tbody tr:not(.full)").all()]


def saved(page: "Page", act: Callable[[], object]) -> str:
    with page.expect_download() as download:
        act()
    found: Download = download.value
    return Path(found.path()).read_text()


def colour(page: "Page", of: str = "body", what: str = "background-color") -> str:
    read = "(element, what) => getComputedStyle(element).getPropertyValue(what)"
    return str(page.locator(of).first.evaluate(read, what))


def test_each_protocol_has_a_table_of_its_own(page: "Page") -> None:
    assert page.locator(".board").count() == 3
    assert page.locator("#contents li").all_inner_texts() == [
        "smollm2-135m · ruler-4k · recall question after, compressed after prefill",
        "smollm2-135m · ruler-4k · recall question inside, compressed after prefill",
        "smollm2-135m · ruler-8k · recall question inside, prefilled in chunks of 512",
    ]
    for place, presses in ((0, len(PRESSES) + 1), (1, len(PRESSES) + 1), (2, 2)):
        assert len(press_names(board(page, place))) == presses


def test_a_column_sorts_both_ways_and_says_so(page: "Page") -> None:
    table = board(page)
    areas = numbers(table, 1)
    assert areas == sorted(areas, reverse=True)
    head = table.locator("thead th").nth(3)
    for direction, down in (("descending", True), ("ascending", False)):
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == direction
        assert table.locator("[aria-sort]").count() == 1
        scores = numbers(table, 3)
        assert scores == sorted(scores, reverse=down)
        assert page.locator("#live").inner_text() == f"sorted by 64, {direction}"
        assert table.locator("tbody tr").first.inner_text().startswith("full cache")
    table.locator("thead button").first.click()
    assert press_names(table) == sorted(press_names(table), key=str.casefold)


def test_the_area_tells_the_leader_from_those_that_tie_and_from_bounds(page: "Page") -> None:
    data = json.loads(page.locator("#data").inner_text())
    (protocol,) = (one for one in data["protocols"] if one["fields"]["question"] == "after")
    table, whole = board(page), protocol["tables"][0]
    ties = [row["press"] for row in whole["rows"] if row["tied"]]
    marks = dict(zip(press_names(table), (text.split("\n")[0][-1] for text in texts(table, 1)), strict=True))
    assert [press for press, mark in marks.items() if mark == "*"] == [whole["leader"]] == ["kvp"]
    assert [press for press, mark in marks.items() if mark == "="] == ties
    assert "bound" in table.locator("tr[data-press=oracle] th").inner_text()
    enough = {row["press"]: row["enough"] for row in whole["rows"] if row["press"] != FULL}
    shown = dict(zip(press_names(table), texts(table, 2), strict=True))
    for press, (tokens, relation) in enough.items():
        assert shown[press] == f"{'' if relation == '=' else relation + ' '}{tokens:.0f}"


def test_keys_alone_sort_choose_and_open(page: "Page") -> None:
    table = board(page)
    button = table.locator("thead button").nth(3)
    button.focus()
    page.keyboard.press("Enter")
    assert table.locator("thead th").nth(3).get_attribute("aria-sort") == "descending"
    assert button.evaluate("button => button === document.activeElement")
    table.locator("input[type=checkbox]").first.focus()
    curves = table.locator(".chart .curve").count()
    page.keyboard.press("Space")
    assert table.locator(".chart .curve").count() == curves - 1
    link = table.locator("td a").nth(9)
    link.focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.get_by_role("dialog").is_visible()
    assert "#" not in page.url
    assert link.evaluate("link => link === document.activeElement")


def test_filters_narrow_tables_and_curves(page: "Page") -> None:
    page.get_by_label("Press", exact=True).fill("snap kvp")
    assert sorted(press_names(board(page))) == ["kvp", "snapkv", LABEL]
    assert board(page).locator(".chart").first.locator(".curve").count() == 3
    assert page.locator("#live").inner_text() == "3 of 12 presses, 3 of 3 tables"
    page.get_by_role("combobox", name="Question").select_option("after")
    assert page.locator(".board:visible").count() == 1
    assert page.locator("#contents li:visible").count() == 1
    page.get_by_role("combobox", name="Task").select_option("ruler-8k")
    assert page.get_by_text("No table matches the filters.").is_visible()


def test_curves_are_chosen_one_by_one_or_all(page: "Page") -> None:
    curves = board(page).locator(".chart").first.locator(".curve")
    page.get_by_role("button", name="None", exact=True).click()
    assert curves.count() == 0
    board(page).locator("tr[data-press=tova] input").check()
    assert [curve.get_attribute("data-press") for curve in curves.all()] == ["tova"]
    page.get_by_role("button", name="All curves").click()
    assert curves.count() == len(PRESSES) + 1


def test_hovering_names_the_nearest_point_and_its_row(page: "Page") -> None:
    table = board(page)
    page.get_by_label("Press", exact=True).fill("kvp")
    table.locator("tr[data-press=kvp]").wait_for()
    page.get_by_label("Press", exact=True).fill("keydiff")
    marker = table.locator(".curve .marker").nth(2)
    marker.hover()
    tip = table.locator(".tip").first
    assert tip.is_visible()
    score = texts(table, 5)[0].partition("±")[0]
    assert re.match(rf"keydiff\n256 tokens: {score}\d*\n95 % interval \d\.\d+ to \d\.\d+\n24 answers", tip.inner_text())
    assert table.locator("tr.lit").get_attribute("data-press") == "keydiff"
    page.mouse.move(2, 2)
    assert not tip.is_visible()
    assert table.locator("tr.lit").count() == 0
    table.locator("tr[data-press=keydiff] th").hover()
    assert table.locator(".curve.lit").get_attribute("data-press") == "keydiff"


def test_a_press_has_its_colour_its_marker_and_dashes_if_it_reads_attention(page: "Page") -> None:
    data = json.loads(page.locator("#data").inner_text())
    for curve in board(page).locator(".chart").first.locator(".curve").all():
        press = curve.get_attribute("data-press") or ""
        look = data["looks"][press]
        assert curve.evaluate("curve => curve.style.getPropertyValue('--colour')") == look["colour"]
        assert curve.locator(".dashed").count() == int(look["dashed"] and reads_attention(press))


def test_subtasks_are_shown_one_by_one_and_side_by_side(page: "Page") -> None:
    table = board(page)
    mean = numbers(table, 3)
    table.get_by_role("combobox", name="Score").select_option("vt")
    assert numbers(table, 3) != mean
    assert "vt" in table.locator("caption").inner_text()
    table.get_by_role("button", name="By subtask").click()
    heads = table.locator("thead th").all_inner_texts()
    assert [head.split()[0] for head in heads] == ["press", "mean", "niah_single_1", "qa_1", "vt"]
    assert table.locator(".many .chart:visible").count() == 3
    table.get_by_role("combobox", name="Cache size").select_option("64")
    for whole, *parts in zip(*(numbers(table, column) for column in (1, 2, 3, 4)), strict=True):
        assert whole == pytest.approx(sum(parts) / 3, abs=0.011)


def test_a_score_leads_to_what_produced_it(page: "Page", browser: "Browser") -> None:
    table = board(page, 2)
    table.locator("tr[data-press=tova] td a").nth(2).click()
    dialog = page.get_by_role("dialog")
    text = dialog.inner_text()
    for part in (
        "tova at 256 tokens per KV head",
        "Protocol",
        "prefilled",
        "torch",
        "2.8",
        "11.8 MB",
        "records/",
        "words:0123",
    ):
        assert part in text.replace("chunked", "prefilled")
    command = shlex.split(dialog.locator("code").inner_text())
    assert command[:8] == ["kvbench", "run", "--model", "smollm2-135m", "--press", "tova", "--task", "ruler-8k"]
    assert command[8:12] == ["--budgets", "256", "--limit", "8"]
    assert command[command.index("--chunk") + 1] == "512"
    with opened(browser, page.url) as shared:
        assert shared.get_by_role("dialog").inner_text() == text
    dialog.get_by_role("button", name="Copy the command").click()
    page.wait_for_function("document.getElementById('live').textContent.match(/copied|selected/)")


def test_downloads_hold_what_the_page_shows(page: "Page") -> None:
    everything = list(
        csv.DictReader(io.StringIO(saved(page, page.get_by_role("button", name="CSV", exact=True).click)))
    )
    assert len({row["protocol"] for row in everything}) == 3
    table = board(page)
    one = saved(page, table.get_by_role("button", name="CSV of this table").click)
    rows = list(csv.DictReader(io.StringIO(one)))
    kept = {row["press"]: float(row["mean"]) for row in rows if row["budget"] == "256" and not row["subtask"]}
    shown = dict(zip(press_names(table), numbers(table, 5), strict=True))
    assert shown == {press: pytest.approx(mean, abs=0.00501) for press, mean in kept.items()}
    assert LABEL in kept
    content = json.loads(saved(page, page.get_by_role("button", name="JSON").click))
    assert content == json.loads(page.locator("#data").inner_text())


def test_dark_mode_follows_the_system_and_the_button(browser: "Browser", address: str) -> None:
    papers = {}
    for scheme in SCHEMES:
        with opened(browser, address, scheme=scheme) as page:
            button = page.get_by_role("button", name="Dark")
            assert button.get_attribute("aria-pressed") == str(scheme == "dark").lower()
            papers[scheme] = colour(page)
            button.click()
            papers[f"other than {scheme}"] = colour(page)
    assert papers["light"] == papers["other than dark"] != papers["dark"] == papers["other than light"]


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (1280, "dark")])
def test_axe_finds_no_fault(browser: "Browser", address: str, axe: str, width: int, scheme: str) -> None:
    with opened(browser, address, width, scheme) as page:
        faults = violations(page, axe)
        page.get_by_role("button", name="By subtask").first.click()
        faults += violations(page, axe)
        board(page).locator("td a").nth(7).click()
        faults += violations(page, axe)
    assert faults == []


def violations(page: "Page", axe: str) -> list[str]:
    """Return what axe-core finds, of whatever weight."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    result: dict[str, Any] = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [f"{fault['impact']}: {fault['id']}: {fault['nodes'][0]['html']}" for fault in result["violations"]]


def test_a_phone_shows_all_of_it(browser: "Browser", address: str) -> None:
    with opened(browser, address, width=320) as page:
        for view in ("By cache size", "By subtask"):
            page.get_by_role("button", name=view).first.click()
            assert page.evaluate("document.documentElement.scrollWidth") == 320
            scroll = board(page).locator(".scroll")
            assert scroll.evaluate("region => region.scrollWidth > region.clientWidth")
            name = board(page).locator("tbody th").nth(1)
            before = name.bounding_box()
            scroll.evaluate("region => region.scrollTo(999, 0)")
            assert name.bounding_box() == before
        board(page).locator("td a").last.click()
        box = page.get_by_role("dialog").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 320


def test_hostile_names_are_shown_as_they_are(browser: "Browser", tmp_path: Path) -> None:
    records = [
        make_record(press, budget, HOSTILE, score, subtask=subtask, question=question)
        for press, budget, score in ((HOSTILE, "64", 0.25), (HOSTILE, "128", 0.5), (FULL, FULL, 0.5))
        for question, subtask in enumerate((HOSTILE, "vt"))
    ]
    with ResultsFolder(tmp_path).writer() as writer:
        writer.add_environment(make_environment().model_copy(update={"processor": HOSTILE}))
        writer.append(make_protocol(model=HOSTILE, task=HOSTILE, metric=HOSTILE), records)
    address = write_page(
        make_page(make_content(load(tmp_path), tmp_path, reads_attention, is_bound)), tmp_path
    ).as_uri()
    with opened(browser, address) as page:
        assert press_names(board(page)) == [HOSTILE]
        board(page).locator(".curve .marker").first.hover()
        assert HOSTILE in board(page).locator(".tip").first.inner_text()
        board(page).locator("tr:not(.full) td a").first.click()
        assert HOSTILE in page.get_by_role("dialog").inner_text()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="By subtask").click()
        assert page.title() == "kvbench leaderboard"
        assert page.locator("img").count() == 0


def test_the_command_of_a_score_repeats_it(browser: "Browser", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS["llama"]
    config = type(config)(**config.to_dict() | {"max_position_embeddings": 4096})
    tiny_network(config, torch.float32).save_pretrained(tmp_path / "tiny llama")
    tiny_tokenizer().save_pretrained(tmp_path / "tiny llama")
    monkeypatch.chdir(tmp_path)
    presses = ("--press", "k_norm,snapkv:window=16,kernel=3", "--budgets", "32,25%", "--protect", "2,8")
    sweep = (
        "run",
        "--model",
        "tiny llama",
        "--task",
        "ruler-2k:fwe+niah_single_1",
        *presses,
        "--limit",
        "1",
        "--seed",
        "7",
    )
    for arguments in (sweep, ("leaderboard", "--out", "site")):
        assert CliRunner().invoke(app, arguments).exit_code == 0
    with opened(browser, (tmp_path / "site" / "index.html").as_uri()) as page:
        page.locator("tr[data-press^='snapkv'] td a").nth(1).click()
        program, *arguments = shlex.split(page.get_by_role("dialog").locator("code").inner_text())
    assert program == "kvbench"
    assert CliRunner().invoke(app, arguments).exit_code == 0
    again, before = (load(Path(folder)).frame.set_index("key") for folder in ("reproduced", "results"))
    assert set(again["press"]) == {FULL, "snapkv:window=16,kernel=3"}
    assert set(again["budget"]) == {FULL, "25%"}
    assert set(again["subtask"]) == {"fwe", "niah_single_1"}
    assert again["score"].equals(before.loc[again.index, "score"])
