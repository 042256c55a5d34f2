"""`kvbench leaderboard`: results as one HTML page."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import typer
from rich.console import Console

from kvbench.commands.plot import reads_attention
from kvbench.commands.table import is_bound
from kvbench.leaderboard.content import make_content
from kvbench.leaderboard.page import make_page, write_page
from kvbench.leaderboard.server import serve
from kvbench.store import load


def leaderboard_command(results: Path, site: Path, serving: bool, port: int, out: Console) -> None:
    """Write the page of a results folder, say where it is, and serve it if that is wanted.

    Raises:
        UsageError: It is no results folder, or the port is taken.
        KvbenchError: The page cannot be written.
    """
    page = make_page(make_content(load(results), results, reads_attention, is_bound))
    file = write_page(page, site)
    out.print(f"{file} ({len(page.encode()) / 1000:.0f} kB)", highlight=False, soft_wrap=True)
    if serving:
        serve(site, port, _open)


def _open(address: str) -> None:
    typer.echo(f"{address} - ctrl-c stops")
    webbrowser.open(address)
