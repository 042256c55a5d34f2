"""Presses that fail in one way each, but not on every sample."""

from typing import ClassVar

import torch
from torch import Tensor

from kvbench.press import LayerCache, Press, Reads, ScorePress

PRESSES = {
    "faulty_nan": "faulty:Nan",
    "faulty_repeats": "faulty:Repeats",
    "faulty_short": "faulty:Short",
    "faulty_outside": "faulty:Outside",
    "faulty_raises": "faulty:Raises",
    "faulty_hungry": "faulty:Hungry",
}
REASONS = {
    "faulty_nan": "scores are NaN",
    "faulty_repeats": "not a permutation",
    "faulty_short": "expected torch.int64",
    "faulty_outside": "names tokens outside",
    "faulty_raises": "RuntimeError: no luck",
    "faulty_hungry": "out of memory",
}


def strikes(layer: LayerCache) -> bool:
    """Whether this sample is one of the unlucky half."""
    return layer.index == 1 and layer.seed % 2 == 0


class Nan(ScorePress):
    """Scores that are not numbers."""

    paper: ClassVar[str] = "none"
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS})

    def score(self, layer: LayerCache) -> Tensor:
        """Divide by zero."""
        norms = layer.keys.norm(dim=-1)
        return norms * (torch.nan if strikes(layer) else 1)


class _Ranks(Press):
    paper: ClassVar[str] = "none"
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.POSITIONS})

    def sort(self, layer: LayerCache) -> Tensor:
        """Rank newest first, or wrongly."""
        ranking = layer.newest_first()
        return self.spoil(ranking.clone()) if strikes(layer) else ranking

    def spoil(self, ranking: Tensor) -> Tensor:
        """Make a ranking wrong."""
        raise NotImplementedError


class Repeats(_Ranks):
    """A token twice."""

    def spoil(self, ranking: Tensor) -> Tensor:
        """Put the first token in the second place too."""
        ranking[..., 1] = ranking[..., 0]
        return ranking


class Short(_Ranks):
    """A token too few."""

    def spoil(self, ranking: Tensor) -> Tensor:
        """Leave out the last token."""
        return ranking[..., :-1]


class Outside(_Ranks):
    """A token that is not there."""

    def spoil(self, ranking: Tensor) -> Tensor:
        """Count from one."""
        return ranking + 1


class Raises(_Ranks):
    """An exception."""

    def spoil(self, ranking: Tensor) -> Tensor:
        """Fail."""
        raise RuntimeError("no luck")


class Hungry(_Ranks):
    """More memory than there is."""

    def spoil(self, ranking: Tensor) -> Tensor:
        """Ask for an exbibyte."""
        return torch.empty(2**57, dtype=torch.int64)
