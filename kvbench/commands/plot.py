"""`kvbench plot`: the figures of a results folder."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from kvbench.commands.table import is_bound
from kvbench.errors import UsageError
from kvbench.plots import plot_results
from kvbench.press import ATTENTION_READS
from kvbench.registry import press_class
from kvbench.store import load


def plot_command(results: Path, figures: Path, formats: str, out: Console) -> None:
    """Draw the figures of a results folder and say where they are.

    Raises:
        UsageError: It is no results folder, or there is no such format.
    """
    wanted = [piece.strip() for piece in formats.split(",")]
    for figure in plot_results(load(results), figures, wanted, reads_attention, is_bound):
        out.print(str(figure), highlight=False, soft_wrap=True)


def reads_attention(label: str) -> bool:
    """Say whether a press, by its label, reads attention; of a press that is not installed here, that it does not."""
    try:
        return bool(ATTENTION_READS & press_class(label.partition(":")[0]).reads)
    except UsageError:
        return False
