"""The essay haystack: the first words of a long text, with needles between its sentences."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise
from random import Random

import numpy as np

from kvbench.records import content_hash

from .niah import Haystack

DEPTHS = np.round(np.linspace(0, 100, 40)).astype(int).tolist()
"""The places where a needle can be, in percent of the sentences."""

SplitSentences = Callable[[str], list[str]]


class Text:
    """A text that goes on from its beginning when it ends.

    Attributes:
        fingerprint: Says which text this is, and how it is split.
    """

    def __init__(self, text: str, split_sentences: SplitSentences, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._words = re.sub(r"\s+", " ", text).split(" ")
        self._split = split_sentences
        self.sentences = lru_cache(maxsize=16)(self._sentences)

    def _sentences(self, words: int) -> list[str]:
        """Return the sentences of the first so many words; the last may be cut short."""
        repeats = -(-words // len(self._words))
        return self._split(" ".join((self._words * repeats)[:words]).strip())


@cache
def own_prose() -> Text:
    """Return the text of kvbench's own that stands in for the essays."""
    text = files(__package__).joinpath("prose.txt").read_text(encoding="utf-8")
    return Text(text, re.compile(r"(?<=[.?!]) ").split, content_hash(text))


@dataclass(frozen=True)
class Essay(Haystack):
    """The beginning of a text, its size in words."""

    text: Text

    def step(self, length: int) -> int:  # noqa: ARG002
        """Return 500 words, whatever the length."""
        return 500

    def hide(self, needles: list[str], size: int, random: Random) -> str:
        """Return `size` words with the needles between sentences, in their order."""
        sentences = self.text.sentences(size)
        depths = random.sample(DEPTHS, len(needles))
        places = sorted(int(len(sentences) * (depth / 100)) for depth in depths)
        pieces = [" ".join(sentences[: places[0]])]
        for needle, (i, j) in zip(needles, pairwise([*places, len(sentences)]), strict=True):
            pieces += [needle, " ".join(sentences[i:j])]
        return " ".join(pieces)
