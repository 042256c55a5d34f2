"""The press `strided`."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from kvbench.press import LayerCache, Press, Reads


class Strided(Press):
    """Every so many tokens one, from the newest backwards; then the others, newest first."""

    paper: ClassVar[str] = "none"
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.POSITIONS})

    stride: int = Field(4, ge=1, description="One token of so many comes first.")

    def sort(self, layer: LayerCache) -> Tensor:
        """Rank by whether a token lies on the stride, then by age."""
        newest = layer.newest_first()  # [batch, kv_heads, n]
        on_stride = (layer.n - 1 - newest) % self.stride == 0
        order = torch.argsort(~on_stride, dim=-1, stable=True)
        return newest.gather(-1, order)
