"""`kvbench merge`: several results folders in one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console

from kvbench.merge import merge


def merge_command(sources: Sequence[Path], into: Path, compress: bool, as_json: bool, out: Console) -> None:
    """Merge folders and say what came of it.

    Raises:
        UsageError: A folder cannot be used.
        KvbenchError: A folder is not valid, or two disagree.
    """
    merged = merge(sources, into, compress)
    if as_json:
        typer.echo(json.dumps({"results": str(into), **asdict(merged)}, indent=2))
        return
    out.print(
        f"{merged.added} cells added to {into}, {merged.replaced} failed ones replaced by finished ones, "
        f"{merged.known} were there already; it now holds {merged.cells} cells, {merged.failed} of them failed",
        highlight=False,
        soft_wrap=True,
    )
