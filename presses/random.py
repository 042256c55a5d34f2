"""Random eviction: what a press must beat."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from kvbench.press import LayerCache, Reads, ScorePress


class Random(ScorePress):
    """Uniformly random order: the floor that any method must beat.

    Every token draws a number that depends on the run's seed, the sample, the layer, the KV head and the
    token's position, so a run gives the same order on every device. Other values of `seed` are other draws.
    """

    paper: ClassVar[str] = "None: a baseline"
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.POSITIONS})
    static_scores: ClassVar[bool] = True

    seed: int = Field(0, ge=0, description="Which draw, beside what the run's own seed decides.")

    def score(self, layer: LayerCache) -> Tensor:
        """Draw a number per token."""
        return layer.uniform(self.seed)
