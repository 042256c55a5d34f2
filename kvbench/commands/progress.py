"""Progress of a long command: a bar with rate and time left on a terminal, a line per step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as ProgressTask
from rich.text import Text


class Advance(Protocol):
    """Tells that a step is done."""

    def __call__(self, step: str, amount: int, remark: str = "") -> None:
        """Say which step, how many units it was, and what there is to remark on it."""
        ...


@contextmanager
def progress(unit: str, total: int, err: Console) -> Iterator[Advance]:
    """Show the progress of `total` units of work, "cells" say, step by step."""
    if not err.is_terminal:
        yield _LinePrinter(unit, total, err)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, speed_estimate_period=600) as shown:
        bar = shown.add_task(unit, total=total)

        yield lambda step, amount, remark="": shown.advance(bar, amount)  # noqa: ARG005 - the bar says it all


class _Rate(ProgressColumn):
    """Units per second."""

    def __init__(self, unit: str):
        super().__init__()
        self.unit = unit

    def render(self, task: ProgressTask) -> Text:
        return Text(f"{task.speed:,.1f} {self.unit}/s" if task.speed else "", style="progress.data.speed")


class _LinePrinter:
    """Progress as plain lines."""

    def __init__(self, unit: str, total: int, err: Console):
        self.unit = unit
        self.total = total
        self.done = 0
        self.started = time.monotonic()
        self.err = err

    def __call__(self, step: str, amount: int, remark: str = "") -> None:
        self.done += amount
        rate = self.done / (time.monotonic() - self.started)
        left = (self.total - self.done) / rate
        self.err.print(
            f"{step}: {self.done}/{self.total} {self.unit}, {rate:,.1f} {self.unit}/s, {left:.0f} s left{remark}",
            highlight=False,
            soft_wrap=True,
        )
