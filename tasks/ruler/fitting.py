"""Fitting prompts to a length: a binary search for the haystack's size, then draws that shrink while too long.

Every prompt drawn on the way uses up random numbers, so the search itself is part of the benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from kvbench.errors import UsageError

from .subtask import Prompt, Subtask, TokenCount

DRAWS_OF_THE_SMALLEST = 100
"""If so many draws of the smallest haystack are all too long, none will fit (the official loop never ends)."""

Draw = Callable[[int], Prompt]
"""Draws a prompt whose haystack has so many units."""


class DoesNotFitError(UsageError):
    """Not even the smallest haystack fits into the length.

    Attributes:
        next_length: The next length that is worth a try.
    """

    def __init__(self, length: int, next_length: int) -> None:
        super().__init__(f"{length} tokens are too few even for the smallest haystack")
        self.next_length = next_length


@dataclass(frozen=True)
class Room:
    """The `length` tokens that a prompt and the `reserved` tokens beside it may take."""

    length: int
    reserved: int
    count: TokenCount

    def needed(self, prompt: Prompt) -> int:
        """Return how many tokens the prompt takes, the reserved ones included."""
        return self.count(prompt.text) + self.reserved

    def fits(self, prompt: Prompt) -> bool:
        """Return whether there is room for the prompt."""
        return self.needed(prompt) <= self.length


def upper_size(draw: Draw, room: Room, step: int) -> int:
    """Return where the search for the size ends: thrice what a first prompt of `step` units suggests."""
    tokens_per_unit = room.count(draw(step).text) / step
    return max(int(room.length / tokens_per_unit * 3), 2 * step)


def fitted_size(draw: Draw, room: Room, *, step: int, upper: int) -> int:
    """Return the largest size that was found to fit in a binary search of `step` … `upper`; `step` if none did."""
    size = lower = step
    while lower <= upper:
        middle = (lower + upper) // 2
        if room.fits(draw(middle)):
            size = middle
            lower = middle + 1
        else:
            upper = middle - 1
    return size


def draw_fitting(draw: Draw, room: Room, *, size: int, step: int, smallest: int = 1) -> Prompt:
    """Draw a prompt of `size` units, and again with `step` units less while it is too long.

    Fewer than `smallest` cannot be drawn: there the official loop never ends, and ours tries the smallest itself.

    Raises:
        DoesNotFitError: The size cannot shrink further and the prompts are still too long.
    """
    too_long: list[int] = []
    while len(too_long) < DRAWS_OF_THE_SMALLEST:
        prompt = draw(size)
        needed = room.needed(prompt)
        if needed <= room.length:
            return prompt
        if size > max(step, smallest):
            size = max(size - step, smallest)
        else:
            too_long.append(needed)
    # The longest decides: a length that only a lucky short draw fits would fail at a later prompt.
    raise DoesNotFitError(room.length, next_length=max(too_long))


def shortest_length(subtask: Subtask, first: int, prompts: int, seed: int, count: TokenCount) -> int:
    """Return the shortest length, from `first` on, into which so many prompts of the subtask fit."""
    length = first
    while True:
        try:
            for _ in islice(subtask.prompts(length, seed, count), prompts):
                pass
        except DoesNotFitError as error:
            length = error.next_length
        else:
            return length
