"""Variants, the cells of a sample's grid, and what comes of running a prompt under them."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvbench.answering import Answer
from kvbench.ranked_cache import Kept


@dataclass(frozen=True)
class Variant:
    """A press at a budget of tokens per KV head, or (no press) the full cache."""

    press: str | None
    budget: int


@dataclass
class Timings:
    """Seconds spent on one prompt."""

    prefill: float = 0.0
    ranking: dict[str, float] = field(default_factory=dict)
    """Per press, all layers."""
    gathering: float = 0.0
    """Copying what the presses keep into caches of their own."""
    answering: float = 0.0


@dataclass
class Outcome:
    """What came of one prompt.

    Attributes:
        answers: Per variant the answers to the prompt's questions, in their order.
        kept: Per variant what was left of the cache, measured.
        peaks: Per variant the most entries per KV head that a layer held at any time.
        failures: Per press that failed, why.
        timings: Where the time went.
    """

    answers: dict[Variant, list[Answer]]
    kept: dict[Variant, Kept]
    peaks: dict[Variant, int]
    failures: dict[str, str]
    timings: Timings
