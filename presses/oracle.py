"""The oracle: the order that the future itself gives."""

from typing import ClassVar

from torch import Tensor

from kvbench.press import LayerCache, Reads, ScorePress


class Oracle(ScorePress):
    """Attention that the full cache's own answer pays: the bound of any order.

    The score is u of the KVP paper, the attention that a token gets from all tokens after the prompt in a
    rollout with the full cache. Ordering by it costs the least lost attention at every budget, and no press
    can know it.
    """

    paper: ClassVar[str] = "Learning to Evict from Key-Value Cache, arXiv:2602.10238 (ICML 2026)"
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.FUTURE})

    def score(self, layer: LayerCache) -> Tensor:
        """Return u."""
        return layer.future_attention
