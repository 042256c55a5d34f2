"""The task `recall`."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, ClassVar, Self

from kvbench.errors import UsageError, unknown
from kvbench.sources import Sources
from kvbench.task import Answer, Question, Sample, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLES = 200
ROOMS = ("north", "south")


class Recall(Task):
    """The code of one of some rooms, `recall` or `recall-<rooms>`."""

    metric: ClassVar[str] = "characters right"

    def __init__(self, rooms: int, subset: str | None) -> None:
        self.rooms = rooms
        self.asked = (subset,) if subset else ROOMS

    @classmethod
    def create(cls, variant: str | None, subset: str | None, sources: Sources) -> Self:  # noqa: ARG003
        """Make the task."""
        if subset and subset not in ROOMS:
            raise unknown("subset of recall", subset, ROOMS)
        if variant and not variant.isdecimal():
            raise UsageError(f"recall-{variant} is not allowed: write the number of rooms, recall-8")
        return cls(int(variant or 4), subset)

    @classmethod
    def spellings(cls) -> Sequence[str]:
        """Return the names under which a user can ask for the task."""
        return ["recall", "recall-8"]

    @property
    def name(self) -> str:
        """The task's name in results."""
        return f"recall-{self.rooms}"

    @property
    def subtasks(self) -> Sequence[str]:
        """The two corridors."""
        return ROOMS

    def data_of(self, subtask: str) -> str:
        """Say where the samples come from."""
        return "generated"

    def samples(self, tokenizer: PreTrainedTokenizerBase, limit: int | None, seed: int) -> Sequence[Sample]:
        """Return the samples, corridor by corridor."""
        return [self._sample(side, number, seed) for side in self.asked for number in range(limit or SAMPLES)]

    def score(self, answer: Answer, question: Question, subtask: str) -> float:
        """Return the share of the code's digits that the answer holds."""
        return sum(digit in answer.text for digit in question.targets[0]) / len(question.targets[0])

    def _sample(self, side: str, number: int, seed: int) -> Sample:
        random = Random(f"{seed} {side} {number}")
        codes = [str(random.randrange(1000, 10_000)) for _ in range(self.rooms)]
        asked = random.sample(range(self.rooms), 2)
        return Sample(
            id=f"{side}/{number}",
            subtask=side,
            context="".join(f"Room {room} {side}: {code}. " for room, code in enumerate(codes)),
            questions=tuple(
                Question(text=f"Room {room}?", answer_prefix=" Code", targets=(codes[room],), max_new_tokens=8)
                for room in asked
            ),
            source=str(number),
        )
