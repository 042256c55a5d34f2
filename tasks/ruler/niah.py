"""Needle in a haystack: sentences that give keys their values, hidden in a long text, and a question for some."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar
from uuid import UUID

from .fitting import Room, draw_fitting, fitted_size, upper_size
from .subtask import Prompt, Subtask, TokenCount
from .words import word_pairs

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {kind}s for {key} is: {value}."


@dataclass(frozen=True)
class Template:
    """The prompt around a haystack."""

    context: str
    question: str
    answer_prefix: str


ONE_VALUE = Template(
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{haystack}",
    "\nWhat is the special magic {kind} for {keys} mentioned in the provided text?",
    " The special magic {kind} for {keys} mentioned in the provided text is",
)
SEVERAL_VALUES = Template(
    "Some special magic {kind}s are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind}s afterwards.\n{haystack}",
    "\nWhat are all the special magic {kind}s for {keys} mentioned in the provided text?",
    " The special magic {kind}s for {keys} mentioned in the provided text are",
)


@dataclass(frozen=True)
class Kind:
    """What a key or a value can be: its name in the prompt, and how one is drawn."""

    name: str
    draw: Callable[[Random], str]


WORD = Kind("word", lambda random: random.choice(word_pairs()))
NUMBER = Kind("number", lambda random: str(random.randint(10**6, 10**7 - 1)))
IDENTIFIER = Kind("uuid", lambda random: str(UUID(int=random.getrandbits(128), version=4)))


class Haystack(ABC):
    """What the needles are hidden in, its size counted in units of its own."""

    @abstractmethod
    def step(self, length: int) -> int:
        """Return how many units shorter a haystack gets when a prompt exceeds `length` tokens."""

    @abstractmethod
    def hide(self, needles: list[str], size: int, random: Random) -> str:
        """Return a haystack of `size` units with the needles in it."""


@dataclass(frozen=True)
class Lines(Haystack):
    """A haystack of lines, each drawn anew; a needle is one more line."""

    line: Callable[[Random], str]

    def step(self, length: int) -> int:
        """Return 25 lines, and 5 for prompts of less than 4,096 tokens."""
        return 25 if length >= 4096 else 5

    def hide(self, needles: list[str], size: int, random: Random) -> str:
        """Return `size` lines with the needles among them."""
        lines = [self.line(random) for _ in range(size)]
        places = sorted(random.sample(range(size), len(needles)), reverse=True)
        for place, needle in zip(places, needles, strict=True):
            lines.insert(place, needle)
        return "\n".join(lines)


def noise() -> Lines:
    """Return a haystack that repeats one line."""
    return Lines(lambda _: NOISE)


def distractors(key: Kind, value: Kind) -> Lines:
    """Return a haystack of needles that nobody asks for."""

    def line(random: Random) -> str:
        return NEEDLE.format(kind=value.name, key=key.draw(random), value=value.draw(random))

    return Lines(line)


@dataclass(frozen=True)
class Niah(Subtask):
    """Hide `values` needles for each of `keys` keys, and ask for all values of `queries` of the keys."""

    max_new_tokens: ClassVar[int] = 128

    haystack: Haystack
    key: Kind = WORD
    value: Kind = NUMBER
    keys: int = 1
    values: int = 1
    queries: int = 1

    def prompts(self, length: int, seed: int, count: TokenCount) -> Iterator[Prompt]:
        """Draw prompts; the fit, then each prompt in turn, go through one stream of random numbers."""
        random = Random(seed)
        room = Room(length, self.max_new_tokens, count)
        step = self.haystack.step(length)

        def draw(size: int) -> Prompt:
            return self._draw(size, random, seed)

        size = fitted_size(draw, room, step=step, upper=upper_size(draw, room, step))
        while True:
            yield draw_fitting(draw, room, size=size, step=step)

    def _draw(self, size: int, random: Random, seed: int) -> Prompt:
        pairs = [
            (self.key.draw(random), [self.value.draw(random) for _ in range(self.values)]) for _ in range(self.keys)
        ]
        needles = [
            NEEDLE.format(kind=self.value.name, key=key, value=value) for key, values in pairs for value in values
        ]
        Random(seed).shuffle(needles)
        haystack = self.haystack.hide(needles, size, random)
        asked = [pairs[i] for i in random.sample(range(self.keys), self.queries)]
        template = ONE_VALUE if self.values * self.queries == 1 else SEVERAL_VALUES
        words = {"kind": self.value.name, "keys": enumeration([key for key, _ in asked])}
        return Prompt(
            context=template.context.format(haystack=haystack, **words),
            question=template.question.format(**words),
            answer_prefix=template.answer_prefix.format(**words),
            answers=tuple(value for _, values in asked for value in values),
        )


def enumeration(words: list[str]) -> str:
    """Return the words as a phrase: "a", or "a, b, and c"."""
    *others, last = words
    return f"{', '.join(others)}, and {last}" if others else last
