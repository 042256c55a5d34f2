"""The essay haystack: the first words of a long text, with needles between its sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import cycle, islice, pairwise, takewhile
from random import Random
from threading import Lock

import numpy as np

from kvbench.records import content_hash

from .niah import Haystack

DEPTHS = np.round(np.linspace(0, 100, 40)).astype(int).tolist()
"""The places where a needle can be, in percent of the sentences."""

SentenceSpans = Callable[[str], Iterable[tuple[int, int]]]
"""Finds where the sentences of a text begin and end; where one ends depends on the next word at most."""


class Text:
    """A text that goes on from its beginning when it ends.

    Attributes:
        fingerprint: Says which text this is, and how it is split.
    """

    def __init__(self, text: str, spans_of: SentenceSpans, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._words = re.sub(r"\s+", " ", text).split(" ")
        self._spans_of = spans_of
        self._split_words = 0
        self._spans: list[tuple[int, int]] = []
        self._lock = Lock()

    def sentences(self, words: int) -> list[str]:
        """Return the sentences of the first so many words; the last may be cut short.

        A longer text has the same sentences up to there. So texts of growing length are split, which takes nltk
        seconds, and not one for each number of words.
        """
        text = self._first(words)
        with self._lock:
            if words > self._split_words:
                self._split_words = 1 << (words - 1).bit_length()
                self._spans = list(self._spans_of(self._first(self._split_words)))
            spans = self._spans
        return [text[start:end] for start, end in takewhile(lambda span: span[0] < len(text), spans)]

    def _first(self, words: int) -> str:
        return " ".join(islice(cycle(self._words), words)).strip()


@cache
def own_prose() -> Text:
    """Return the text of kvbench's own that stands in for the essays."""
    text = files(__package__).joinpath("prose.txt").read_text(encoding="utf-8")
    return Text(text, _spans_between_full_stops, content_hash(text))


def _spans_between_full_stops(text: str) -> list[tuple[int, int]]:
    gaps = [gap.span() for gap in re.finditer(r"(?<=[.?!]) ", text)]
    return list(zip([0, *(end for _, end in gaps)], [*(start for start, _ in gaps), len(text)], strict=True))


@dataclass(frozen=True)
class Essay(Haystack):
    """The beginning of a text, its size in words."""

    text: Text

    def step(self, length: int) -> int:
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
