"""SnapKV: what the prompt's last tokens look at."""

from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor
from torch.nn import functional

from kvbench.press import LayerCache, Press, Reads, by_score


class SnapKV(Press):
    """Tokens that the prompt's last queries attend to, pooled over neighbours.

    The last `window` queries vote: their softmax over all keys, without the window's own columns, is averaged
    over the window, pooled over positions so that a token's neighbours come with it, and averaged over the
    query heads that share the KV head. The window itself stays: its tokens come first, newest first, then the
    others by score. `window=32,kernel=7,pool=max` is the authors' LongBench setting.
    """

    paper: ClassVar[str] = (
        "SnapKV: LLM Knows What You are Looking for Before Generation, arXiv:2404.14469 (NeurIPS 2024)"
    )
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS, Reads.QUERIES})

    window: int = Field(64, ge=1, description="How many of the last queries vote.")
    kernel: int = Field(5, ge=1, description="Width of the pooling over positions, odd.")
    pool: Literal["avg", "max"] = Field("avg", description="How neighbours are pooled.")

    @field_validator("kernel")
    @classmethod
    def _is_odd(cls, kernel: int) -> int:
        if kernel % 2 == 0:
            raise ValueError("the kernel must be odd, to have a middle")
        return kernel

    def sort(self, layer: LayerCache) -> Tensor:
        """Rank the window first, then by the window's pooled attention."""
        window = min(self.window, layer.queries.shape[-2])
        rest = layer.n - window
        if not rest:
            return layer.newest_first()
        _, logits = next(layer.logits(last=window, block=window))
        votes = logits.softmax(dim=-1)[..., :rest].mean(dim=-2)  # [batch, kv_heads, g, n − window]
        scores = self._pooled(votes).mean(dim=2)
        return torch.cat([layer.newest_first(rest), by_score(scores)], dim=-1)

    def _pooled(self, votes: Tensor) -> Tensor:
        pool = functional.avg_pool1d if self.pool == "avg" else functional.max_pool1d
        pooled: Tensor = pool(votes.flatten(0, 2), self.kernel, stride=1, padding=self.kernel // 2)
        return pooled.view(votes.shape)
