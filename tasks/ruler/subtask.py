"""What a subtask is: a seeded source of prompts of a given length, with their answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from .scoring import share_contained

TokenCount = Callable[[str], int]
"""Counts a text's tokens as `len(tokenizer.tokenize(text))` does."""


@dataclass(frozen=True)
class Prompt:
    """One prompt and its answers; `context + question` is the `input` of the official files."""

    context: str
    question: str
    answer_prefix: str
    answers: tuple[str, ...]

    @property
    def text(self) -> str:
        """All that comes before the first generated token: what is fitted to the length."""
        return self.context + self.question + self.answer_prefix


class Subtask(ABC):
    """One of RULER's subtasks."""

    max_new_tokens: ClassVar[int]

    @abstractmethod
    def prompts(self, length: int, seed: int, count: TokenCount) -> Iterator[Prompt]:
        """Draw prompts, without end, that with `max_new_tokens` to come take at most `length` tokens.

        Raises:
            DoesNotFitError: Not even the smallest haystack fits.
            UsageError: There is too little to draw from for such a length.
        """

    def score(self, prediction: str, targets: Sequence[str]) -> float:
        """Score an answer from 0 to 1."""
        return share_contained(prediction, targets)
