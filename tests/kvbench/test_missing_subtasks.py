"""A score that is the mean of fewer subtasks than the task has says so wherever it is shown."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from rich.console import Console

from kvbench.area_plots import draw_areas
from kvbench.curve_plots import draw_curves
from kvbench.plot_style import Look, looks_of
from kvbench.store import Results, load
from kvbench.table import Table, make_tables, show
from simulated import make_protocol, simulate

TASK = ("niah_single_1", "vt", "cwe", "qa_1", "qa_2")


def results_of(folder: Path, *subtasks: str, declared: tuple[str, ...] = TASK) -> Results:
    simulate(folder, make_protocol(subtasks=declared), {"kvp": 5.0}, ("64", "256"), subtasks, samples=3)
    return load(folder)


def shown(results: Results, style: str, subtasks: bool = False, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(make_tables(results, subtasks), style, console)
    return console.file.getvalue()


def test_the_headline_counts_the_subtasks_and_a_note_names_the_missing(tmp_path: Path) -> None:
    results = results_of(tmp_path, "niah_single_1", "vt", "cwe")
    for style in ("rich", "md"):
        text = shown(results, style)
        assert "ruler-4k (3 of 5 subtasks) · recall" in text
        assert "missing: qa_1, qa_2" in text
    assert max(map(len, shown(results, "rich").splitlines())) <= 80


def test_nothing_is_said_where_nothing_is_missing_or_the_task_has_no_such_list(tmp_path: Path) -> None:
    for name, declared in (("whole", TASK), ("undeclared", ())):
        for style in ("rich", "md"):
            text = shown(results_of(tmp_path / name, *TASK, declared=declared), style)
            assert "missing" not in text
            assert "ruler-4k · recall" in text


def test_a_table_of_one_subtask_lacks_none_and_tables_are_in_the_tasks_order(tmp_path: Path) -> None:
    tables = make_tables(results_of(tmp_path, "cwe", "qa_1", "vt"), subtasks=True)
    assert [table.subtask for table in tables] == [None, "vt", "cwe", "qa_1"]
    assert [table.missing for table in tables] == [("niah_single_1", "qa_2"), (), (), ()]


def test_machines_read_what_is_missing(tmp_path: Path) -> None:
    results = results_of(tmp_path, "niah_single_1", "vt", "cwe")
    [table] = json.loads(shown(results, "json"))
    assert table["missing"] == ["qa_1", "qa_2"]
    frame = pd.read_csv(io.StringIO(shown(results, "csv", width=1000)))
    assert set(frame["missing"]) == {"qa_1+qa_2"}


@pytest.mark.parametrize("subtasks", [("vt",), ("niah_single_1", "vt", "cwe")])
@pytest.mark.parametrize("draw", [draw_curves, draw_areas])
def test_a_figure_says_it_too(
    tmp_path: Path, subtasks: tuple[str, ...], draw: Callable[[Table, dict[str, Look]], Figure]
) -> None:
    [table] = make_tables(results_of(tmp_path, *subtasks))
    figure = draw(table, looks_of({"kvp"}, lambda _: False))
    texts = " ".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")
    assert f"({len(subtasks)} of 5 subtasks)" in texts
    assert f"Missing: {', '.join(table.missing)};" in texts
