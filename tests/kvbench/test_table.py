import io
import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from kvbench.errors import UsageError
from kvbench.records import FULL, Record
from kvbench.statistics import summarise
from kvbench.store import Results, ResultsFolder, load
from kvbench.table import Table, make_tables, show, to_csv, to_json, to_markdown
from simulated import PRESSES, make_protocol, make_record, simulate


def tables_of(*records: Record) -> list[Table]:
    protocol = make_protocol()
    frame = pd.DataFrame([record.model_dump() for record in records]).assign(protocol=protocol.hash)
    return make_tables(Results(frame, {protocol.hash: protocol}))


def printed(tables: list[Table], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(tables, "rich", console)
    return console.file.getvalue()


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
    text = " ".join(printed(make_tables(results)).split())
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
    lines = to_markdown(make_tables(results)).splitlines()
    assert lines[0] == "### smollm2-135m · ruler-4k · recall"
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 1 + len(PRESSES)
    assert {line.count("|") for line in table} == {1 + 1 + 6 + 1}


@pytest.mark.parametrize("style", ["md", "csv", "json"])
def test_text_for_machines_is_never_wrapped(results: Results, style: str) -> None:
    tables = make_tables(results)
    narrow = Console(file=io.StringIO(), width=20)
    show(tables, style, narrow)
    assert narrow.file.getvalue() == {"md": to_markdown, "csv": to_csv, "json": to_json}[style](tables)


def test_an_unknown_format_is_refused(results: Results) -> None:
    with pytest.raises(UsageError, match="unknown table format 'jsn': did you mean 'json'"):
        show(make_tables(results), "jsn", Console())


def test_results_of_the_full_cache_alone_have_a_table(tmp_path: Path) -> None:
    with ResultsFolder(tmp_path).writer() as writer:
        writer.append(make_protocol(), [make_record(FULL, FULL, score=0.5)])
    text = printed(make_tables(load(tmp_path)))
    assert row(text, "press") == ["press", "full"]
    assert row(text, "full") == ["full", "0.50"]
