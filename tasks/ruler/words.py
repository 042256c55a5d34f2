"""The words RULER draws from: the lists of the wonderwords package."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import overload

from kvbench.records import content_hash


@cache
def _word_list(kind: str) -> tuple[str, ...]:
    text = files("wonderwords").joinpath("assets", f"{kind}list.txt").read_text(encoding="utf-8")
    return tuple(line.rstrip() for line in text.splitlines())


def single_words() -> list[str]:
    """Return wonderwords' nouns, adjectives and verbs, sorted and without repeats."""
    return sorted({*_word_list("noun"), *_word_list("adjective"), *_word_list("verb")})


@cache
def word_pairs() -> WordPairs:
    """Return all "adjective-noun" pairs of wonderwords."""
    return WordPairs(_word_list("adjective"), _word_list("noun"))


def word_list_fingerprint() -> str:
    """Return a content hash of the lists: other lists give other samples."""
    return content_hash({kind: _word_list(kind) for kind in ("noun", "adjective", "verb")})


class WordPairs(Sequence[str]):
    """All distinct "adjective-noun" strings in sorted order, each made when it is asked for.

    The whole list has six million strings and takes 15 s and half a gigabyte to build and sort. Pairs are
    in the order of their adjectives, then their nouns, but for adjectives that continue another one at the
    hyphen ("blue", "blue-eyed"): such a family is sorted as a whole.
    """

    def __init__(self, adjectives: Sequence[str], nouns: Sequence[str]) -> None:
        ordered_nouns = sorted(set(nouns))
        families: list[list[str]] = []
        for beginning in sorted({f"{adjective}-" for adjective in adjectives}):
            if families and beginning.startswith(families[-1][0]):
                families[-1].append(beginning)
            else:
                families.append([beginning])
        self._roots = [family[0] for family in families]
        self._endings = [
            ordered_nouns if len(family) == 1 else _family_endings(family, ordered_nouns) for family in families
        ]
        self._ends = list(accumulate(map(len, self._endings)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        positions = range(len(self))[index]
        return self._at(positions) if isinstance(positions, int) else [self._at(i) for i in positions]

    def _at(self, position: int) -> str:
        family = bisect_right(self._ends, position)
        return self._roots[family] + self._endings[family][position - self._ends[family]]


def _family_endings(beginnings: list[str], nouns: list[str]) -> list[str]:
    """Return what follows the first beginning in all strings of its family, sorted."""
    root = len(beginnings[0])
    return sorted({(beginning + noun)[root:] for beginning in beginnings for noun in nouns})
