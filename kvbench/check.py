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
        milliseconds: Median time to rank one layer of `tokens` tokens; none if it failed or was not timed.
        tokens: The length of the timed cache.
    """

    results: tuple[CheckResult, ...]
    milliseconds: float | None
    tokens: int = TIMED_LENGTH

    @property
    def passed(self) -> bool:
        """Whether the press keeps the whole contract."""
        return all(result.passed for result in self.results)


class ContractError(Exception):
    """A press breaks its contract; the message says how."""


def check_press(press: Press, model: ModelFacts | None = None, repeats: int = 5) -> CheckReport:
    """Check a press against the contract of `Press.sort` and time it.

    Args:
        press: The press.
        model: The model that the press is made ready for and whose layers' shape is used. Without one, the
            press is taken as it is, in SmolLM2-135M's shape.
        repeats: How many times the press is timed; 0 leaves the timing out.

    Raises:
        UsageError: The press cannot run on the model.
    """
    shape = Shape() if model is None else Shape(model.kv_heads, model.heads, model.head_dim)
    ready = press if model is None else press.for_model(model)
    results = [_run(name, check, ready, shape) for name, check in CHECKS.items()]
    milliseconds = None
    if repeats:
        timing, milliseconds = _timed(ready, shape, repeats)
        results.append(timing)
    return CheckReport(tuple(results), milliseconds)


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
    except ContractError as violation:
        return CheckResult(name, False, str(violation))
    except Exception as error:  # a press may fail with anything
        return CheckResult(name, False, f"{type(error).__name__}: {error}")


def _timed(press: Press, shape: Shape, repeats: int) -> tuple[CheckResult, float | None]:
    name = f"ranks {TIMED_LENGTH} tokens"
    layer = random_layer(shape, TIMED_LENGTH, batch=1)
    seconds = []
    try:
        _ranked(press, layer, f"{TIMED_LENGTH} tokens")  # warms up
        for _ in range(repeats):
            started = time.perf_counter()
            press.sort(layer)
            seconds.append(time.perf_counter() - started)
    except Exception as error:  # a press may fail with anything
        return CheckResult(name, False, str(error)), None
    milliseconds = statistics.median(seconds) * 1000
    return CheckResult(name, True, f"{milliseconds:.1f} ms per layer, median of {repeats}"), milliseconds


def _ranked(press: Press, layer: LayerCache, case: str) -> Tensor:
    """Rank a layer and make sure that what comes back is a ranking.

    Raises:
        ContractError: The press fails, or returns something else; the message starts with the case.
    """
    try:
        ranking = press.sort(layer)
    except Exception as error:  # a press may fail with anything
        raise ContractError(f"{case}: {type(error).__name__}: {error}") from error
    expected = (*layer.keys.shape[:2], layer.n)
    if not isinstance(ranking, Tensor):
        raise ContractError(f"{case}: sort returned {type(ranking).__name__}, it must return a tensor")
    if ranking.dtype != torch.int64 or tuple(ranking.shape) != expected:
        given = f"{ranking.dtype} {tuple(ranking.shape)}"
        raise ContractError(f"{case}: sort returned {given}, it must return torch.int64 {expected}")
    every_token = torch.arange(layer.n).expand(expected)
    if not torch.equal(ranking.sort(dim=-1).values.cpu(), every_token):
        raise ContractError(f"{case}: the ranking of a head must name each of 0 … {layer.n - 1} once")
    return ranking


def _is_permutation(press: Press, shape: Shape) -> str:
    layer = random_layer(shape, 200)
    _ranked(press, layer, "200 tokens")
    return f"torch.int64 {tuple(layer.positions.shape)}, every token once per head"


def _is_deterministic(press: Press, shape: Shape) -> str:
    first = _ranked(press, random_layer(shape, 200), "200 tokens")
    _ranked(press, random_layer(shape, 130, seed=1), "130 tokens")
    if not torch.equal(first, _ranked(press, random_layer(shape, 200), "200 tokens again")):
        raise ContractError("the same cache, ranked again after another one, has another ranking")
    return "the same ranking before and after another cache's"


def _leaves_input(press: Press, shape: Shape) -> str:
    layer = random_layer(shape, 200)
    _ranked(press, layer, "200 tokens")
    untouched = _tensors(random_layer(shape, 200))
    if changed := [name for name, tensor in _tensors(layer).items() if not torch.equal(tensor, untouched[name])]:
        raise ContractError(f"sort wrote to {', '.join(changed)}")
    return f"{', '.join(untouched)} unchanged"


def _separates_rows(press: Press, shape: Shape) -> str:
    layer = random_layer(shape, 50, batch=3)
    together = _ranked(press, layer, "3 rows")
    for row in range(3):
        alone = _ranked(press, _row(layer, row), "a row alone")
        if not torch.equal(alone[0], together[row]):
            raise ContractError(f"row {row} of a batch of 3 has another ranking when it is alone")
    return "3 rows of 50 tokens, together and alone"


def _any_length(press: Press, shape: Shape) -> str:
    for n in LENGTHS:
        _ranked(press, random_layer(shape, n), f"n = {n}")
    return f"n = {', '.join(map(str, LENGTHS))}"


def _any_group(press: Press, shape: Shape) -> str:
    groups = sorted({1, 3, shape.heads // shape.kv_heads})
    for group in groups:
        grouped = replace(shape, heads=shape.kv_heads * group)
        _ranked(press, random_layer(grouped, 100), f"{group} query heads per KV head")
    return f"{', '.join(map(str, groups))} query heads per KV head"


def _any_precision(press: Press, shape: Shape) -> str:
    dtypes = (torch.bfloat16, torch.float16, torch.float64)
    for dtype in dtypes:
        _ranked(press, random_layer(shape, 100, dtype=dtype), str(dtype))
    return ", ".join(map(str, dtypes))


def _after_compression(press: Press, shape: Shape) -> str:
    for queries in (1, 20, 100):
        layer = random_layer(shape, 100, queries=queries)
        _ranked(press, layer, f"positions with gaps, queries of the last {queries} of 100 entries")
    return "positions with gaps, queries of the last 1, 20 and 100 of 100 entries"


def _reads_declared(press: Press, shape: Shape) -> str:
    layer = random_layer(shape, 100)
    if Reads.QUERIES not in press.reads:
        layer = replace(layer, captured_queries=None)
    if Reads.FUTURE not in press.reads:
        layer = replace(layer, captured_future=None)
    expected = _ranked(press, layer, "only what is declared was captured")
    other = random_layer(shape, 100, seed=1, queries=100)
    swapped = {
        Reads.KEYS: replace(layer, keys=other.keys),
        Reads.VALUES: replace(layer, values=other.values),
        Reads.POSITIONS: replace(layer, positions=other.positions),
    }
    for what in swapped.keys() - press.reads:
        if not torch.equal(_ranked(press, swapped[what], f"other {what}"), expected):
            raise ContractError(f"the ranking depends on the {what}, which `reads` does not declare")
    return f"reads {', '.join(sorted(press.reads)) or 'nothing but the number of tokens'}"


def _finite_scores(press: Press, shape: Shape) -> str:
    layer = random_layer(shape, 300)
    assert layer.captured_queries is not None
    cases = {
        "constant": (torch.ones_like(layer.keys), torch.ones_like(layer.captured_queries)),
        "zero": (torch.zeros_like(layer.keys), torch.zeros_like(layer.captured_queries)),
        "very large": (layer.keys * 1e4, layer.captured_queries * 1e4),
    }
    for name, (states, queries) in cases.items():
        degenerate = replace(layer, keys=states, values=states, captured_queries=queries)
        _ranked(press, degenerate, f"{name} keys, values and queries")
        if isinstance(press, ScorePress) and not bool(press.score(degenerate).isfinite().all()):
            raise ContractError(f"{name} keys, values and queries: scores that are not finite")
    return f"{', '.join(cases)} keys, values and queries"


def _row(layer: LayerCache, row: int) -> LayerCache:
    assert layer.captured_queries is not None
    assert layer.captured_future is not None
    only = slice(row, row + 1)
    return replace(
        layer,
        keys=layer.keys[only],
        values=layer.values[only],
        positions=layer.positions[only],
        captured_queries=layer.captured_queries[only],
        captured_future=layer.captured_future[only],
    )


def _tensors(layer: LayerCache) -> dict[str, Tensor]:
    return {name: value for name, value in vars(layer).items() if isinstance(value, Tensor)}


CHECKS: dict[str, Callable[[Press, Shape], str]] = {
    "returns a permutation per head": _is_permutation,
    "ranks the same cache the same way": _is_deterministic,
    "leaves its input alone": _leaves_input,
    "ranks each row of a batch by itself": _separates_rows,
    "ranks a cache of any length": _any_length,
    "ranks with any number of query heads": _any_group,
    "ranks in any precision": _any_precision,
    "ranks a cache that was compressed before": _after_compression,
    "reads only what it declares": _reads_declared,
    "is finite on degenerate inputs": _finite_scores,
}
"""Every check by name: a function that returns what it tried, or raises."""
