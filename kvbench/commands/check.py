"""`kvbench check`: a press against the contract of `sort()`."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvbench.check import check_press
from kvbench.errors import KvbenchError
from kvbench.models import find
from kvbench.registry import make_press


def check_command(spec: str, model: str | None, as_json: bool, out: Console) -> None:
    """Check the press that `spec` names and print what held, with its time per layer.

    Args:
        spec: `name` or `name:field=value,…`.
        model: The model whose layers' shape is used, and that a learned press is made ready for.
        as_json: Print JSON.
        out: Where to print.

    Raises:
        UsageError: There is no such press or model, or the press cannot run on it.
        KvbenchError: It breaks the contract.
    """
    press = make_press(spec)
    facts = find(model, weights=False).facts if model else None
    report = check_press(press, facts)
    if as_json:
        typer.echo(json.dumps({**asdict(report), "passed": report.passed}, indent=2))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for result in report.results:
            mark = "[green]ok[/]" if result.passed else "[bold red]no[/]"
            table.add_row(mark, escape(result.name), escape(result.detail))
        out.print(table)
        if report.milliseconds is not None:
            out.print(f"{report.milliseconds:.2f} ms to rank a layer of {report.tokens} tokens", highlight=False)
    if not report.passed:
        broken = [result.name for result in report.results if not result.passed]
        raise KvbenchError(f"press '{spec}' breaks the contract: {'; '.join(broken)}")
