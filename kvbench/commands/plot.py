"""`kvbench plot`: the figures of a results folder.

Beside the records it draws the cost reports in RESULTS/cost and the comparison of objectives that
RESULTS/training/objectives.json holds, where they are there.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from kvbench.commands.table import is_bound
from kvbench.cost_report import read_reports
from kvbench.errors import UsageError
from kvbench.objective_plots import read_objectives
from kvbench.plots import plot_costs, plot_objectives, plot_results
from kvbench.press import ATTENTION_READS
from kvbench.record_files import record_files
from kvbench.registry import press_class
from kvbench.store import load


def plot_command(results: Path, figures: Path, formats: str, out: Console) -> None:
    """Draw the figures of a results folder and say where they are.

    Raises:
        UsageError: It is no results folder, a file in it is not what kvbench writes, or there is no such format.
    """
    wanted = [piece.strip() for piece in formats.split(",")]
    drawn = plot_costs(read_reports(results / "cost"), figures, wanted, reads_attention, is_bound)
    objectives = results / "training" / "objectives.json"
    if objectives.is_file():
        drawn += plot_objectives(read_objectives(objectives), figures, wanted)
    if not drawn or ((results / "records").is_dir() and record_files(results)):
        drawn += plot_results(load(results), figures, wanted, reads_attention, is_bound)
    for figure in drawn:
        out.print(str(figure), highlight=False, soft_wrap=True)


def reads_attention(label: str) -> bool:
    """Say whether a press, by its label, reads attention; of a press that is not installed here, that it does not."""
    try:
        return bool(ATTENTION_READS & press_class(label.partition(":")[0]).reads)
    except UsageError:
        return False
