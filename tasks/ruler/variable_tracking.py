"""Variable tracking (vt): a chain of assignments scattered over noise; which variables hold the value?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from string import ascii_uppercase
from typing import ClassVar

import numpy as np

from kvbench.errors import KvbenchError

from .fitting import DoesNotFitError, Room, draw_fitting, fitted_size, upper_size
from .niah import NOISE
from .subtask import Prompt, Subtask, TokenCount

HOPS = 4
CONTEXT = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{haystack}"
QUESTION = "\nQuestion: Find all variables that are assigned the value {value} in the text above."
ANSWER_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, "
    "{variables} variables are assigned the value {value}, they are: "
)

EXAMPLE_LENGTH = 500
EXAMPLE_STEP = 5
EXAMPLE_VALUE = "12345"
"""Stands in the example until each prompt gets a value of its own."""


@dataclass(frozen=True)
class VariableTracking(Subtask):
    """One chain of `HOPS` hops, after one solved example with shorter names."""

    max_new_tokens: ClassVar[int] = 30

    def prompts(self, length: int, seed: int, count: TokenCount) -> Iterator[Prompt]:
        """Draw prompts; names and places come from Python's generator, values from numpy's legacy one."""
        random, numbers = Random(seed), np.random.RandomState(seed)
        example = _example(random, count)
        step = 5 if length < 4096 else 10

        def draw(size: int) -> Prompt:
            return _draw(size, random, _value(numbers), letters=5)

        def draw_after_example(size: int) -> Prompt:
            prompt = draw(size)
            solved = _with_new_names(example, random, numbers)
            return replace(prompt, context=f"{solved}\n{prompt.context}")

        search_room = Room(length, self.max_new_tokens + count(example), count)
        size = fitted_size(draw, search_room, step=step, upper=upper_size(draw, search_room, step))
        room = Room(length, self.max_new_tokens, count)
        while True:
            yield draw_fitting(draw_after_example, room, size=size, step=step, smallest=HOPS + 1)


def _draw(size: int, random: Random, value: str, *, letters: int) -> Prompt:
    """Draw a chain and scatter it over `size` lines of noise."""
    names = _names(random, letters)
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {name} = VAR {previous} " for previous, name in pairwise(names)]
    lines = [NOISE] * size
    for j, place in enumerate(sorted(random.sample(range(size), len(chain)))):
        lines.insert(place + j, chain[j])
    return Prompt(
        context=CONTEXT.format(haystack="\n".join(lines)),
        question=QUESTION.format(value=value),
        answer_prefix=ANSWER_PREFIX.format(variables=len(names), value=value),
        answers=tuple(names),
    )


def _names(random: Random, letters: int) -> list[str]:
    """Draw the chain's distinct names, in order of their drawing."""
    names: dict[str, None] = {}
    while len(names) < HOPS + 1:
        names[_letters(random, letters)] = None
    return list(names)


def _letters(random: Random, count: int) -> str:
    return "".join(random.choices(ascii_uppercase, k=count))


def _value(numbers: np.random.RandomState) -> str:
    return str(numbers.randint(10000, 99999))


def _example(random: Random, count: TokenCount) -> str:
    """Draw the solved example, fitted to `EXAMPLE_LENGTH` tokens without its answer.

    Raises:
        KvbenchError: This tokenizer makes more tokens of it, whatever length is asked for.
    """
    room = Room(EXAMPLE_LENGTH, 0, count)

    def draw(size: int) -> Prompt:
        return _draw(size, random, EXAMPLE_VALUE, letters=3)

    size = fitted_size(draw, room, step=EXAMPLE_STEP, upper=upper_size(draw, room, EXAMPLE_STEP))
    try:
        prompt = draw_fitting(draw, room, size=size, step=EXAMPLE_STEP, smallest=HOPS + 1)
    except DoesNotFitError as error:
        raise KvbenchError(
            f"vt cannot be drawn for this tokenizer, which makes {error.next_length} tokens of the solved example "
            f"that may have {EXAMPLE_LENGTH}: ask for the other subtasks only"
        ) from None
    return f"{prompt.text} {' '.join(prompt.answers)}\n"


def _with_new_names(example: str, random: Random, numbers: np.random.RandomState) -> str:
    """Replace the example's names, which are its last words, and its value, one after the other."""
    for name in example.split()[-(HOPS + 1) :]:
        example = example.replace(name, _letters(random, len(name)))
    return example.replace(EXAMPLE_VALUE, _value(numbers))
