"""Variants, the cells of a sample's grid, and what comes of running a prompt under them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kvbench.press import Press
from kvbench.prompts import Prompt
from kvbench.ranked_cache import Kept
from kvbench.ranking import Protect, Rankers
from kvbench.task import Answer, Question


@dataclass(frozen=True)
class Variant:
    """A press at a budget of tokens per KV head, or (no press) the full cache."""

    press: str | None
    budget: int


@dataclass(frozen=True)
class Job:
    """A prompt and all that it is to be answered under.

    Attributes:
        prompt: Context and questions.
        questions: The prompt's questions, in its order.
        presses: By label, ready for the model; a press that fails does not stop the others.
        variants: What to answer: budgets below the context's length, and the full cache.
        protected: What stands in front of every ranking.
        seed: The sample's seed.
    """

    prompt: Prompt
    questions: Sequence[Question]
    presses: Mapping[str, Press]
    variants: Collection[Variant]
    protected: Protect
    seed: int

    def rankers(self) -> Rankers:
        """Return the presses that some variant asks for, at work."""
        asked = {variant.press for variant in self.variants}
        presses = {label: press for label, press in self.presses.items() if label in asked}
        return Rankers(presses, self.protected)


@dataclass
class Timings:
    """Seconds spent on one prompt."""

    prefill: float = 0.0
    ranking: dict[str, float] = field(default_factory=dict)
    """Per press, all layers."""
    gathering: float = 0.0
    """Copying what the presses keep into caches of their own."""
    answering: float = 0.0

    def add(self, other: Timings) -> None:
        """Add the seconds of another batch of the same prompt."""
        self.prefill += other.prefill
        self.gathering += other.gathering
        self.answering += other.answering
        for press, seconds in other.ranking.items():
            self.ranking[press] = self.ranking.get(press, 0.0) + seconds


@dataclass
class Outcome:
    """What came of one prompt.

    Attributes:
        answers: Per variant the answers to the prompt's questions, in their order.
        kept: Per variant what was left of the cache, measured.
        peaks: Per variant the most entries per KV head that a layer held at any time.
        failures: Per press that failed, why; "full" if the full cache did.
        timings: Where the time went.
        peak_bytes: The most memory that was held meanwhile; none where it was not measured.
    """

    answers: dict[Variant, list[Answer]]
    kept: dict[Variant, Kept]
    peaks: dict[Variant, int]
    failures: dict[str, str]
    timings: Timings
    peak_bytes: int | None = None
