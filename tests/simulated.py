"""Results that a run might have written, made without a model."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.records import FULL, REPEAT, Environment, Protocol, Record, content_hash
from kvbench.store import ResultsFolder

PRESSES = {
    "oracle": 3.5,
    "kvp": 5.0,
    "keydiff": 6.4,
    "tova": 6.8,
    "snapkv": 7.0,
    "h2o": 7.6,
    "keyformer": 7.9,
    "k_norm": 8.0,
    "lagkv": 8.2,
    "streaming_llm": 9.5,
    "random": 10.2,
}
"""For each press the log2 of the budget at which it scores half of the full cache."""


def make_protocol(**changes: Any) -> Protocol:
    fields: dict[str, Any] = {
        "model": "smollm2-135m",
        "weights": "sha256:0123",
        "task": "ruler-4k",
        "task_version": 1,
        "metric": "recall",
        "binary": False,
        "schedule": "after-prefill",
        "chunk": None,
        "question": "inside",
        "protect_first": 4,
        "protect_last": 16,
        "dtype": "float32",
        "attention": "sdpa",
        "device": "cpu",
        "seed": 42,
    }
    return Protocol(**(fields | changes))


def make_environment() -> Environment:
    return Environment(
        kvbench="0.1.0",
        python="3.11",
        torch="2.8",
        transformers="5.24",
        processor="a processor",
        threads=2,
        platform="Linux",
    )


def make_record(
    press: str = "kvp", budget: str = "256", sample: str = "niah/0", score: float | None = 1.0, **changes: Any
) -> Record:
    """Make a record; without a score it is a failed one."""
    context = changes.get("context_tokens", 1000)
    tokens = context if budget in (FULL, REPEAT) else min(context, _tokens(budget, context))
    fields: dict[str, Any] = {
        "key": content_hash([press, budget, sample, changes.get("question", 0)]),
        "environment": make_environment().hash,
        "press": press,
        "press_identity": content_hash(press),
        "budget": budget,
        "budget_tokens": tokens,
        "sample": sample,
        "sample_hash": content_hash(sample),
        "data": "words:0123",
        "subtask": sample.partition("/")[0],
        "source": sample,
        "context_tokens": context,
        "compressed": tokens < context,
        "status": "ok" if score is not None else "failed",
        "error": None if score is not None else "OutOfMemoryError: 3 GB",
        "score": score,
    }
    if score is not None:
        fields |= {
            "prediction": "The number is 7421. — 数字",
            "targets": ("7421",),
            "new_tokens": 12,
            "stopped": "end",
            "kept_min": tokens,
            "kept_max": tokens,
            "kept_bytes": tokens * 46080,
            "prefill_seconds": 1.25,
            "ranking_seconds": 0.125,
            "answering_seconds": 0.5,
        }
    return Record(**(fields | changes))


def compress(file: Path) -> Path:
    """Put a file of records' compressed form, as any gzip makes it, in its place."""
    compressed = file.with_name(f"{file.name}.gz")
    compressed.write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    return compressed


def simulate(
    path: Path,
    protocol: Protocol | None = None,
    presses: Mapping[str, float] = PRESSES,
    budgets: Sequence[str] = ("64", "128", "256", "512", "1024", "2048"),
    subtasks: Sequence[str] = ("niah_single_1", "vt", "qa_1"),
    samples: int = 8,
    context: int = 4000,
    failing: float = 0.0,
    seed: int = 0,
) -> Protocol:
    """Write results in which scores rise with the log of the budget towards the full cache's 0.8."""
    protocol = protocol or make_protocol()
    random = np.random.default_rng(seed)
    cells = [(FULL, FULL, 0.8)]
    for press, middle in presses.items():
        for budget in budgets:
            tokens = min(context, _tokens(budget, context))
            cells.append((press, budget, 0.8 / (1 + np.exp(1.5 * (middle - np.log2(tokens))))))
    with ResultsFolder(path).writer() as writer:
        writer.add_environment(make_environment())
        for sample in (f"{subtask}/{index}" for subtask in subtasks for index in range(samples)):
            records = []
            for press, budget, chance in cells:
                score = None if random.random() < failing else random.binomial(4, chance) / 4
                records.append(make_record(press, budget, sample, score, context_tokens=context))
            writer.append(protocol, records)
    return protocol


def _tokens(budget: str, context: int) -> int:
    return round(context * float(budget[:-1]) / 100) if budget.endswith("%") else int(budget)
