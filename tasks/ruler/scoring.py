"""RULER's score: which of the targets a prediction contains."""

from __future__ import annotations

import re
from collections.abc import Sequence

CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f]")


def share_contained(prediction: str, targets: Sequence[str]) -> float:
    """Return the fraction of the targets that occur in the prediction, in upper or lower case."""
    answer = CONTROL_CHARACTERS.sub("\n", prediction.strip()).lower()
    return sum(target.lower() in answer for target in targets) / len(targets)
