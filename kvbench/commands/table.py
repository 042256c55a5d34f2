"""`kvbench table`: scores by press and budget."""

from pathlib import Path

from rich.console import Console

from kvbench.store import load
from kvbench.table import make_tables, show


def table_command(results: Path, subtasks: bool, style: str, out: Console) -> None:
    """Print the tables of a results folder.

    Raises:
        UsageError: It is no results folder, or there is no such style.
    """
    show(make_tables(load(results), subtasks), style, out)
