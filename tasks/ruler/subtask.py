"""What a subtask is: a seeded source of prompts of a given length, with their answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

TokenCount = Callable[[str], int]
"""Counts a text's tokens as `len(tokenizer.tokenize(text))` does."""


@dataclass(frozen=True)
class Prompt:
    """One prompt and its answers; `context + question` is the `input` of the official files."""

    context: str
    question: str
    answer_prefix: str
    answers: tuple[str, ...]
    source: str | None = None
    """The document it comes from, where others come from the same."""

    @property
    def text(self) -> str:
        """All that comes before the first generated token: what is fitted to the length."""
        return self.context + self.question + self.answer_prefix


class Subtask(ABC):
    """One of RULER's subtasks."""

    max_new_tokens: ClassVar[int]

    @abstractmethod
    def prompts(self, length: int, seed: int, count: TokenCount) -> Iterator[Prompt]:
        """Draw prompts, as many as there is data for, that with `max_new_tokens` to come take at most `length` tokens.

        Raises:
            DoesNotFitError: Not even the smallest haystack fits.
            UsageError: There is too little to draw from for such a length.
        """
