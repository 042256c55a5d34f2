"""`kvbench compare`: two presses on the same samples."""

from pathlib import Path

from rich.console import Console

from kvbench.comparison import compare, show_comparisons
from kvbench.statistics import COLUMNS
from kvbench.store import load


def compare_command(results: Path, first: str, second: str, style: str, out: Console) -> None:
    """Print by how much the first press is better than the second, under every protocol that has both.

    Raises:
        UsageError: It is no results folder, there is no such press or style, or nothing to compare.
    """
    show_comparisons(compare(load(results, COLUMNS), first, second), style, out)
