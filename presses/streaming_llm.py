"""StreamingLLM: attention sinks and a sliding window."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from kvbench.press import LayerCache, Press, Reads


class StreamingLLM(Press):
    """First tokens, then the most recent: attention sinks and a sliding window.

    The first `sinks` tokens draw attention whatever they say, so they stay, and the rest of the budget is a
    window of the newest tokens. The order is sinks 0 … s−1, then n−1, n−2, …: its first b are the paper's
    cache of size b.
    """

    paper: ClassVar[str] = "Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453 (ICLR 2024)"
    reads: ClassVar[frozenset[Reads]] = frozenset()

    sinks: int = Field(4, ge=0, description="How many of the first tokens come before all others.")

    def sort(self, layer: LayerCache) -> Tensor:
        """Rank sinks first, then by recency."""
        return torch.cat([layer.oldest_first(0, self.sinks), layer.newest_first(self.sinks)], dim=-1)
