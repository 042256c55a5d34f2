"""The press interface: what an eviction policy is given and what it returns.

A press ranks the tokens that one attention layer has cached, once per KV head; a budget is a prefix of that
ranking. To add one, subclass `ScorePress` (a score per token) or `Press` (the order itself) in a file of its
own and name it in an entry point of the group `kvbench.presses`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

if TYPE_CHECKING:
    from kvbench.models import ModelFacts


class Reads(StrEnum):
    """What a press looks at. Queries and the future are captured only if some press of the run reads them."""

    KEYS = "keys"
    VALUES = "values"
    POSITIONS = "positions"
    QUERIES = "queries"
    FUTURE = "future"


ATTENTION_READS = frozenset({Reads.QUERIES, Reads.FUTURE})


class NotCapturedError(RuntimeError):
    """A press read something that it did not declare in `reads`."""


@dataclass(frozen=True)
class LayerCache:
    """What one attention layer has cached, as a press sees it. There is never padding in it.

    Entries ascend in position in every head, and the queries, where they are captured, belong to the last
    `m` entries (all of them after a whole prefill, the newest chunk's in chunked prefill).

    Attributes:
        index: The layer's number in the model, from 0.
        keys: Keys after the rotary embedding, `[batch, kv_heads, n, d]`.
        values: Values, `[batch, kv_heads, n, d]`.
        positions: Each entry's original position in the prompt, int64 `[batch, kv_heads, n]`.
        scaling: What the model multiplies query·key by before the softmax.
        seed: A seed that the sample and the run determine, the same on every device.
    """

    index: int
    keys: Tensor
    values: Tensor
    positions: Tensor
    scaling: float
    seed: int = 0
    captured_queries: Tensor | None = None
    captured_future: Tensor | None = None

    @property
    def n(self) -> int:
        """How many tokens are cached."""
        return self.keys.shape[-2]

    @property
    def kv_heads(self) -> int:
        """How many KV heads the layer has."""
        return self.keys.shape[1]

    @property
    def queries(self) -> Tensor:
        """Queries after the rotary embedding, grouped by KV head: `[batch, kv_heads, g, m, d]`.

        Raises:
            NotCapturedError: No press of the run declares `Reads.QUERIES`.
        """
        if self.captured_queries is None:
            raise NotCapturedError("the queries were not captured: the press must declare Reads.QUERIES")
        batch, _, m, d = self.captured_queries.shape
        return self.captured_queries.view(batch, self.kv_heads, -1, m, d)

    @property
    def future_attention(self) -> Tensor:
        """u of the KVP paper: the attention each token gets from all that come after the cache.

        Per future query the maximum over the g query heads of the KV head, then summed over the queries;
        float32 `[batch, kv_heads, n]`.

        Raises:
            NotCapturedError: No press of the run declares `Reads.FUTURE`.
        """
        if self.captured_future is None:
            raise NotCapturedError("the future attention was not captured: the press must declare Reads.FUTURE")
        return self.captured_future

    def oldest_first(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the entries `start` … `stop − 1` in order of position, for every row and head."""
        entries = torch.arange(self.n, device=self.keys.device)[start:stop]
        return entries.expand(*self.positions.shape[:2], -1)

    def newest_first(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the entries `start` … `stop − 1` against the order of position, for every row and head."""
        return self.oldest_first(start, stop).flip(-1)

    def logits(self, last: int | None = None, block: int = 64) -> Iterator[tuple[slice, Tensor]]:
        """Yield the causal attention logits of the captured queries, a block of queries at a time.

        Never forms the whole m × n matrix: memory is proportional to `block` × n.

        Args:
            last: Only the last so many queries (all by default).
            block: Queries per block; few enough keep the logits in the processor's cache.

        Yields:
            `(rows, logits)`: the slice of the queries, and their float32 logits
            `[batch, kv_heads, g, rows, visible]`, where `visible` counts the entries up to the block's last
            query and entries later than a query are −inf.
        """
        queries = self.queries
        m = queries.shape[-2]
        first = 0 if last is None else max(0, m - last)
        keys = self.keys.float().transpose(-1, -2)  # [batch, kv_heads, d, n]
        for start in range(first, m, block):
            stop = min(start + block, m)
            visible = self.n - m + stop
            rows = queries[..., start:stop, :].float() * self.scaling  # [batch, kv_heads, g, rows, d]
            logits = rows.flatten(2, 3) @ keys[..., :visible]
            logits = logits.view(*rows.shape[:-1], visible)
            later = torch.ones(stop - start, stop - start, dtype=torch.bool, device=logits.device).triu(1)
            logits[..., visible - (stop - start) :].masked_fill_(later, -torch.inf)
            yield slice(start, stop), logits

    def uniform(self, seed: int = 0) -> Tensor:
        """Random numbers in [0, 1) that belong to the tokens: `[batch, kv_heads, n]`, float32.

        They depend on the layer's seed, `seed`, the layer, the KV head and the token's original position
        only, so they are the same on every device and stay a token's own when the cache is compressed again.
        """
        length = int(self.positions.max()) + 1
        heads = [self.generator(seed, head).random(length) for head in range(self.kv_heads)]
        table = torch.from_numpy(np.stack(heads)).to(self.keys.device, torch.float32)  # [kv_heads, length]
        return table.expand(len(self.positions), -1, -1).gather(-1, self.positions)

    def generator(self, *stream: int) -> np.random.Generator:
        """Return the layer's random generator number `stream`, the same on every device."""
        return np.random.default_rng([self.seed, self.index, *stream])


class Press(BaseModel, ABC):
    """An eviction policy: a total order of a layer's cached tokens, one per KV head.

    A press is immutable: its fields are its parameters, given on the command line as `name:field=value`,
    each with a default, an allowed range and a description. It knows nothing of budgets, tasks or protected
    tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    paper: ClassVar[str]
    """Where the method was published, as "Title, arXiv number (venue)"."""
    reads: ClassVar[frozenset[Reads]]
    """What `sort` looks at."""
    evicts: ClassVar[bool] = True
    """False for the full cache alone: it has no budgets, only the whole context."""
    version: ClassVar[int] = 1
    """Raised when the ranking changes, so that old results are not taken for new ones."""

    @abstractmethod
    def sort(self, layer: LayerCache) -> Tensor:
        """Rank the tokens of one layer, most worth keeping first.

        Returns:
            int64 `[batch, kv_heads, n]`: for each batch row and KV head a permutation of 0 … n−1, the same
            whenever the input is the same. The input is not written to.
        """

    def for_model(self, model: ModelFacts) -> Self:
        """Return the press made ready for one model; most presses need nothing and return themselves.

        Raises:
            UsageError: The press cannot run on this model (a learned press without its checkpoint, say).
        """
        return self

    def identity(self) -> dict[str, object]:
        """Return all that decides the ranking: version, parameters, and a learned press's weights."""
        return {"version": self.version, **self.model_dump(mode="json")}


class ScorePress(Press):
    """A press whose order is that of a score per token, highest first."""

    static_scores: ClassVar[bool] = False
    """Whether a token's score depends only on its key, value and original position, and on nothing that comes with
    other tokens: compressed again, a cache then needs scores for its new tokens alone."""

    @abstractmethod
    def score(self, layer: LayerCache) -> Tensor:
        """Score the tokens of one layer: `[batch, kv_heads, n]`, higher is kept longer."""

    def sort(self, layer: LayerCache) -> Tensor:
        """Rank by descending score in float32; ties keep the order of positions on every machine."""
        return by_score(self.score(layer))


def by_score(scores: Tensor) -> Tensor:
    """Return the ranking of `scores`, `[..., n]`: descending, with ties in order of position.

    Raises:
        ValueError: A score is NaN, which has no place in an order.
    """
    if nans := int(scores.isnan().sum()):
        raise ValueError(f"{nans} of {scores.numel()} scores are NaN")
    return scores.float().argsort(dim=-1, descending=True, stable=True)


def split_budget(window: Tensor, best: Tensor, share: float) -> Tensor:
    """Merge two rankings so that every budget is split between them.

    The first `b` of the result are the first ⌊share · b⌋ of `window`, and of the others the first of `best`.
    These sets are nested: a token that `window` reaches after `best` has given it leaves its place in the
    other part to the next of `best`.

    Args:
        window: A ranking, int64 `[batch, kv_heads, n]`.
        best: Another ranking of the same tokens.
        share: The part of each budget that is `window`'s, from 0 to 1.

    Returns:
        The merged ranking, int64 `[batch, kv_heads, n]`.
    """
    n = window.shape[-1]
    sizes = np.floor(share * np.arange(n + 1) + 1e-9)  # 0.7 · 10 must count as 7
    widens = (np.diff(sizes) > 0).tolist()
    pairs = zip(window.reshape(-1, n).tolist(), best.reshape(-1, n).tolist(), strict=True)
    merged = [_merge(window_row, best_row, widens) for window_row, best_row in pairs]
    return torch.tensor(merged, dtype=torch.int64, device=window.device).view(window.shape)


def _merge(window: list[int], best: list[int], widens: list[bool]) -> list[int]:
    taken = [False] * len(window)
    merged: list[int] = []
    entering, fillers = iter(window), iter(best)
    for window_grows in widens:
        token = next(entering) if window_grows else None
        while token is None or taken[token]:
            token = next(fillers)
        taken[token] = True
        merged.append(token)
    return merged


def sample_seed(seed: int, sample: str) -> int:
    """Return a 63-bit seed for one sample of a run."""
    return int.from_bytes(sha256(f"{seed}\0{sample}".encode()).digest()[:8], "big") >> 1
