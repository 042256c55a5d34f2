"""`kvbench cost`: what presses evict of the future attention, without answering anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from kvbench.budgets import Budget, parse_budgets
from kvbench.commands.data import tasks_with_data
from kvbench.commands.entries import parse_entries
from kvbench.commands.progress import progress
from kvbench.commands.run import (
    MadePress,
    RequestedPress,
    make_presses,
    parse_presses,
    parse_protect,
    ready_presses,
)
from kvbench.errors import KvbenchError, UsageError, unknown
from kvbench.press import Press, Reads
from kvbench.table_layout import Column, Layout, to_terminal

if TYPE_CHECKING:
    from kvbench.cost import SampleCosts
    from kvbench.cost_report import CostReport, CostSummary, PressCost
    from kvbench.traces import TraceEntry

BOUNDS = ("oracle", "random")
"""Measured in any case, where they are installed: what every press lies between."""
SAMPLES = 13
"""Per task, where not said otherwise: RULER has as many subtasks."""


@dataclass(frozen=True)
class CostRequest:
    """`kvbench cost` as it was typed."""

    presses: Sequence[str]
    tasks: Sequence[str]
    traces: Path | None
    samples: int | None
    data: Sequence[str]
    model: str
    budgets: str
    protect: str
    rollout: int
    seed: int
    dtype: str | None
    device: str | None
    attention: str
    to: Path


@dataclass(frozen=True)
class _Asked:
    """What is to be measured, parsed."""

    presses: list[MadePress]
    budgets: list[Budget]
    protect: tuple[int, int]


@dataclass(frozen=True)
class _Work:
    """The samples of one task, and how to measure each.

    Attributes:
        task: Its name.
        facts: What the report's protocol says beside the layers, budgets and protected tokens.
        samples: Per sample where it comes from, its source data, and what measures it.
    """

    task: str
    facts: dict[str, Any]
    samples: list[tuple[TraceEntry, str, Callable[[], SampleCosts]]]


def cost_command(request: CostRequest, as_json: bool, out: Console, err: Console) -> None:
    """Measure presses on tasks' samples, or on stored traces, and add them to the reports.

    Raises:
        UsageError: A name or value is wrong, or a press cannot be measured on traces.
        KvbenchError: A press failed on some sample; the others are written.
    """
    if not request.tasks and request.traces is None:
        raise UsageError("nothing to measure on: name tasks (--task), or a folder of traces (--traces)")
    bounds = [RequestedPress(name, named=False) for name in BOUNDS]
    made = make_presses([*bounds, *parse_presses(request.presses)], err)
    asked = _Asked(
        [one for one in made if one.press.evicts], parse_budgets(request.budgets), parse_protect(request.protect)
    )
    presses, work = (_on_traces if request.traces else _on_model)(request, asked, err)

    from kvbench.cost_report import add_to, summarise

    failures: dict[str, str] = {}
    reports = []
    with progress("tokens", sum(entry.tokens for one in work for entry, _, _ in one.samples), err) as advance:
        for one in work:
            costs = []
            for entry, _, measure in one.samples:
                costs.append(measure())
                failures = {**costs[-1].failures, **failures}
                advance(entry.sample, entry.tokens)
            reports.append(add_to(request.to, _report(one, asked, presses, costs)))
    if as_json:
        typer.echo(json.dumps([_plain(report, summarise(report), request.to) for report in reports], indent=2))
    else:
        for report in reports:
            to_terminal(_layout(report, summarise(report), request.to), out)
    for press, why in failures.items():
        raise KvbenchError(f"{len(failures)} presses failed and are not in the report, the first {press}: {why}")


def _on_model(request: CostRequest, asked: _Asked, err: Console) -> tuple[dict[str, Press], list[_Work]]:
    """Prepare to run the model on the samples of each task."""
    tasks = tasks_with_data(parse_entries(request.tasks, "tasks"), request.data, err)

    from kvbench.cost import costs_of_sample
    from kvbench.models import choose_device, choose_dtype, find, quieten_transformers
    from kvbench.press import sample_seed
    from kvbench.ranking import Protect
    from kvbench.tracing import Drawn, TraceSettings, draw_sequences

    quieten_transformers()
    device = choose_device(request.device)
    dtype = choose_dtype(request.dtype, device)
    count = request.samples or SAMPLES
    settings = TraceSettings(count, 1, request.rollout, request.seed, dtype, device, request.attention)
    source = find(request.model)
    presses, _ = ready_presses(asked.presses, source.facts, err)
    draws = [draw_sequences(source, [task], settings) for task in tasks]
    for remark in (remark for draw in draws for remark in draw.remarks):
        err.print(f"note: {remark}", highlight=False, soft_wrap=True, markup=False)
    model = source.load(dtype, device, request.attention)

    def measuring(drawn: Drawn) -> Callable[[], SampleCosts]:
        seed = sample_seed(request.seed, drawn.entry.sample)
        return lambda: costs_of_sample(model, drawn, presses, Protect(*asked.protect), asked.budgets, seed)

    facts = {
        "model": source.name,
        "weights": source.weights,
        "kv_heads": source.facts.kv_heads,
        "origin": "model",
        "seed": request.seed,
        "rollout": request.rollout,
        "dtype": dtype,
        "attention": request.attention,
        "device": device.partition(":")[0],
    }
    work = []
    for draw in draws:
        samples = [
            (drawn.entry, draw.data[f"{drawn.entry.task}:{drawn.entry.subtask}"], measuring(drawn))
            for drawn in draw.sequences
        ]
        if samples:
            work.append(_Work(samples[0][0].task, facts, samples))
    return presses, work


def _on_traces(request: CostRequest, asked: _Asked, err: Console) -> tuple[dict[str, Press], list[_Work]]:
    """Prepare to rank stored traces, which hold no queries."""
    for one in asked.presses:
        if one.named and Reads.QUERIES in one.press.reads:
            raise UsageError(
                f"press {one.label} reads queries, which traces do not hold: measure it on a task (--task)"
            )

    from kvbench.cost import costs_of_trace
    from kvbench.models import find, quieten_transformers
    from kvbench.ranking import Protect
    from kvbench.traces import Traces

    assert request.traces is not None
    quieten_transformers()
    traces = Traces(request.traces)
    manifest = traces.manifest
    source = find(request.model, weights=False)
    traces.refuse_other_model(source.facts)
    there = list(dict.fromkeys(traces.entry(number).task for number in traces.numbers))
    wanted = parse_entries(request.tasks, "tasks") if request.tasks else there
    for task in wanted:
        if task not in there:
            raise unknown(f"task of the traces in '{request.traces}'", task, there)
    queryless = [one for one in asked.presses if Reads.QUERIES not in one.press.reads]
    presses, _ = ready_presses(queryless, source.facts, err)

    def measuring(number: int) -> Callable[[], SampleCosts]:
        return lambda: costs_of_trace(traces.read(number), manifest, presses, Protect(*asked.protect), asked.budgets)

    shared = ("model", "weights", "kv_heads", "seed", "rollout", "dtype", "attention", "device")
    facts = {"origin": "traces", **{name: getattr(manifest, name) for name in shared}}
    work = []
    for task in wanted:
        numbers = [number for number in traces.numbers if traces.entry(number).task == task][: request.samples]
        samples = [
            (traces.entry(number), manifest.data[f"{task}:{traces.entry(number).subtask}"], measuring(number))
            for number in numbers
        ]
        work.append(_Work(task, facts, samples))
    return presses, work


def _report(work: _Work, asked: _Asked, presses: Mapping[str, Press], costs: Sequence[SampleCosts]) -> CostReport:
    """Put the costs of all samples together; a press that failed on one is left out."""
    from kvbench.cost_report import CostProtocol, CostReport, CostSample
    from kvbench.environment import describe_environment

    first, last = asked.protect
    protocol = CostProtocol(
        **work.facts,
        task=work.task,
        protect_first=first,
        protect_last=last,
        budgets=tuple(budget.label for budget in asked.budgets),
        layers=costs[0].layers,
    )
    samples = [
        CostSample(
            sample=entry.sample,
            sample_hash=entry.sample_hash,
            subtask=entry.subtask,
            source=entry.source,
            data=data,
            tokens=entry.tokens,
            future_tokens=cost.future_tokens,
        )
        for (entry, data, _), cost in zip(work.samples, costs, strict=True)
    ]
    measured = {
        label: _press_cost(label, press, costs)
        for label, press in presses.items()
        if all(label in cost.normalised for cost in costs)
    }
    return CostReport(protocol=protocol, samples=samples, environment=describe_environment(), presses=measured)


def _press_cost(label: str, press: Press, costs: Sequence[SampleCosts]) -> PressCost:
    import torch

    from kvbench.cost_report import PressCost
    from kvbench.records import press_identity

    evicted = torch.stack([cost.evicted[label] for cost in costs])  # [samples, layers, kv_heads, budgets]
    return PressCost(
        identity=press_identity(label, press.identity()),
        reads=tuple(sorted(press.reads)),
        normalised=_rounded(torch.stack([cost.normalised[label] for cost in costs]).tolist()),
        evicted=_rounded(evicted.mean(dim=(1, 2)).tolist()),
        evicted_by_head=_rounded(evicted.mean(dim=0).tolist()),
        ranking_seconds=[round(cost.ranking_seconds[label], 6) for cost in costs],
        prefill_seconds=[round(cost.prefill_seconds, 6) for cost in costs if cost.prefill_seconds is not None],
    )


def _rounded(numbers: Any) -> Any:
    """Return nested lists of numbers with six significant digits."""
    return [_rounded(part) for part in numbers] if isinstance(numbers, list) else float(f"{numbers:.6g}")


def _layout(report: CostReport, summaries: Sequence[CostSummary], to: Path) -> Layout:
    protocol = report.protocol
    heads = len(protocol.layers) * protocol.kv_heads
    columns = {
        "AUC": [_number(one.mean.mean) for one in summaries],
        "95 % interval": [_span(one.mean.low, one.mean.high) for one in summaries],
        "worst head": [f"{_number(one.worst_mean)} at {one.worst[0]}.{one.worst[1]}" for one in summaries],
        "> random": ["" if one.worse_than_random is None else str(one.worse_than_random) for one in summaries],
        "tokens/s": [
            f"{one.speed:.2g}" if one.speed < 10 else f"{float(f'{one.speed:.2g}'):,.0f}" for one in summaries
        ],
    }
    timed = [one.share_of_prefill for one in summaries]
    if any(timed):
        columns["of prefill"] = ["" if share is None else f"{100 * share:.1f} %" for share in timed]
    origin = "" if protocol.origin == "model" else ", from stored traces"
    notes = [
        "AUC: cost of the ranking over all budgets as a multiple of the least possible, mean over "
        f"{heads} heads and {len(report.samples)} samples{origin}; lower is better",
        "worst head: highest mean over samples, at layer.head; > random: heads whose mean is above random's",
        "tokens/s: ranked per second and head" + "; of prefill: time of ranking over time of prefill" * any(timed),
        f"first and last protected, in the best ranking too: {protocol.protect_first},{protocol.protect_last}",
        f"written to {report.file(to)}",
    ]
    groups = [[Column(head, values)] for head, values in columns.items()]
    title = f"{protocol.task}, {protocol.model}: future attention evicted"
    return Layout(title, Column("press", [one.press for one in summaries]), groups, notes)


def _plain(report: CostReport, summaries: Sequence[CostSummary], to: Path) -> dict[str, Any]:
    """Return a report in numbers as plain data."""
    presses = [asdict(one) for one in summaries]
    return {"task": report.protocol.task, "file": str(report.file(to)), "presses": presses}


def _span(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{_number(low)} - {_number(high)}"


def _number(value: float | None) -> str:
    """Write a multiple with what digits matter: 1.24, 28.8, 1,520."""
    if value is None:
        return "n/a"
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
