"""A press that carries as much as trained agents do."""

from typing import ClassVar

import torch
from pydantic import PrivateAttr
from torch import Tensor

from kvbench.press import LayerCache, Reads, ScorePress


class Weighty(ScorePress):
    """Scores by position, from a table of 8 MB."""

    paper: ClassVar[str] = "none"
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.POSITIONS})

    _table: Tensor = PrivateAttr(default_factory=lambda: torch.arange(2_000_000.0).sin())

    def score(self, layer: LayerCache) -> Tensor:
        """Look the positions up."""
        return self._table[layer.positions]
