import json
import os
import re
import shlex
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvbench.cli import app
from kvbench.commands.plot import reads_attention
from kvbench.commands.table import is_bound
from kvbench.errors import UsageError
from kvbench.leaderboard.content import make_content
from kvbench.leaderboard.page import embedded, make_page
from kvbench.leaderboard.server import serve
from kvbench.plot_style import looks_of
from kvbench.records import FULL
from kvbench.store import ResultsFolder, load
from kvbench.table import make_tables
from simulated import PRESSES, compress, make_environment, make_protocol, make_record, simulate

RULER = ("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3")
RULER += ("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2")
HOSTILE = (
    """</script><script>alert("x")</script><!-- <img src=x onerror='alert(1)'> {{data}} {{policy}} $& & \u2028 '"`"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two protocols, of which one lacks a subtask of its task."""
    folder = tmp_path_factory.mktemp("results")
    simulate(folder)
    subtasks = ("niah_single_1", "vt", "qa_1", "cwe")
    simulate(folder, make_protocol(schedule="chunked", chunk=512, subtasks=subtasks), seed=1)
    return folder


class Elements(HTMLParser):
    """The start tags of a page, and the text of its data element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == ("script", {"type": "application/json", "id": "data"}):
            self.text += data


def page_of(folder: Path) -> str:
    return make_page(make_content(load(folder), folder, reads_attention, is_bound))


def data_of(page: str) -> Any:
    return json.loads(Elements(page).text)


def test_the_page_holds_every_number_of_the_tables(folder: Path) -> None:
    content = data_of(page_of(folder))
    expected = {
        (table.protocol.hash, table.subtask, curve.press, label): cell
        for table in make_tables(load(folder), subtasks=True)
        for curve in table.summary.curves
        for label, cell in curve.cells.items()
    }
    found = {
        (protocol["hash"], table["subtask"], row["press"], label): cell
        for protocol in content["protocols"]
        for table in protocol["tables"]
        for row in table["rows"]
        if row["press"] != FULL
        for label, cell in row["cells"].items()
    }
    assert found.keys() == expected.keys()
    assert len(found) == 2 * 4 * len(PRESSES) * 6
    for where, cell in found.items():
        score = expected[where].score
        assert cell[:3] == [pytest.approx(value, rel=1e-6) for value in (score.mean, score.low, score.high)]
        assert cell[3:6] == [expected[where].n, expected[where].failed, expected[where].whole]


def test_protocols_stay_apart_and_what_one_lacks_is_said(folder: Path) -> None:
    protocols = data_of(page_of(folder))["protocols"]
    assert [protocol["fields"]["schedule"] for protocol in protocols] == ["after-prefill", "chunked"]
    assert "ruler-4k (3 of 4 subtasks)" in protocols[1]["title"]
    assert protocols[1]["notes"] == ["without cwe"]
    assert (protocols[0]["title"], protocols[0]["notes"]) == ("smollm2-135m · ruler-4k · recall", [])


def test_a_press_looks_as_in_the_figures(folder: Path) -> None:
    looks = data_of(page_of(folder))["looks"]
    assert looks == {press: vars(look) for press, look in looks_of(PRESSES, reads_attention).items()}
    assert looks["snapkv"]["dashed"]
    assert not looks["keydiff"]["dashed"]


def test_every_cell_says_what_made_it(folder: Path) -> None:
    content = data_of(page_of(folder))
    _, chunked = content["protocols"]
    made = chunked["presses"]["kvp"]["made"]["256"]
    assert made == {"environments": [make_environment().hash], "kept": [256, 256], "bytes": 256 * 46080}
    assert content["environments"] == {make_environment().hash: make_environment().model_dump()}
    assert chunked["data"] == {name: ["words:0123"] for name in ("niah_single_1", "qa_1", "vt")}
    command = shlex.split(chunked["command"]["rest"])
    assert command[:6] == ["--question", "inside", "--schedule", "chunked", "--chunk", "512"]
    tasks = {table["subtask"]: table["task"] for table in chunked["tables"]}
    assert tasks == {
        None: "ruler-4k:niah_single_1+vt+qa_1",
        **{name: f"ruler-4k:{name}" for name in ("niah_single_1", "qa_1", "vt")},
    }
    assert all(row["cells"]["64"][6] == 8 for row in chunked["tables"][0]["rows"] if row["press"] != FULL)


def test_a_protocol_names_the_file_that_its_records_are_in(tmp_path: Path) -> None:
    chunked = make_protocol(schedule="chunked", chunk=512)
    for protocol in (make_protocol(), chunked):
        simulate(tmp_path, protocol, samples=1)
    compress(ResultsFolder(tmp_path).records_file(chunked))
    files = [protocol["file"] for protocol in data_of(page_of(tmp_path))["protocols"]]
    assert all((tmp_path / file).is_file() for file in files)
    assert [Path(file).suffix for file in files] == [".jsonl", ".gz"]


def test_an_environment_that_is_not_there_is_none(tmp_path: Path) -> None:
    simulate(tmp_path, samples=1)
    (file,) = (tmp_path / "environments").iterdir()
    file.unlink()
    assert data_of(page_of(tmp_path))["environments"] == {file.stem: None}


def test_two_presses_under_one_label_stay_apart(tmp_path: Path) -> None:
    records = [make_record(FULL, FULL)]
    for identity in ("a" * 16, "b" * 16):
        records.append(make_record("kvp", key=identity, press_identity=identity))
    with ResultsFolder(tmp_path).writer() as writer:
        writer.append(make_protocol(), records)
    (protocol,) = data_of(page_of(tmp_path))["protocols"]
    presses = protocol["presses"]
    assert {name: press["identities"] for name, press in presses.items() if name != FULL} == {
        "kvp#aaaaaa": ["a" * 16],
        "kvp#bbbbbb": ["b" * 16],
    }
    assert {press["quoted"] for name, press in presses.items() if name != FULL} == {"kvp"}


def test_hostile_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    protocol = make_protocol(model=HOSTILE, task=HOSTILE, metric=HOSTILE, subtasks=(HOSTILE,))
    records = [
        make_record(press, budget, HOSTILE, 0.5, subtask=HOSTILE)
        for press, budget in ((HOSTILE, "64"), (HOSTILE, "128"), (FULL, FULL))
    ]
    with ResultsFolder(tmp_path).writer() as writer:
        writer.append(protocol, records)
    page = page_of(tmp_path)
    harmless = page_of_presses(tmp_path / "harmless")
    assert Elements(page).tags == Elements(harmless).tags
    (found,) = data_of(page)["protocols"]
    assert found["fields"]["model"] == HOSTILE
    assert shlex.split(found["presses"][HOSTILE]["quoted"]) == [HOSTILE]
    assert shlex.split(found["command"]["model"]) == [HOSTILE]


def page_of_presses(folder: Path) -> str:
    simulate(folder, presses={"kvp": 5.0}, samples=1)
    return page_of(folder)


@given(st.recursive(st.text() | st.none() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_embedded_data_reads_back_and_holds_no_markup(value: object) -> None:
    text = embedded(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]", text)


def test_the_page_names_no_address_and_may_load_nothing(folder: Path) -> None:
    page = page_of(folder)
    tags = Elements(page).tags
    policy = next(attributes["content"] for _, attributes in tags if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not {"src", "srcset", "action"} & {name for _, attributes in tags for name in attributes}
    assert {attributes["href"] for _, attributes in tags if "href" in attributes} == {"data:,", "#boards"}
    assert not re.search(r"\b(fetch|XMLHttpRequest|import|innerHTML|eval|url)\b\s*\(", page)


def test_all_of_ruler_with_every_press_at_four_lengths_is_below_a_megabyte(tmp_path: Path) -> None:
    for task in ("ruler-4k", "ruler-8k", "ruler-16k", "ruler-32k"):
        simulate(tmp_path, make_protocol(task=task, subtasks=RULER), subtasks=RULER, samples=3)
    assert len(page_of(tmp_path).encode()) < 1_000_000


def test_the_same_results_give_the_same_page(folder: Path) -> None:
    assert page_of(folder) == page_of(folder)


def test_the_command_writes_one_file_and_says_so(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["leaderboard", str(folder), "--out", str(tmp_path / "site")])
    assert done.exit_code == 0
    assert done.stdout.replace("\n", "").startswith(f"{tmp_path}/site/index.html (")
    assert [file.name for file in (tmp_path / "site").iterdir()] == ["index.html"]
    assert (tmp_path / "site" / "index.html").read_text() == page_of(folder)


def test_a_served_page_answers_on_this_machine_until_it_is_stopped(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvbench", "leaderboard", str(folder), "--out", str(tmp_path), "--serve"]
    environment = os.environ | {"BROWSER": "true", "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=_let_interrupts_through
    )
    try:
        assert child.stdout is not None
        lines = iter(child.stdout.readline, "")
        address = next(found[0] for line in lines if (found := re.search(r"http://127\.0\.0\.1:\d+/", line)))
        with urlopen(address) as response:
            assert response.read().decode() == page_of(folder)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 0
    finally:
        child.kill()
        child.communicate()


def _let_interrupts_through() -> None:
    """Undo what a child inherits of a suite that runs in the background: there the shell has interrupts ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    def again(address: str) -> None:
        with pytest.raises(UsageError, match="cannot be used: address already in use"):
            serve(tmp_path, int(address.rstrip("/").rpartition(":")[2]), print)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(tmp_path, 0, again)
