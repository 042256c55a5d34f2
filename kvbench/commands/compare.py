"""`kvbench compare`: two presses, or one and all others, on the same samples."""

from pathlib import Path

from rich.console import Console

from kvbench.comparison import compare, show_comparisons
from kvbench.comparison_with_all import compare_with_all, show_standings
from kvbench.statistics import COLUMNS
from kvbench.store import load


def compare_command(results: Path, first: str, second: str | None, style: str, out: Console) -> None:
    """Print by how much the first press is better than the second, or than each other, under every protocol.

    Raises:
        UsageError: It is no results folder, there is no such press or style, or nothing to compare.
    """
    loaded = load(results, COLUMNS)
    if second is None:
        show_standings(compare_with_all(loaded, first), style, out)
    else:
        show_comparisons(compare(loaded, first, second), style, out)
