"""`kvbench traces`: from names to a folder of traces."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvbench import seeds
from kvbench.commands.data import tasks_with_data
from kvbench.commands.entries import parse_entries
from kvbench.commands.interrupts import interruptible
from kvbench.commands.plan import spell_bytes
from kvbench.commands.progress import progress
from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.models import ModelFacts, ModelSource
    from kvbench.ray_engine import RayEngine
    from kvbench.tracing import Draw, Drawn, TraceFolder, Tracer, TraceSettings


@dataclass(frozen=True)
class TracesRequest:
    """`kvbench traces` as it was typed."""

    tasks: Sequence[str]
    to: Path
    samples: int
    model: str
    data: Sequence[str]
    cuts: int
    rollout: int
    seed: int
    dtype: str | None
    device: str | None
    attention: str
    engine: str
    gpus_per_worker: float | None
    workers: int | None


def traces_command(request: TracesRequest, dry_run: bool, as_json: bool, out: Console, err: Console) -> None:
    """Take the traces that are missing, unless it is a dry run.

    Raises:
        UsageError: A name or value is wrong, the folder cannot be used, or the disk is too small.
        KvbenchError: A sequence cannot be taken.
    """
    tasks = tasks_with_data(parse_entries(request.tasks, "tasks"), request.data, err)

    from kvbench.models import choose_device, choose_dtype, find, quieten_transformers
    from kvbench.ray_engine import parse_engine
    from kvbench.traces import writing
    from kvbench.tracing import TraceFolder, TraceSettings, draw_sequences

    quieten_transformers()
    device = choose_device(request.device)
    engine = parse_engine(request.engine, request.gpus_per_worker, request.workers, device)
    settings = TraceSettings(
        samples=request.samples,
        cuts=request.cuts,
        rollout=request.rollout,
        seed=request.seed,
        dtype=choose_dtype(request.dtype, device),
        device=device,
        attention=request.attention,
    )

    def planned() -> Planned:
        source = find(request.model, weights=not dry_run)
        folder = TraceFolder(request.to, source, settings)
        draw = draw_sequences(source, tasks, settings)
        missing = folder.missing(draw)
        facts = _estimate(draw, missing, source.facts, request.to)
        _remark(draw, request.seed, err)
        if not as_json:
            _print_estimate(missing, facts, out)
        return Planned(source, folder, draw, missing, facts)

    if dry_run:
        plan = planned()
        if as_json:
            typer.echo(json.dumps(plan.facts, indent=2))
        return
    with writing(request.to):  # before planning: another run must not add what the plan finds missing
        plan = planned()
        done, interrupted = _take(plan, request.model, settings, engine, err)
    if as_json:
        typer.echo(json.dumps(done, indent=2))
    else:
        out.print(
            f"{done['taken']} sequences taken in {done['seconds']:.0f} s, {done['already_there']} were there already; "
            f"{spell_bytes(done['bytes'])} in {escape(str(request.to))}",
            highlight=False,
        )
    if interrupted:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Planned:
    """What is to be taken, and what is known of it."""

    source: ModelSource
    folder: TraceFolder
    draw: Draw
    missing: Sequence[Drawn]
    facts: dict[str, Any]


def _take(
    plan: Planned, model: str, settings: TraceSettings, engine: RayEngine | None, err: Console
) -> tuple[dict[str, Any], bool]:
    """Take what is missing, here or on Ray; return what was done, as plain data, and whether it was interrupted.

    Raises:
        UsageError: The disk is too small, or Ray cannot be used.
        KvbenchError: A sequence cannot be taken.
    """
    if plan.facts["bytes"] > plan.facts["free_bytes"]:
        raise UsageError(
            f"the traces take about {spell_bytes(plan.facts['bytes'])} and '{plan.folder.path}' has "
            f"{spell_bytes(plan.facts['free_bytes'])} left: ask for fewer samples, or another folder"
        )
    started, taken = time.monotonic(), 0
    tokens = sum(drawn.entry.tokens for drawn in plan.missing)
    with progress("tokens", tokens, err) as advance, interruptible("sequence") as stopped:

        def tell(drawn: Drawn) -> None:
            nonlocal taken
            taken += 1
            advance(drawn.entry.sample, drawn.entry.tokens)

        if plan.missing:
            with _tracer(model, plan.source, settings, engine) as tracer:
                manifest = plan.folder.take(tracer, plan.draw, tell, stopped)
            if left_out := manifest.model_layers - len(manifest.layers):
                err.print(
                    f"note: {left_out} of {manifest.model_layers} layers have a sliding window and are not stored"
                )
    done = {
        "traces": str(plan.folder.path),
        "taken": taken,
        "already_there": plan.facts["already_there"],
        "bytes": plan.folder.bytes,
        "seconds": round(time.monotonic() - started, 2),
    }
    return done, stopped()


@contextmanager
def _tracer(model: str, source: ModelSource, settings: TraceSettings, engine: RayEngine | None) -> Iterator[Tracer]:
    """Load the model, here or on Ray's workers, each of which finds it by itself."""
    from kvbench.ray_engine import ModelToLoad, tracer_on_ray
    from kvbench.tracing import ModelTracer

    how = (settings.dtype, settings.device, settings.attention)
    if engine is None:
        yield ModelTracer(source.load(*how))
        return
    with tracer_on_ray(ModelToLoad.of(model, source, *how), engine) as tracer:
        yield tracer


def _remark(draw: Draw, seed: int, err: Console) -> None:
    remarks = list(draw.remarks)
    if seed == seeds.BENCHMARK:
        remarks.append(
            f"seed {seed} is the benchmark's own: generated samples are those that it asks, "
            "so nothing may be trained on them that is then measured on it"
        )
    for remark in remarks:
        err.print(f"note: {escape(remark)}", highlight=False, soft_wrap=True)


def _estimate(draw: Draw, missing: Sequence[Drawn], model: ModelFacts, to: Path) -> dict[str, Any]:
    """Work out what is to be stored, as plain data; of layers with sliding windows nothing will be."""
    from kvbench.traces import sequence_bytes

    there = next(folder for folder in (to, *to.absolute().parents) if folder.exists())
    return {
        "sequences": len(missing),
        "already_there": len(draw.sequences) - len(missing),
        "tokens": sum(drawn.entry.tokens for drawn in missing),
        "bytes": sum(sequence_bytes(model.layers, model, drawn.entry) for drawn in missing),
        "free_bytes": shutil.disk_usage(there).free,
    }


def _print_estimate(missing: Sequence[Drawn], facts: dict[str, Any], out: Console) -> None:
    sequences: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for drawn in missing:
        sequences[drawn.entry.task] += 1
        tokens[drawn.entry.task] += drawn.entry.tokens
    if missing:
        table = Table(title="sequences to take", title_justify="left", title_style="bold", box=None, pad_edge=False)
        table.add_column("task")
        table.add_column("sequences", justify="right")
        table.add_column("tokens", justify="right")
        for task in sequences:
            table.add_row(escape(task), str(sequences[task]), f"{tokens[task]:,}")
        out.print(table)
    out.print(
        f"{facts['sequences']} sequences to take, {facts['already_there']} are there already; about "
        f"{spell_bytes(facts['bytes'])} to store, {spell_bytes(facts['free_bytes'])} are free",
        highlight=False,
    )
