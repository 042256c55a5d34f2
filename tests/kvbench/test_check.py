"""`check_press` finds each kind of wrong press, and passes right ones."""

from typing import Any, ClassVar

import pytest
import torch
from pydantic import PrivateAttr
from torch import Tensor

from kvbench.check import CHECKS, check_press
from kvbench.models import ModelFacts
from kvbench.press import LayerCache, Press, Reads, ScorePress, by_score
from kvbench.registry import make_press


class Wrong(Press):
    """Ranks by recency, which the presses below get wrong in one way each."""

    paper: ClassVar[str] = "None"
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS})

    def sort(self, layer: LayerCache) -> Tensor:
        return layer.newest_first().contiguous()


class Repeats(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        ranking = super().sort(layer)
        ranking[..., 0] = ranking[..., -1]
        return ranking


class BeyondTheCache(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        return super().sort(layer) + 1


class ShortIntegers(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        return super().sort(layer).int()


class OneRankingForAll(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        return super().sort(layer)[:, :1]


class NotATensor(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        result: Any = super().sort(layer).tolist()
        return result


class Unseeded(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        return torch.rand(layer.positions.shape).argsort(-1)


class Remembers(Wrong):
    _seen: list[int] = PrivateAttr(default_factory=list)

    def sort(self, layer: LayerCache) -> Tensor:
        self._seen.append(layer.n)
        return by_score((layer.keys.float() * len(set(self._seen))).cos().sum(-1))


class WritesKeys(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        layer.keys.neg_()
        return super().sort(layer)


class MixesRows(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        return by_score((layer.keys - layer.keys.mean(dim=0)).float().norm(dim=-1) + layer.keys.float().sum(-1))


class NeedsAWindow(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        if layer.n < 64:
            raise IndexError(f"64 tokens, {layer.n} given")
        return super().sort(layer)


class NeedsOneQueryHeadPerKvHead(Wrong):
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS, Reads.QUERIES})

    def sort(self, layer: LayerCache) -> Tensor:
        batch, heads, _, m, d = layer.queries.shape
        return by_score((layer.queries.reshape(batch, heads, m, d)[..., -1:, :] * layer.keys).float().sum(-1))


class FloatOnly(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        return by_score(layer.keys @ torch.ones(layer.keys.shape[-1]))


class NeedsAllQueries(Wrong):
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS, Reads.QUERIES})

    def sort(self, layer: LayerCache) -> Tensor:
        return by_score((layer.queries.mean(dim=2) * layer.keys).float().sum(-1))


class ReadsQueries(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        return by_score(layer.keys.float().sum(-1) + layer.queries.float().mean())


class ReadsFuture(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        return by_score(layer.future_attention)


class ReadsValues(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        return by_score(layer.values.float().norm(dim=-1))


class ReadsPositions(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        return by_score((layer.positions % 7).float())


class DividesByTheSpread(ScorePress):
    paper: ClassVar[str] = "None"
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS})

    def score(self, layer: LayerCache) -> Tensor:
        norms = layer.keys.float().norm(dim=-1)
        return (norms - norms.mean(-1, keepdim=True)) / norms.std(-1, keepdim=True, correction=0)


def failed(press: Press) -> dict[str, str]:
    """What the press fails, with the reason."""
    return {result.name: result.detail for result in check_press(press, repeats=0).results if not result.passed}


@pytest.mark.parametrize(
    ("press", "check", "reason"),
    [
        (Repeats(), "returns a permutation per head", "must name each of 0 … 199 once"),
        (BeyondTheCache(), "returns a permutation per head", "must name each of 0 … 199 once"),
        (ShortIntegers(), "returns a permutation per head", "torch.int32 (2, 3, 200)"),
        (OneRankingForAll(), "returns a permutation per head", "torch.int64 (2, 1, 200)"),
        (NotATensor(), "returns a permutation per head", "sort returned list"),
        (Unseeded(), "ranks the same cache the same way", "another ranking"),
        (Remembers(), "ranks the same cache the same way", "another ranking"),
        (WritesKeys(), "leaves its input alone", "sort wrote to keys"),
        (MixesRows(), "ranks each row of a batch by itself", "row 0 of a batch of 3"),
        (NeedsAWindow(), "ranks a cache of any length", "n = 1: IndexError: 64 tokens, 1 given"),
        (NeedsOneQueryHeadPerKvHead(), "ranks with any number of query heads", "3 query heads per KV head"),
        (FloatOnly(), "ranks in any precision", "torch.bfloat16: RuntimeError"),
        (NeedsAllQueries(), "ranks a cache that was compressed before", "queries of the last 20 of 100"),
        (ReadsQueries(), "reads only what it declares", "must declare Reads.QUERIES"),
        (ReadsFuture(), "reads only what it declares", "must declare Reads.FUTURE"),
        (ReadsValues(), "reads only what it declares", "depends on the values"),
        (ReadsPositions(), "reads only what it declares", "depends on the positions"),
        (DividesByTheSpread(), "is finite on degenerate inputs", "scores are NaN"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Press) else "",
)
def test_each_kind_of_wrong_press_fails_its_check(press: Press, check: str, reason: str) -> None:
    failures = failed(press)
    assert reason in failures[check]


@pytest.mark.parametrize(
    "press",
    [WritesKeys(), NeedsAWindow(), ReadsQueries(), ReadsValues(), ReadsPositions(), DividesByTheSpread()],
    ids=lambda press: type(press).__name__,
)
def test_a_press_wrong_in_one_way_fails_little_else(press: Press) -> None:
    assert len(failed(press)) <= 2


def test_a_right_press_passes_and_is_timed() -> None:
    report = check_press(make_press("k_norm"), repeats=3)
    assert report.passed
    assert [result.name for result in report.results] == [*CHECKS, "ranks 4096 tokens"]
    assert report.milliseconds is not None
    assert 0 < report.milliseconds < 10_000
    assert f"{report.milliseconds:.1f} ms per layer" in report.results[-1].detail


class FailsOnLongCaches(Wrong):
    def sort(self, layer: LayerCache) -> Tensor:
        if layer.n > 1000:
            raise MemoryError("too long")
        return super().sort(layer)


def test_a_press_that_fails_at_the_timed_length_is_not_timed() -> None:
    report = check_press(FailsOnLongCaches())
    assert report.milliseconds is None
    assert not report.passed
    assert report.results[-1].detail == "4096 tokens: MemoryError: too long"


class WantsItsModel(Wrong):
    _heads: int = PrivateAttr(default=0)

    def for_model(self, model: ModelFacts) -> "WantsItsModel":
        ready = self.model_copy()
        ready._heads = model.kv_heads
        return ready

    def sort(self, layer: LayerCache) -> Tensor:
        if layer.kv_heads != self._heads:
            raise ValueError(f"made for {self._heads} KV heads, given {layer.kv_heads}")
        return super().sort(layer)


def test_a_learned_press_is_checked_in_its_model_s_shape() -> None:
    facts = ModelFacts(name="m", weights="none", layers=1, kv_heads=2, heads=8, head_dim=16, window=512)
    assert check_press(WantsItsModel(), facts, repeats=0).passed
    assert "made for 0 KV heads" in next(iter(failed(WantsItsModel()).values()))
