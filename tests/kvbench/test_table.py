import io
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from kvbench.area_table import area_rows, show_areas
from kvbench.comparison import compare, show_comparisons
from kvbench.comparison_with_all import compare_with_all, show_standings
from kvbench.errors import UsageError
from kvbench.records import FULL, REPEAT, Record
from kvbench.statistics import summarise
from kvbench.store import Results, ResultsFolder, load
from kvbench.table import Table, make_tables, show, to_csv, to_json
from simulated import PRESSES, make_protocol, make_record, simulate


def tables_of(*records: Record) -> list[Table]:
    protocol = make_protocol()
    frame = pd.DataFrame([record.model_dump() for record in records]).assign(protocol=protocol.hash)
    return make_tables(Results(frame, {protocol.hash: protocol}))


def printed(tables: list[Table], width: int = 80, style: str = "rich") -> str:
    console = Console(file=io.StringIO(), width=width)
    show(tables, style, console)
    return console.file.getvalue()


def flat(text: str) -> str:
    return " ".join(text.split())


def row(text: str, press: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(f"{press} "))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Eleven presses at six budgets."""
    folder = tmp_path_factory.mktemp("results")
    simulate(folder)
    return load(folder)


def test_eleven_presses_at_six_budgets_fit_80_columns(results: Results) -> None:
    text = printed(make_tables(results))
    assert max(map(cell_len, text.splitlines())) <= 80
    assert row(text, "press") == ["press", "64", "128", "256", "512", "1024", "2048", "AUC"]
    assert len([line for line in text.splitlines() if line.split()[:1] == ["kvp"]]) == 1


def test_the_caption_tells_what_was_measured_and_how(results: Results) -> None:
    text = flat(printed(make_tables(results)))
    for part in (
        "smollm2-135m · ruler-4k · recall",
        "question inside",
        "first 4 and last 16 tokens protected",
        "compressed after prefill",
        "float32",
        "sdpa on cpu",
        "seed 42",
        "n = 24 answers",
    ):
        assert part in text


def test_a_perplexity_is_shown_with_the_ends_of_its_interval() -> None:
    protocol = make_protocol(metric="perplexity", lower_is_better=True, shown_as="exp")
    records = [make_record(FULL, budget, f"vt/{n}", 2 + n / 4) for n in range(5) for budget in (FULL, REPEAT)]
    records += [make_record("kvp", "64", f"vt/{n}", 3 + n / 4 + n % 2 / 10) for n in range(5)]
    frame = pd.DataFrame([record.model_dump() for record in records]).assign(protocol=protocol.hash)
    tables = make_tables(Results(frame, {protocol.hash: protocol}))
    text = flat(printed(tables))
    score = tables[0].summary.curves[0].cells["64"].score
    assert f"kvp {score.mean:.1f} [{score.low:.1f}, {score.high:.1f}]" in text
    assert score.high - score.low < 5  # of the scores themselves it is 35
    assert "[95 % interval of the difference from the full cache]; n = 5 answers" in text
    assert "the full cache answered again scores 12.2 [7.5, 19.9], no answer scored otherwise" in text


def test_a_score_is_shown_with_half_its_interval(results: Results) -> None:
    (table,) = make_tables(results)
    score = next(curve for curve in table.summary.curves if curve.press == "kvp").cells["256"].score
    shown = row(printed([table]), "kvp")[3]
    mean, half = shown.split("±")
    assert float(mean) == pytest.approx(score.mean, abs=0.005)
    assert float(half) == pytest.approx((score.high - score.low) / 2, abs=0.005)


def test_the_full_cache_comes_first_then_the_best_press(results: Results) -> None:
    lines = printed(make_tables(results)).splitlines()
    presses = [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in {FULL, *PRESSES}]
    curves = summarise(results.frame).curves
    assert presses == [FULL, *(curve.press for curve in curves)]
    areas = [curve.auc for curve in curves]
    assert areas == sorted(areas, reverse=True)


def test_unknown_and_absent_numbers_are_not_zeros() -> None:
    text = printed(
        tables_of(
            make_record(FULL, FULL),
            make_record("kvp", "64", score=None),
            make_record("kvp", "128", score=0.5),
            make_record("tova", "64", score=0.0),
        )
    )
    assert row(text, "press") == ["press", "64", "128", "AUC", "n", "failed"]
    assert row(text, "kvp") == ["kvp", "n/a", "0.50", "n/a", "0-1", "1"]
    assert row(text, "tova") == ["tova", "0.00±.40", "-", "n/a", "1", "0"]
    assert "failed: answers without a score" in text


def test_answers_from_a_whole_context_are_counted() -> None:
    records = [
        make_record("kvp", budget, f"vt/{tokens}", context_tokens=tokens, score=0.5)
        for budget in ("64", "256")
        for tokens in (100, 200, 1000)
    ]
    text = printed(tables_of(*records))
    assert row(text, "press")[-1] == "whole"
    assert row(text, "kvp")[-1] == "2"


@settings(max_examples=60, deadline=None)
@given(
    presses=st.lists(st.text("abc_:=,[]1", min_size=1, max_size=30), min_size=1, max_size=5, unique=True),
    budgets=st.lists(st.integers(1, 99_999), min_size=1, max_size=12, unique=True),
    width=st.integers(60, 140),
)
def test_no_line_is_wider_than_the_terminal_and_no_score_is_lost(
    presses: list[str], budgets: list[int], width: int
) -> None:
    records = [make_record(press, str(budget), score=0.5) for press in presses for budget in budgets]
    text = printed(tables_of(*records), width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert text.count("0.50") == len(records)
    heads = [word for line in text.splitlines() if line.startswith("press ") for word in line.split()]
    assert [word for word in heads if word.isdecimal()] == [str(budget) for budget in sorted(budgets)]


def test_each_subtask_has_its_own_table(results: Results) -> None:
    tables = make_tables(results, subtasks=True)
    assert [table.subtask for table in tables] == [None, "niah_single_1", "qa_1", "vt"]
    headline = tables[0].summary.curves[0]
    means = [
        next(c for c in table.summary.curves if c.press == headline.press).cells["64"].score.mean
        for table in tables[1:]
    ]
    assert headline.cells["64"].score.mean == pytest.approx(sum(means) / 3)
    assert "ruler-4k:qa_1" in printed(tables)


def test_protocols_are_never_in_one_table(tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        simulate(tmp_path, make_protocol(dtype=dtype), {"kvp": 5.0}, ["64", "128"], samples=2)
    tables = make_tables(load(tmp_path))
    assert {table.protocol.dtype for table in tables} == {"float32", "bfloat16"}
    assert all(table.summary.curves[0].cells["64"].n == 6 for table in tables)


def test_csv_holds_every_number_unrounded(results: Results) -> None:
    tables = make_tables(results, subtasks=True)
    frame = pd.read_csv(io.StringIO(to_csv(tables)))
    assert len(frame) == 4 * (1 + 6 * len(PRESSES))
    cell = next(curve for curve in tables[0].summary.curves if curve.press == "tova").cells["512"]
    line = frame[(frame.press == "tova") & (frame.budget == "512") & frame.subtask.isna()].iloc[0]
    assert (line["mean"], line.low, line.high) == (cell.score.mean, cell.score.low, cell.score.high)
    assert (line.n, line.failed, line.whole, line.budget_tokens) == (cell.n, 0, 0, 512)


def test_json_holds_the_protocol_and_null_for_what_is_unknown() -> None:
    (content,) = json.loads(to_json(tables_of(make_record("kvp", "64", score=None))))
    assert content["protocol"] == make_protocol().model_dump(mode="json")
    (curve,) = content["curves"]
    assert curve["auc"] is None
    assert curve["cells"]["64"]["score"] == {"mean": None, "low": None, "high": None}
    assert content["full"] is None


def test_markdown_is_a_table_under_a_heading(results: Results) -> None:
    lines = printed(make_tables(results), style="md").splitlines()
    assert lines[0] == "### smollm2-135m · ruler-4k · recall"
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 1 + len(PRESSES)
    assert {line.count("|") for line in table} == {1 + 1 + 6 + 1}


@pytest.mark.parametrize("style", ["md", "csv", "json", "latex"])
def test_text_for_machines_is_never_wrapped(results: Results, style: str) -> None:
    tables = make_tables(results)
    assert printed(tables, 20, style) == printed(tables, 10_000, style)
    assert style not in ("csv", "json") or printed(tables, 20, style) == {"csv": to_csv, "json": to_json}[style](tables)


def test_an_unknown_format_is_refused(results: Results) -> None:
    with pytest.raises(UsageError, match="unknown table format 'jsn': did you mean 'json'"):
        show(make_tables(results), "jsn", Console())


def test_results_of_the_full_cache_alone_have_a_table(tmp_path: Path) -> None:
    with ResultsFolder(tmp_path).writer() as writer:
        writer.append(make_protocol(), [make_record(FULL, FULL, score=0.5)])
    text = printed(make_tables(load(tmp_path)))
    assert row(text, "press") == ["press", "full"]
    assert row(text, "full") == ["full", "0.50"]


def is_oracle(press: str) -> bool:
    return press == "oracle"


def areas_printed(tables: list[Table], style: str = "rich", width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_areas(tables, style, console)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """All presses on one task; on another, with other budgets, kvp, tova and one that only it has."""
    folder = tmp_path_factory.mktemp("two tasks")
    simulate(folder)
    simulate(folder, make_protocol(task="ruler-8k"), {"kvp": 5.0, "tova": 7.0, "extra": 9.0}, ("128", "512", "2048"))
    return load(folder)


def test_an_area_is_shown_with_its_interval_and_its_tie(results: Results) -> None:
    (table,) = make_tables(results, is_bound=is_oracle)
    text = printed([table])
    marks = {}
    for curve in table.summary.curves:
        area, half = row(text, curve.press)[-1].split("±")
        assert float(area) == pytest.approx(curve.auc, abs=0.005)
        assert float(half.rstrip("*=")) == pytest.approx((curve.auc_high - curve.auc_low) / 2, abs=0.0051)
        marks[curve.press] = half[3:]
    leader = table.summary.leader
    assert leader == next(curve.press for curve in table.summary.curves if curve.press != "oracle")
    expected = {curve.press: "=" if curve.tied else "" for curve in table.summary.curves}
    assert marks == expected | {leader: "*"}
    assert "not compared, a bound: oracle" in text


def test_a_subtask_of_one_document_is_named_wherever_its_intervals_are_shown(tmp_path: Path) -> None:
    simulate(tmp_path, presses={"kvp": 5.0, "tova": 7.0})
    loaded = load(tmp_path)
    source = loaded.frame["source"].astype(str).mask(loaded.frame["subtask"] == "qa_1", "Normans")
    results = Results(loaded.frame.assign(source=source), loaded.protocols)
    tables = make_tables(results, subtasks=True)
    note = "qa_1: all answers are about one document, and intervals are for others about it"
    assert {table.subtask: note in flat(printed([table])) for table in tables} == {
        None: True,
        "niah_single_1": False,
        "vt": False,
        "qa_1": True,
    }
    assert f"ruler-4k:{note}" in flat(areas_printed(tables[:1]))
    console = Console(file=io.StringIO(), width=80)
    show_comparisons(compare(results, "kvp", "tova"), "rich", console)
    assert note in flat(console.file.getvalue())
    console = Console(file=io.StringIO(), width=80)
    show_standings(compare_with_all(results, "kvp"), "md", console)
    assert note in flat(console.file.getvalue())


def test_a_press_that_too_few_samples_compare_is_marked_as_neither(tmp_path: Path) -> None:
    simulate(tmp_path, presses={"kvp": 5.0, "tova": 7.0}, samples=1)
    text = printed(make_tables(load(tmp_path)))
    assert row(text, "kvp")[-1].endswith("*")
    assert row(text, "tova")[-1].endswith("?")
    assert "? too few samples to compare it" in flat(text)


def test_all_protocols_are_columns_of_one_table_of_areas(two_tasks: Results) -> None:
    tables = make_tables(two_tasks)
    text = areas_printed(tables)
    assert max(map(cell_len, text.splitlines())) <= 80
    assert row(text, "press") == ["press", "ruler-4k", "at", "95%", "ruler-8k", "at", "95%"]
    assert row(text, "extra")[1:3] == ["-", "-"]
    assert row(text, "snapkv")[-2:] == ["-", "-"]
    curves = [next(curve for curve in table.summary.curves if curve.press == "kvp") for table in tables]
    shown = " ".join(row(text, "kvp"))
    assert re.findall(r"([\d.]+)±", shown) == [f"{curve.auc:.2f}" for curve in curves]
    assert re.findall(r"±\S+ (> \d+|≤ \d+|\d+)", shown) == [str(curve.enough) for curve in curves]
    assert "ruler-4k, ruler-8k: smollm2-135m · recall; question inside" in " ".join(text.split())


def test_named_tasks_are_shown_in_their_order(two_tasks: Results) -> None:
    def shown(*tasks: str) -> list[str]:
        return [table.protocol.task for table in make_tables(two_tasks.of_tasks(tasks))]

    assert shown() == shown("ruler-4k", "ruler-8k")
    assert shown("ruler-8k", "ruler-4k") == ["ruler-8k", "ruler-4k"]
    assert shown("ruler-8k") == ["ruler-8k"]
    assert set(two_tasks.of_tasks(["ruler-8k"]).frame["press"]) == {FULL, "kvp", "tova", "extra"}
    with pytest.raises(UsageError, match=r"unknown task with results 'ruler8k': did you mean 'ruler-8k'\?"):
        shown("ruler8k")


def test_protocols_of_one_task_are_told_apart_in_the_table_of_areas(tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        simulate(tmp_path, make_protocol(dtype=dtype), {"kvp": 5.0}, ["64", "128"], samples=3)
    text = flat(areas_printed(make_tables(load(tmp_path), subtasks=True), width=200))
    for number, table in enumerate(make_tables(load(tmp_path)), 1):
        assert f"ruler-4k #{number}, ruler-4k:niah_single_1 #{number}" in text
        assert f"{table.protocol.dtype}, sdpa" in text.partition(f"ruler-4k #{number}, ")[2].partition("#")[2]


def test_a_press_without_a_score_has_no_area_in_any_table() -> None:
    records = [make_record(press, budget, score=0.5) for press in ("kvp", "tova") for budget in ("64", "128")]
    tables = tables_of(make_record(FULL, FULL), *records, make_record("late", "128"))
    for press, shown in (("kvp", "0.50"), ("late", "n/a")):
        assert row(areas_printed(tables), press)[1].rstrip("*=") == shown
    late = next(found for found in area_rows(tables) if found["press"] == "late")
    assert (late["auc"], late["auc_low"], late["ahead_p"], late["enough_tokens"]) == (None, None, None, None)


def test_areas_for_machines_are_not_rounded(two_tasks: Results) -> None:
    tables = make_tables(two_tasks)
    frame = pd.read_csv(io.StringIO(areas_printed(tables, "csv")))
    content = json.loads(areas_printed(tables, "json"))
    assert len(frame) == len(content) == len(PRESSES) + 3
    for table in tables:
        for curve in table.summary.curves:
            mine = (frame.protocol == table.protocol.hash) & (frame.press == curve.press)
            line = frame[mine].iloc[0]
            assert (line.auc, line.auc_low, line.auc_high) == (curve.auc, curve.auc_low, curve.auc_high)
            assert (line.leader, line.tied) == (table.summary.leader, curve.tied)
            assert curve.ahead is None or line.ahead_adjusted_p == curve.ahead.adjusted_p
            assert (line.enough_tokens, line.enough_relation) == (curve.enough.tokens, curve.enough.relation)


def test_latex_is_a_booktabs_table_with_everything_escaped(two_tasks: Results) -> None:
    tables = make_tables(two_tasks)
    for text in (printed(tables, style="latex"), areas_printed(tables, "latex")):
        assert text.count(r"\begin{table}") == text.count(r"\end{table}") == text.count(r"\toprule") > 0
        for body in text.split(r"\begin{tabular}{")[1:]:
            columns = len(body.partition("}")[0])
            lines = [line for line in body.partition(r"\end{tabular}")[0].splitlines() if line.endswith(r"\\")]
            assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {columns - 1}
        assert r"streaming\_llm" in text
        assert not re.search(r"(?<!\\)[_%#]|[±≤>·]", text.replace("$>$", ""))


def test_an_unknown_format_of_areas_is_refused(two_tasks: Results) -> None:
    with pytest.raises(UsageError, match="unknown table format 'tex': did you mean 'latex'"):
        show_areas(make_tables(two_tasks), "tex", Console())
