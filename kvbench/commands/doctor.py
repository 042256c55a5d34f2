"""`kvbench doctor`: what this machine offers."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvbench import embedded_model
from kvbench.cache_folder import cache_folder
from kvbench.environment import describe_environment
from kvbench.errors import KvbenchError
from kvbench.models import choose_device, choose_dtype
from kvbench.registry import PRESSES, TASKS, import_failures, registered


@dataclass(frozen=True)
class Finding:
    """One thing looked at. Only what keeps kvbench from running is not `fine`."""

    what: str
    fine: bool
    detail: str


def doctor_command(as_json: bool, out: Console) -> None:
    """Print what was found.

    Raises:
        KvbenchError: Something keeps kvbench from running here.
    """
    findings = examine()
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for finding in findings:
            mark = "[green]ok[/]" if finding.fine else "[bold red]no[/]"
            table.add_row(mark, finding.what, escape(finding.detail))
        out.print(table)
    broken = [finding.what for finding in findings if not finding.fine]
    if broken:
        raise KvbenchError(f"kvbench cannot run here: see {', '.join(broken)}")


def examine() -> list[Finding]:
    """Look at versions, hardware, folders, the embedded model and the plug-ins."""
    environment = describe_environment()
    device = choose_device(None)
    return [
        Finding("kvbench", True, f"{environment.kvbench} on Python {environment.python}, {environment.platform}"),
        Finding("torch", True, f"{environment.torch}, transformers {environment.transformers}"),
        Finding("device", True, f"{device}: {environment.processor}, {environment.threads} threads"),
        Finding("dtype", True, f"{choose_dtype(None, device)} unless --dtype says otherwise"),
        Finding("memory", True, _memory()),
        _cache(),
        Finding("smollm2-135m", True, _embedded_model()),
        _plugins("presses", PRESSES),
        _plugins("tasks", TASKS),
        Finding("extras", True, ", ".join(f"{name}: {_extra(name)}" for name in ("flash_attn", "lm_eval", "ray"))),
    ]


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    text = f"{pages * size / 2**30:.0f} GiB"
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        text += f"; GPU {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
    return text


def _cache() -> Finding:
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free / 2**30
    return Finding("cache", os.access(existing, os.W_OK), f"{folder}, {free:.0f} GiB free on its disk")


def _embedded_model() -> str:
    converted = Path(cache_folder() / "models" / embedded_model.ALIAS)
    if embedded_model.from_hub(local_only=True):
        return "in the hub's cache"
    return f"in {converted}" if converted.is_dir() else "not fetched yet: the first run does it"


def _plugins(what: str, group: str) -> Finding:
    failures = import_failures(group)
    usable = len(registered(group)) - len(failures)
    left_out = f"; left out: {'; '.join(failures.values())}" if failures else ""
    return Finding(what, usable > 0, f"{usable} registered{left_out}")


def _extra(name: str) -> str:
    return "installed" if find_spec(name) else "not installed"
