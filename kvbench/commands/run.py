"""`kvbench run`: from names to a plan, from a plan to records."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

import typer
from rich.console import Console
from rich.markup import escape

from kvbench.budgets import parse_budgets
from kvbench.commands.data import tasks_with_data
from kvbench.commands.entries import parse_entries
from kvbench.commands.interrupts import interruptible
from kvbench.commands.plan import print_plan
from kvbench.commands.progress import progress
from kvbench.errors import KvbenchError, UsageError, unknown
from kvbench.press import Press
from kvbench.records import FULL, Schedule
from kvbench.registry import PRESSES, make_press, press_label, registered
from kvbench.task import QuestionPlacement

if TYPE_CHECKING:
    from kvbench.models import ModelFacts, ModelSource
    from kvbench.ray_engine import RayEngine
    from kvbench.store import ResultsWriter
    from kvbench.sweep import Finished, Plan, Settings

ALL = "all"
_Choice = TypeVar("_Choice", bound=str)


@dataclass(frozen=True)
class Request:
    """`kvbench run` as it was typed."""

    presses: Sequence[str]
    tasks: Sequence[str]
    data: Sequence[str]
    revisions: Sequence[str]
    budgets: str
    model: str
    limit: int | None
    results: Path
    question: str | None
    schedule: str | None
    chunk: int
    protect: str
    seed: int
    dtype: str | None
    device: str | None
    attention: str
    engine: str
    gpus_per_worker: float | None
    workers: int | None
    noise_floor: bool
    trust_remote_code: bool


def run_command(request: Request, dry_run: bool, as_json: bool, out: Console, err: Console) -> None:
    """Plan a sweep and, unless it is a dry run, run it.

    Raises:
        UsageError: A name or value is wrong, or the results folder cannot be used.
        KvbenchError: Some cells failed.
    """
    budgets = parse_budgets(request.budgets)
    question = _choice("question placement", request.question, get_args(QuestionPlacement))
    schedule = _choice("schedule", request.schedule, get_args(Schedule))
    first, last = parse_protect(request.protect)
    made = make_presses(parse_presses(request.presses), err)
    tasks = tasks_with_data(parse_entries(request.tasks, "tasks"), request.data, err, request.revisions)

    # What follows needs torch and transformers; a mistyped name has been answered before they are imported.
    from kvbench.models import choose_device, choose_dtype, find, quieten_transformers
    from kvbench.ranking import Protect
    from kvbench.ray_engine import parse_engine
    from kvbench.store import ResultsFolder
    from kvbench.sweep import Settings, make_plan

    quieten_transformers()
    device = choose_device(request.device)
    dtype = choose_dtype(request.dtype, device)
    engine = parse_engine(request.engine, request.gpus_per_worker, request.workers, device)
    settings = Settings(
        budgets=budgets,
        limit=request.limit,
        question=question,
        schedule=schedule,
        chunk=request.chunk,
        protected=Protect(first, last),
        seed=request.seed,
        dtype=dtype,
        device=device,
        attention=request.attention,
        noise_floor=request.noise_floor,
    )
    folder = ResultsFolder(request.results)

    def planned() -> tuple[Plan, ModelSource]:
        source = find(request.model, not dry_run, request.trust_remote_code)
        presses, named = ready_presses(made, source.facts, err)
        if request.noise_floor:
            named.add(FULL)  # in chunks it would be left out
        return make_plan(source, presses, tasks, settings, folder, named), source

    if dry_run:
        plan, source = planned()
        print_plan(plan, source, settings, as_json, out)
        return
    totals = Totals()
    with folder.writer() as writer:  # before planning: another run must not add what the plan finds missing
        plan, source = planned()
        interrupted = False
        if plan.items:
            where = OnRay(engine, request.model) if engine else None
            interrupted = _run(plan, source, settings, where, writer, totals, err)
    _report(plan, totals, request.results, as_json, out)
    if interrupted:
        raise KeyboardInterrupt
    _refuse_failures(totals)


@dataclass(frozen=True)
class OnRay:
    """The Ray engine, and the model as it was typed: each worker finds it by itself."""

    engine: RayEngine
    model: str


def _run(
    plan: Plan,
    source: ModelSource,
    settings: Settings,
    where: OnRay | None,
    writer: ResultsWriter,
    totals: Totals,
    err: Console,
) -> bool:
    """Run a plan, here or on Ray, and count what comes of it; return whether it was interrupted."""
    from kvbench.ray_engine import ModelToLoad, run_plan_on_ray
    from kvbench.sweep import run_plan

    with progress("cells", plan.cells, err) as advance, interruptible("sample") as stopped:

        def tell(finished: Finished) -> None:
            totals.add(finished)
            failed = f", {len(finished.failures)} failed" if finished.failures else ""
            advance(finished.item.sample.id, len(finished.item.cells), failed)

        def warn(sentence: str) -> None:
            err.print(f"[yellow]{escape(sentence)}[/]", highlight=False, soft_wrap=True)

        how = (settings.dtype, settings.device, settings.attention)
        if where:
            model = ModelToLoad.of(where.model, source, *how)
            run_plan_on_ray(plan, model, where.engine, writer, tell, warn, stopped)
        else:
            run_plan(plan, source.load(*how), writer, tell, warn, stopped)
        return stopped()


@dataclass(frozen=True)
class RequestedPress:
    """A press that a user asked for.

    Attributes:
        spec: `name` or `name:field=value,…`.
        named: Asked for by name, not as one of `all`: if it cannot run, that is an error.
    """

    spec: str
    named: bool


def parse_presses(texts: Sequence[str]) -> list[RequestedPress]:
    """Read a list of presses; `all` stands for every registered one.

    A comma separates presses, and also the parameters of one: a piece such as `kernel=7` belongs to the press
    before it.

    Raises:
        UsageError: Nothing is named.
    """
    requested: list[RequestedPress] = []
    for piece in parse_entries(texts, "presses"):
        if "=" in piece and ":" not in piece and requested:
            requested[-1] = RequestedPress(f"{requested[-1].spec},{piece}", requested[-1].named)
        elif piece == ALL:
            requested.extend(RequestedPress(name, named=False) for name in registered(PRESSES))
        else:
            requested.append(RequestedPress(piece, named=True))
    return requested


@dataclass(frozen=True)
class MadePress:
    """A press that was asked for, not yet made ready for a model."""

    label: str
    press: Press
    named: bool


def make_presses(requested: Sequence[RequestedPress], err: Console) -> list[MadePress]:
    """Make the presses that were asked for; the full cache, the reference of every curve, comes first.

    Raises:
        UsageError: A press asked for by name does not exist, or its parameters are wrong.
    """
    made: list[MadePress] = []
    for wanted in (RequestedPress(FULL, named=False), *requested):
        try:
            press = make_press(wanted.spec)
        except UsageError as error:
            _leave_out(wanted.spec, wanted.named, error, err)
        else:
            made.append(MadePress(press_label(wanted.spec.partition(":")[0], press), press, wanted.named))
    return made


def ready_presses(made: Sequence[MadePress], facts: ModelFacts, err: Console) -> tuple[dict[str, Press], set[str]]:
    """Make the presses ready for a model.

    Returns:
        The presses by label, and the labels of those that were asked for by name.

    Raises:
        UsageError: A press asked for by name cannot run on this model.
    """
    presses: dict[str, Press] = {}
    for one in made:
        try:
            presses[one.label] = one.press.for_model(facts)
        except UsageError as error:
            _leave_out(one.label, one.named, error, err)
    return presses, {one.label for one in made if one.named}


def _leave_out(name: str, named: bool, error: UsageError, err: Console) -> None:
    """Say why one of `all` is left out; a press asked for by name is an error."""
    if named:
        raise error
    err.print(f"[yellow]without {escape(name)}:[/] {escape(str(error))}", highlight=False, soft_wrap=True)


def parse_protect(text: str) -> tuple[int, int]:
    """Parse `FIRST,LAST`, the protected tokens.

    Raises:
        UsageError: It is not two whole numbers from 0 up.
    """
    first, _, last = (part.strip() for part in text.partition(","))
    if not (first.isdecimal() and last.isdecimal()):
        raise UsageError(f"--protect '{text}' is not allowed: give two whole numbers from 0 up, first and last (4,16)")
    return int(first), int(last)


def _choice(what: str, text: str | None, allowed: tuple[_Choice, ...]) -> _Choice | None:
    """Return the allowed value that was typed; none if nothing was."""
    if text is None:
        return None
    for value in allowed:
        if value == text:
            return value
    raise unknown(what, text, allowed)


@dataclass
class Totals:
    """What a run has done so far."""

    cells: int = 0
    failed: int = 0
    reason: str | None = None
    """Why the first failed cell failed."""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, finished: Finished) -> None:
        """Count one work item."""
        self.cells += len(finished.item.cells)
        self.failed += len(finished.failures)
        self.reason = self.reason or next(iter(finished.failures), None)
        if finished.timings:
            self.seconds["prefill"] += finished.timings.prefill
            self.seconds["ranking"] += sum(finished.timings.ranking.values())
            self.seconds["gathering"] += finished.timings.gathering
            self.seconds["answering"] += finished.timings.answering


def _report(plan: Plan, totals: Totals, results: Path, as_json: bool, out: Console) -> None:
    """Say what was done and where the time went."""
    summary = {
        "results": str(results),
        "cells": totals.cells,
        "failed": totals.failed,
        "already_done": plan.done,
        "seconds": {part: round(seconds, 2) for part, seconds in totals.seconds.items()},
    }
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        out.print(
            f"{totals.cells} cells computed, {plan.done} were there already; results in {results}",
            highlight=False,
        )
        if totals.seconds:
            spent = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in totals.seconds.items())
            out.print(f"time: {spent}", highlight=False)


def _refuse_failures(totals: Totals) -> None:
    """Make a run with failed cells an error."""
    if totals.failed:
        raise KvbenchError(
            f"{totals.failed} of {totals.cells} cells failed, the first because {totals.reason}; "
            "the same command tries them again"
        )
