"""Common words extraction (cwe): which ten words of a numbered list are the most common?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from kvbench.errors import UsageError

from .fitting import Room, draw_fitting, fitted_size
from .subtask import Prompt, Subtask, TokenCount
from .words import single_words

COMMON = 10
STEP = 10
PROBE = 4096
CONTEXT = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{words}"
)
QUESTION = "\nQuestion: What are the 10 most common words in the above list?"
ANSWER_PREFIX = " Answer: The top 10 words that appear most often in the list are:"


@dataclass(frozen=True)
class Repeats:
    """How often a list has each common word, and each other word."""

    common: int
    other: int


@dataclass(frozen=True)
class Lists:
    """The sizes that a length goes with: an example of `example_words` words, then the list itself."""

    example_words: int
    example: Repeats
    asked: Repeats


LONG = Lists(40, example=Repeats(10, 3), asked=Repeats(30, 3))
SHORT = Lists(20, example=Repeats(3, 1), asked=Repeats(6, 1))
"""Below 4,096 tokens."""


@dataclass(frozen=True)
class CommonWords(Subtask):
    """A list in which ten words are more common, after one solved example."""

    max_new_tokens: ClassVar[int] = 120

    def prompts(self, length: int, seed: int, count: TokenCount) -> Iterator[Prompt]:
        """Draw prompts whose size is the number of distinct words in the list.

        Raises:
            UsageError: The list would need more distinct words than there are.
        """
        random = Random(seed)
        words = single_words()
        Random(seed).shuffle(words)
        room = Room(length, self.max_new_tokens, count)
        lists = LONG if length >= 4096 else SHORT

        def draw(size: int) -> Prompt:
            if size > len(words):
                raise UsageError(
                    f"cwe cannot be drawn for {length} tokens, which take {size} distinct words of the {len(words)} "
                    "there are: ask for a shorter length or for the other subtasks only"
                )
            example = _draw(words, lists.example_words, lists.example, random, seed)
            asked = _draw(words, size, lists.asked, random, seed)
            solved = f"{example.text} {_numbered(example.answers)}"
            return replace(asked, context=f"{solved}\n{asked.context}")

        tokens_per_word = count(draw(PROBE).text) / PROBE
        upper = max(int(length // tokens_per_word) * 2, 2 * STEP)
        size = fitted_size(draw, room, step=STEP, upper=upper)
        # The last size on the way down that has all common words: the official lists go on without some of them.
        smallest = COMMON + (size - COMMON) % STEP
        while True:
            yield draw_fitting(draw, room, size=size, step=STEP, smallest=smallest)


def _draw(words: list[str], size: int, repeats: Repeats, random: Random, seed: int) -> Prompt:
    """Draw `size` distinct words, the first ten of them common, into a shuffled numbered list."""
    drawn = random.sample(words, size)
    common, others = drawn[:COMMON], drawn[COMMON:]
    entries = common * repeats.common + others * repeats.other
    Random(seed).shuffle(entries)
    return Prompt(CONTEXT.format(words=_numbered(entries)), QUESTION, ANSWER_PREFIX, tuple(common))


def _numbered(words: list[str] | tuple[str, ...]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))
