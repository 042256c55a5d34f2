"""`kvbench run --dry-run`: what a run would do, and what it would take."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from kvbench.models import ModelSource
    from kvbench.sweep import Plan, Settings, WorkItem

_RECORD_BYTES = 640
"""A record on disk: those of `make demo` are 633 bytes in the mean."""


def print_plan(plan: Plan, source: ModelSource, settings: Settings, as_json: bool, out: Console) -> None:
    """Print cells, prefills, tokens, disk and memory of a plan, and what is done already."""
    facts = estimate(plan, source, settings)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    out.print(_table("work", ("task", "prefills", "cells", "context tokens"), _work(plan)))
    out.print(f"presses: {', '.join(facts['presses'])}", highlight=False)
    out.print(
        f"weights: {facts['weights']}, {facts['dtype']} on {facts['device']}, {facts['attention']} attention",
        highlight=False,
    )
    out.print(
        f"{facts['cells']} cells to compute in {facts['prefills']} prefills of {facts['context_tokens']:,} tokens "
        f"in all, {facts['already_done']} are done already",
        highlight=False,
    )
    if facts["beyond_window"]:
        out.print(
            f"{facts['beyond_window']} of {facts['prefills']} prompts need more positions than the {facts['window']} "
            f"that {facts['model']} knows: their cells will fail",
            highlight=False,
        )
    out.print(
        f"disk: about {spell_bytes(facts['disk_bytes'])} of records; memory: {spell_bytes(facts['weight_bytes'])} of "
        f"weights and up to {spell_bytes(facts['cache_bytes'])} of caches",
        highlight=False,
    )


def estimate(plan: Plan, source: ModelSource, settings: Settings) -> dict[str, Any]:
    """Work out what a plan takes, as plain data."""
    from kvbench.half_precision import multiplied_slowly
    from kvbench.models import DTYPES, parameter_count

    dtype = DTYPES[settings.dtype]
    weight_bytes = 4 if multiplied_slowly(dtype, settings.device) else dtype.itemsize
    facts = source.facts
    token_bytes = 2 * facts.layers * facts.kv_heads * facts.head_dim * dtype.itemsize
    return {
        "model": source.name,
        "weights": source.weights,
        "dtype": settings.dtype,
        "device": settings.device,
        "attention": settings.attention,
        "presses": list(plan.presses),
        "cells": plan.cells,
        "already_done": plan.done,
        "prefills": len(plan.items),
        "context_tokens": sum(item.context_tokens for item in plan.items),
        "window": facts.window,
        "beyond_window": sum(item.longest > facts.window for item in plan.items),
        "new_tokens_at_most": sum(_new_tokens(item) for item in plan.items),
        "disk_bytes": plan.cells * _RECORD_BYTES,
        "weight_bytes": parameter_count(source.config) * weight_bytes,
        "cache_bytes": max((cached_tokens(item) for item in plan.items), default=0) * token_bytes,
    }


def cached_tokens(item: WorkItem) -> int:
    """Return the most tokens that are cached at once while an item runs, per KV head.

    After prefill: the whole context, the largest budget of each press, and every row's own tokens. In chunks: every
    variant's budget, a chunk for as many variants as a forward pass takes, and the same own tokens.
    """
    variants = {cell.variant for cell in item.cells}
    largest: Counter[str] = Counter()
    for variant in variants:
        if variant.press is not None:
            largest[variant.press] = max(largest[variant.press], variant.budget)
    n = item.context_tokens
    own = len(variants) * (item.longest - n)
    if item.protocol.chunk is None:
        return n + sum(largest.values()) + own
    from kvbench.answering import TOKENS_PER_PASS

    return sum(variant.budget for variant in variants) + min(TOKENS_PER_PASS, len(variants) * item.protocol.chunk) + own


def _new_tokens(item: WorkItem) -> int:
    return sum(item.sample.questions[cell.question].max_new_tokens for cell in item.cells)


def _work(plan: Plan) -> Iterable[tuple[str, str, str, str]]:
    groups: dict[str, list[WorkItem]] = {}
    for item in plan.items:
        groups.setdefault(f"{item.protocol.task}:{item.sample.subtask}", []).append(item)
    for name, items in groups.items():
        cells = sum(len(item.cells) for item in items)
        tokens = sum(item.context_tokens for item in items)
        yield name, f"{len(items):,}", f"{cells:,}", f"{tokens:,}"


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        table.add_row(*row)
    return table


def spell_bytes(count: float) -> str:
    """Write a number of bytes with three digits."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
