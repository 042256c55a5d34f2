"""RULER's score: which of the targets a prediction contains, in upper or lower case."""

from __future__ import annotations

import re
from collections.abc import Sequence

CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f]")


def share_contained(prediction: str, targets: Sequence[str]) -> float:
    """Return the fraction of the targets that occur in the prediction."""
    contained = _contained(prediction, targets)
    return sum(contained) / len(contained)


def any_contained(prediction: str, targets: Sequence[str]) -> float:
    """Return 1 if one of the targets occurs in the prediction, else 0."""
    return float(any(_contained(prediction, targets)))


def _contained(prediction: str, targets: Sequence[str]) -> list[bool]:
    answer = CONTROL_CHARACTERS.sub("\n", prediction.strip()).strip().lower()
    return [target.lower() in answer for target in targets]
