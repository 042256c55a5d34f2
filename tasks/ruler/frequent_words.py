"""Frequent words extraction (fwe): which three coded words are the most frequent of a Zeta-distributed text?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase
from typing import ClassVar

from scipy.special import zeta

from .fitting import DoesNotFitError, Room
from .subtask import Prompt, Subtask, TokenCount

ALPHA = 2.0
LETTERS = 6
DOTS = "..."
"""Stands for the most frequent word, which is not asked for."""
ASKED = slice(1, 4)

CONTEXT = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. {text}"
)
QUESTION = (
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
ANSWER_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"


@dataclass(frozen=True)
class FrequentWords(Subtask):
    """Coded words whose frequency falls with the square of their rank."""

    max_new_tokens: ClassVar[int] = 50

    def prompts(self, length: int, seed: int, count: TokenCount) -> Iterator[Prompt]:
        """Draw prompts, each of a new vocabulary; how many words they have is found once, growing step by step."""
        random = Random(seed)
        room = Room(length, self.max_new_tokens, count)
        available = length - self.max_new_tokens
        ranks, step = available // 50, available // 32
        if ranks < ASKED.stop:
            raise DoesNotFitError(length, next_length=length + 1)

        size = available // 6
        vocabulary = _vocabulary(ranks, random, seed)
        while room.needed(_prompt(vocabulary, size, seed)) < length:
            size += step
        size -= step
        while True:
            yield _draw_fitting(_vocabulary(ranks, random, seed), room, size, step, seed)


def _draw_fitting(vocabulary: list[str], room: Room, size: int, step: int, seed: int) -> Prompt:
    """Write a text of `size` words, and again with `step` words less while it is too long.

    Raises:
        DoesNotFitError: Only texts that do not tell the three words from the rest fit.
    """
    while _tells_answers(_frequencies(size, len(vocabulary))):
        prompt = _prompt(vocabulary, size, seed)
        if room.fits(prompt):
            return prompt
        size -= step
    raise DoesNotFitError(room.length, next_length=room.length + 1)


def _tells_answers(frequencies: list[int]) -> bool:
    """Return whether the last word asked for is more frequent than the next."""
    last_asked, *others = frequencies[ASKED.stop - 1 :]
    return last_asked > (others[0] if others else 0)


def _prompt(vocabulary: list[str], size: int, seed: int) -> Prompt:
    frequencies = _frequencies(size, len(vocabulary))
    words = [word for word, times in zip(vocabulary, frequencies, strict=True) for _ in range(times)]
    Random(seed).shuffle(words)
    return Prompt(CONTEXT.format(text=" ".join(words)), QUESTION, ANSWER_PREFIX, tuple(vocabulary[ASKED]))


def _frequencies(size: int, ranks: int) -> list[int]:
    """Return how often each rank's word occurs in a text of about `size` words."""
    return [int(size * rank**-ALPHA / zeta(ALPHA)) for rank in range(1, ranks + 1)]


def _vocabulary(size: int, random: Random, seed: int) -> list[str]:
    """Draw `size` coded words, in order of rank."""
    words: set[str] = set()
    while len(words) < size:
        words.add("".join(random.choices(ascii_lowercase, k=LETTERS)))
    ranked = sorted(words)
    Random(seed).shuffle(ranked)
    return [DOTS, *ranked[1:]]
