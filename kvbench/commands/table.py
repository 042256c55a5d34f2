"""`kvbench table`: scores by press and budget, or areas by press and task."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kvbench.area_table import show_areas
from kvbench.commands.entries import split_entries
from kvbench.errors import UsageError, unknown
from kvbench.press import Reads
from kvbench.registry import press_class
from kvbench.statistics import COLUMNS
from kvbench.store import load
from kvbench.table import make_tables, show

METRICS = {"score": show, "auc": show_areas}


def table_command(results: Path, tasks: Sequence[str], metric: str, subtasks: bool, style: str, out: Console) -> None:
    """Print the tables of a results folder, or of some tasks in it.

    Raises:
        UsageError: It is no results folder, or there is no such task, metric or style.
    """
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    METRICS[metric](make_tables(load(results, COLUMNS).of_tasks(split_entries(tasks)), subtasks, is_bound), style, out)


def is_bound(press: str) -> bool:
    """Say whether a press, by its name in a table, sees the future: a bound on what any policy can reach."""
    try:
        return Reads.FUTURE in press_class(press.partition("#")[0].partition(":")[0]).reads
    except UsageError:  # it is not installed here
        return False
