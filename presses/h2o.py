"""H2O: heavy hitters and recent tokens."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from kvbench.press import LayerCache, Press, Reads, by_score, split_budget


class H2O(Press):
    """Most attended tokens over all queries, balanced with the most recent ones.

    A heavy hitter is a token with a high accumulated attention `acc_i = Σ_{t ≥ i} softmax_t(i)`, summed over
    the queries t and not divided by how many could see the token, and averaged over the query heads that
    share the KV head. Of a budget of b the ⌊b/2⌋ most recent tokens stay, and the heaviest of the others.
    Both parts grow in step, which makes the splits of all budgets one order.
    """

    paper: ClassVar[str] = (
        "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models, "
        "arXiv:2306.14048 (NeurIPS 2023)"
    )
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS, Reads.QUERIES})

    heavy: float = Field(0.5, ge=0, le=1, description="The heavy hitters' share of every budget.")

    def sort(self, layer: LayerCache) -> Tensor:
        """Split every budget between the most recent and the heaviest tokens."""
        accumulated = torch.zeros_like(layer.positions, dtype=torch.float32)
        for _, logits in layer.logits():
            attention = logits.softmax(dim=-1)  # [batch, kv_heads, g, rows, visible]
            accumulated[..., : logits.shape[-1]] += attention.sum(dim=-2).mean(dim=2)
        return split_budget(layer.newest_first(), by_score(accumulated), 1 - self.heavy)
