"""K-Norm: keys of low norm."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from kvbench.press import LayerCache, Reads, ScorePress


class KNorm(ScorePress):
    """Tokens whose keys have the lowest L2 norm.

    A low norm of the key goes with a high attention to the token, but not in a model's first layers, so
    the authors' example leaves layers 0 and 1 uncompressed. A ranking cannot: every layer has the same
    budget. With `skip_layers` the first layers rank by recency instead, which claims nothing about norms.
    """

    paper: ClassVar[str] = (
        "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression, arXiv:2406.11430 (EMNLP 2024)"
    )
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS, Reads.POSITIONS})
    static_scores: ClassVar[bool] = True

    skip_layers: int = Field(0, ge=0, description="How many of the first layers rank by recency instead.")

    def score(self, layer: LayerCache) -> Tensor:
        """Return the negative norm, or the position in a skipped layer."""
        if layer.index < self.skip_layers:
            return layer.positions
        norms: Tensor = torch.linalg.vector_norm(layer.keys.float(), dim=-1)
        return -norms
