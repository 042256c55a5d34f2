"""`kvbench compare`: two presses, or one and all others, on the same samples."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kvbench.commands.entries import split_entries
from kvbench.comparison import compare, show_comparisons
from kvbench.comparison_with_all import compare_with_all, show_standings
from kvbench.statistics import COLUMNS
from kvbench.store import load


def compare_command(
    results: Path, first: str, second: str | None, tasks: Sequence[str], style: str, out: Console
) -> None:
    """Print by how much the first press is better than the second, or than each other, under every protocol or under
    those of some tasks.

    Raises:
        UsageError: It is no results folder, there is no such press, task or style, or nothing to compare.
    """
    loaded = load(results, COLUMNS).of_tasks(split_entries(tasks))
    if second is None:
        show_standings(compare_with_all(loaded, first), style, out)
    else:
        show_comparisons(compare(loaded, first, second), style, out)
