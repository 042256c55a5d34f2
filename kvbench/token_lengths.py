"""Lengths in tokens, as tasks have them in their names: `4k` is 4 × 1024."""

from __future__ import annotations

import re

_LENGTH = re.compile("([1-9][0-9]*)(k?)")


def spell_length(tokens: int) -> str:
    """Return the shortest spelling of a length: `4k`, or `2000`."""
    thousands, rest = divmod(tokens, 1024)
    return str(tokens) if rest else f"{thousands}k"


def parse_length(text: str) -> int | None:
    """Return the tokens of `4k` or `4096`; none if the text is no length."""
    match = _LENGTH.fullmatch(text.lower())
    return int(match[1]) * (1024 if match[2] else 1) if match else None
