"""Comma-separated lists on the command line."""

from collections.abc import Sequence

from kvbench.errors import UsageError


def split_entries(texts: Sequence[str]) -> list[str]:
    """Split comma-separated lists into their entries, of which there may be none."""
    return [piece.strip() for text in texts for piece in text.split(",") if piece.strip()]


def parse_entries(texts: Sequence[str], what: str) -> list[str]:
    """Split comma-separated lists.

    Raises:
        UsageError: Nothing is named; `what` says what should be.
    """
    entries = split_entries(texts)
    if not entries:
        raise UsageError(f"no {what} is named: `kvbench list {what}` says which there are")
    return entries
