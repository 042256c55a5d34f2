"""LagKV: tokens that stand out against those that come after them."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from kvbench.press import LayerCache, Press, Reads, by_score


class LagKV(Press):
    """Tokens whose keys and values vary most on the scale of the next partition.

    After the sinks the cache is cut into partitions of `lag` tokens. Each channel of a partition is scaled by
    the minimum and maximum of the next partition; a token's score is the softmax, over its partition, of the
    standard deviation over its channels, averaged over keys and values. The method keeps the same share
    of every partition, so here all partitions' best come first, then all seconds, and so on. Before them
    come the sinks and then, newest first, the tail that has no next partition: the last `lag` tokens and
    the remainder, or everything where there are fewer than two partitions.
    """

    paper: ClassVar[str] = (
        "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important, arXiv:2504.04704"
    )
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS, Reads.VALUES})

    sinks: int = Field(4, ge=0, description="How many of the first tokens come before all others.")
    lag: int = Field(128, ge=2, description="Tokens per partition.")

    def sort(self, layer: LayerCache) -> Tensor:
        """Rank the sinks and the tail first, then by place within the partition."""
        partitions = max(0, layer.n - self.sinks) // self.lag
        end = self.sinks + max(0, partitions - 1) * self.lag
        kept = [layer.oldest_first(0, self.sinks), layer.newest_first(end)]
        if end == self.sinks:
            return torch.cat(kept, dim=-1)
        whole = slice(self.sinks, end + self.lag)
        scores = (self._scores(layer.keys[..., whole, :]) + self._scores(layer.values[..., whole, :])) / 2
        place = by_score(scores).argsort(dim=-1)  # 0 is the partition's best
        best_first = by_score(-place.flatten(-2)) + self.sinks
        return torch.cat([*kept, best_first], dim=-1)

    def _scores(self, states: Tensor) -> Tensor:
        """Score all but the last partition of `[batch, kv_heads, partitions · lag, d]`."""
        batch, kv_heads, _, d = states.shape
        partitions = states.float().reshape(batch, kv_heads, -1, self.lag, d)
        following = partitions[:, :, 1:]
        low, high = following.amin(dim=-2, keepdim=True), following.amax(dim=-2, keepdim=True)
        span = (high - low).clamp_min(1e-6)  # a channel may be constant
        scaled = (partitions[:, :, :-1] - low) / span
        return torch.softmax(torch.std(scaled, dim=-1), dim=-1)
