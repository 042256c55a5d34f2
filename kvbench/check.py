"""`kvbench check PRESS`: whether a press keeps the contract of `kvbench.press`, and what it costs.

Every check runs the press on caches of random numbers, or on degenerate ones, in the model's shape.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvbench.press import LayerCache, Press, Reads, ScorePress

if TYPE_CHECKING:
    from kvbench.models import ModelFacts

LENGTHS = (1, 2, 3, 5, 17, 63, 64, 65, 130, 300)
"""Cache lengths: shorter than the windows that presses use, around them, and longer."""
TIMED_LENGTH = 4096


@dataclass(frozen=True)
class Shape:
    """The shape of an attention layer; the defaults are SmolLM2-135M's."""

    kv_heads: int = 3
    heads: int = 9
    head_dim: int = 64


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: The requirement, as a sentence about the press.
        passed: Whether the press meets it.
        detail: What was tried, or how the press failed.
    """

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class CheckReport:
    """The outcome of all checks of one press.

    Attributes:
        results: One per check.
        milliseconds: Median time to rank one layer of `tokens` tokens; none if the press failed on it.
        tokens: The length of the timed cache.
    """

    results: tuple[CheckResult, ...]
    milliseconds: float | None
    tokens: int = TIMED_LENGTH

    @property
    def passed(self) -> bool:
        """Whether the press keeps the whole contract."""
        return all(result.passed for result in self.results)


class Violation(Exception):
    """A press breaks its contract; the message says how."""


def check_press(press: Press, model: ModelFacts | None = None, repeats: int = 5) -> CheckReport:
    """Check a press against the contract of `Press.sort` and time it.

    Args:
        press: The press.
        model: The model that the press is made ready for and whose layers' shape is used. Without one, the
            press is taken as it is, in SmolLM2-135M's shape.
        repeats: How many times the press is timed.

    Raises:
        UsageError: The press cannot run on the model.
    """
    shape = Shape() if model is None else Shape(model.kv_heads, model.heads, model.head_dim)
    ready = press if model is None else press.for_model(model)
    results = tuple(_run(name, check, ready, shape) for name, check in CHECKS.items())
    return CheckReport(results, _time(ready, shape, repeats))


def random_layer(
    shape: Shape,
    n: int,
    *,
    batch: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    queries: int | None = None,
) -> LayerCache:
    """Return a layer of random numbers with everything captured.

    Args:
        shape: The layer's shape.
        n: How many tokens it has cached.
        batch: Rows.
        seed: Decides the numbers.
        dtype: Of keys, values and queries.
        queries: Only the last so many entries have queries, and positions have gaps, as after chunks that
            were compressed; all entries and none by default.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(heads: int, tokens: int) -> Tensor:
        return torch.randn(batch, heads, tokens, shape.head_dim, generator=generator).to(dtype)

    gaps = torch.ones(batch, shape.kv_heads, n, dtype=torch.int64)
    if queries is not None:
        gaps = torch.randint(1, 4, gaps.shape, generator=generator)
    return LayerCache(
        index=0,
        keys=normal(shape.kv_heads, n),
        values=normal(shape.kv_heads, n),
        positions=gaps.cumsum(dim=-1) - 1,
        scaling=shape.head_dim**-0.5,
        seed=seed,
        captured_queries=normal(shape.heads, n if queries is None else queries),
        captured_future=torch.rand(batch, shape.kv_heads, n, generator=generator),
    )


def _run(name: str, check: Callable[[Press, Shape], str], press: Press, shape: Shape) -> CheckResult:
    try:
        return CheckResult(name, True, check(press, shape))
    except Violation as violation:
        return CheckResult(name, False, str(violation))
    except Exception as error:  # a press may fail with anything
        return CheckResult(name, False, f"{type(error).__name__}: {error}")


def _time(press: Press, shape: Shape, repeats: int) -> float | None:
    layer = random_layer(shape, TIMED_LENGTH, batch=1)
    seconds = []
    try:
        for _ in range(repeats + 1):
            started = time.perf_counter()
            press.sort(layer)
            seconds.append(time.perf_counter() - started)
    except Exception:  # the checks have said why
        return None
    return statistics.median(seconds[1:]) * 1000  # the first call warms up


def _ranked(press: Press, layer: LayerCache) -> Tensor:
    """Rank a layer and make sure that the ranking is one."""
    ranking = press.sort(layer)
    expected = (*layer.keys.shape[:2], layer.n)
    if not isinstance(ranking, Tensor) or ranking.dtype != torch.int64 or tuple(ranking.shape) != expected:
        given = f"{ranking.dtype} {tuple(ranking.shape)}" if isinstance(ranking, Tensor) else type(ranking).__name__
        raise Violation(f"sort returned {given}, it must be torch.int64 {expected} (batch, KV heads, tokens)")
    every = torch.arange(layer.n).expand(expected)
    if not torch.equal(ranking.sort(dim=-1).values.cpu(), every):
        raise Violation(f"with {layer.n} tokens, a head's ranking does not name each of 0 … {layer.n - 1} once")
    return ranking


def _permutation(press: Press, shape: Shape) -> str:
    layer = random_layer(shape, 200)
    _ranked(press, layer)
    return f"torch.int64 {tuple(layer.positions.shape)}, every token of every head once"


def _lengths(press: Press, shape: Shape) -> str:
    for n in LENGTHS:
        with _saying(f"{n} tokens"):
            _ranked(press, random_layer(shape, n))
    return f"{', '.join(map(str, LENGTHS))} tokens"
