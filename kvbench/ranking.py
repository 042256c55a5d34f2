"""Presses at work: rank, check, protect; a press that fails does not stop the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.memory import is_out_of_memory
from kvbench.press import LayerCache, Press, ScorePress, by_score


@dataclass(frozen=True)
class Protect:
    """How many first and last tokens stand in front of every ranking."""

    first: int
    last: int


class Rankers:
    """The presses of one prompt.

    Attributes:
        presses: By label.
        seconds: Per press, spent on ranking so far.
        failures: Per press that failed, why; it is not asked again.
    """

    def __init__(self, presses: Mapping[str, Press], protected: Protect):
        """Start with presses that are ready for the model."""
        self.presses = dict(presses)
        self.protected = protected
        self.seconds = dict.fromkeys(presses, 0.0)
        self.failures: dict[str, str] = {}

    def rank(self, label: str, layer: LayerCache, scores: Tensor | None = None) -> Tensor | None:
        """Return a press's ranking of a layer, protected tokens first; none if the press has failed.

        Args:
            label: The press.
            layer: What it ranks.
            scores: Its static scores of these tokens, where they are known.

        Returns:
            int64 `[batch, kv_heads, n]`.
        """

        def rank() -> Tensor:
            ranking = self.presses[label].sort(layer) if scores is None else by_score(scores)
            _check(ranking, layer)
            return protect(ranking, self.protected)

        return self._run(label, layer, rank)

    def score(self, label: str, layer: LayerCache) -> Tensor | None:
        """Return a press's scores of a layer, float32 `[batch, kv_heads, n]`; none unless they are static."""
        press = self.presses[label]
        if isinstance(press, ScorePress) and press.static_scores:
            return self._run(label, layer, lambda: press.score(layer).float())
        return None

    def _run(self, label: str, layer: LayerCache, work: Callable[[], Tensor]) -> Tensor | None:
        """Do a press's work on the press's time; none if it fails now or has failed before."""
        if label in self.failures:
            return None
        started = now(layer.keys.device)
        try:
            done = work()
        except Exception as error:  # a press may fail with anything
            if is_out_of_memory(error):  # which may be others' doing
                raise
            self.failures[label] = f"layer {layer.index}: {type(error).__name__}: {error}"
            return None
        self.seconds[label] += now(layer.keys.device) - started
        return done


def protect(ranking: Tensor, protected: Protect) -> Tensor:
    """Put the protected tokens in front of a ranking: the first ones, then the last from the end backwards.

    Args:
        ranking: int64 `[batch, kv_heads, n]`.
        protected: How many.

    Returns:
        A permutation again, int64 `[batch, kv_heads, n]`; the other tokens keep their order.
    """
    batch, kv_heads, n = ranking.shape
    first = min(protected.first, n)
    last = min(protected.last, n - first)
    front = torch.cat([torch.arange(first), torch.arange(n - 1, n - 1 - last, -1)]).to(ranking.device)
    others = ranking[(ranking >= first) & (ranking < n - last)].view(batch, kv_heads, n - first - last)
    return torch.cat([front.expand(batch, kv_heads, -1), others], dim=-1)


def now(device: torch.device) -> float:
    """Return a clock's seconds, once all that was asked of `device` is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def _check(ranking: Tensor, layer: LayerCache) -> None:
    """Refuse what is not a permutation per KV head.

    Raises:
        ValueError: It is not.
    """
    expected = (*layer.keys.shape[:2], layer.n)
    if tuple(ranking.shape) != expected or ranking.dtype != torch.int64:
        raise ValueError(f"the ranking is {ranking.dtype} {tuple(ranking.shape)}, expected torch.int64 {expected}")
    if int(ranking.min()) < 0 or int(ranking.max()) >= layer.n:
        raise ValueError(f"the ranking names tokens outside 0 … {layer.n - 1}")
    seen = torch.zeros_like(ranking, dtype=torch.bool).scatter_(-1, ranking, True)
    if not bool(seen.all()):
        raise ValueError("the ranking is not a permutation: it repeats tokens")


def whole_layer(
    index: int,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    seed: int,
    queries: Tensor | None = None,
    future: Tensor | None = None,
) -> LayerCache:
    """Return a layer of which nothing has been evicted: its positions are 0 … n − 1."""
    positions = torch.arange(keys.shape[2], device=keys.device).expand(*keys.shape[:2], -1)
    return LayerCache(index, keys, values, positions, scaling, seed, queries, future)
