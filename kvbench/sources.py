"""Where a task's source data comes from: a copy that the user gives with `--data NAME=PATH`, or the hub."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvbench.errors import UsageError

Sources = Mapping[str, Path]
"""The local copies that a user gives, by the task's own names for its data."""

_ANSWER_SECONDS = 5
"""How long the hub may take to answer before its cache is used."""


@dataclass(frozen=True)
class HubFiles:
    """Files of a dataset repository on the hub, in the local cache.

    Attributes:
        origin: `hub <repository>@<revision>`.
        paths: The files, in name order.
    """

    origin: str
    paths: tuple[Path, ...]


def parse_sources(texts: Sequence[str]) -> dict[str, Path]:
    """Read `NAME=PATH` assignments.

    Raises:
        UsageError: One is written otherwise, comes twice, or there is nothing at its path.
    """
    sources: dict[str, Path] = {}
    for text in texts:
        name, _, given = text.partition("=")
        if not name or not given:
            raise UsageError(f"--data {text}: write it as NAME=PATH, essays=~/essays for example")
        if name in sources:
            raise UsageError(f"--data {name} is given twice: {sources[name]} and {given}")
        sources[name] = Path(given).expanduser()
        if not sources[name].exists():
            raise UsageError(f"--data {text}: there is nothing at '{given}'")
    return sources


def from_hub(repository: str, pattern: str) -> HubFiles | None:
    """Return a dataset's files that match a pattern, from the hub or its cache; None if neither has them.

    The environment variable HF_HUB_OFFLINE leaves only the cache.
    """
    from huggingface_hub import snapshot_download

    try:
        with _quiet("huggingface_hub"):
            folder = Path(
                snapshot_download(repository, repo_type="dataset", allow_patterns=pattern, etag_timeout=_ANSWER_SECONDS)
            )
    except Exception:  # no network, no such cache, a hub that refuses: in each case the data cannot be had
        return None
    paths = tuple(sorted(folder.glob(pattern)))
    return HubFiles(f"hub {repository}@{folder.name}", paths) if paths else None


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Keep a library's own words about a failure from the terminal: the task has a sentence for it."""
    level = logging.getLogger(logger).level
    logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logging.getLogger(logger).setLevel(level)
