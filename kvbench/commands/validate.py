"""`kvbench validate`: what is wrong with a results folder."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console

from kvbench.validate import Report, validate


def validate_command(folder: Path, as_json: bool, out: Console) -> None:
    """Print one line per finding; exit with 1 if there is one.

    Raises:
        UsageError: It is no results folder.
        typer.Exit: Something is wrong.
    """
    report = validate(folder)
    if as_json:
        typer.echo(json.dumps(_as_data(folder, report), indent=2, ensure_ascii=False))
    else:
        for finding in report.findings:
            typer.echo(str(finding))
        for remark in report.remarks:
            typer.echo(f"note: {remark}")
        verdict = f"{len(report.findings)} findings" if report.findings else "nothing is wrong"
        out.print(
            f"{verdict}: {report.records} records of {report.cells} cells, {report.failed} failed, "
            f"{report.rescored} scores computed again",
            highlight=False,
            soft_wrap=True,
        )
    if report.findings:
        raise typer.Exit(1)


def _as_data(folder: Path, report: Report) -> dict[str, object]:
    findings = [
        {"file": str(finding.file), "line": finding.line, "message": finding.message} for finding in report.findings
    ]
    return {"results": str(folder), "valid": not report.findings, **vars(report), "findings": findings}
