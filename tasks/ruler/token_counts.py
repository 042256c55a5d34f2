"""Counting the tokens of prompts, remembered across runs.

Before a prompt fits, many of its length are drawn and counted, and counting takes far longer than drawing. Counts
are kept on disk under a digest of the text, so that a second run draws the same prompts without tokenising them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b, sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

import tokenizers
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from kvbench.cache_folder import cache_folder

from .subtask import TokenCount


class TokenCounter:
    """Counts as `len(tokenizer.tokenize(text))` does, in any thread.

    Attributes:
        fingerprint: A hash of all that decides the counts; none for tokenizers written in Python.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._backend: Tokenizer | None = None
        self.fingerprint: str | None = None
        if tokenizer.is_fast:
            self._backend = _undisturbed(tokenizer)
            settings = f"{tokenizers.__version__} {tokenizer.split_special_tokens} {self._backend.to_str()}"
            self.fingerprint = sha256(settings.encode()).hexdigest()[:16]

    def __call__(self, text: str) -> int:
        """Return the number of tokens, without special ones around the text."""
        if self._backend is None:
            return len(self._tokenizer.tokenize(text))
        return len(self._backend.encode_batch_fast([text], add_special_tokens=False)[0])


def _undisturbed(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return a copy of the tokenizer that neither pads nor truncates, whatever others set on the original."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


@contextmanager
def remembered(counter: TokenCounter, name: str) -> Iterator[TokenCount]:
    """Give a counter that looks into the cache's file `name` first, and adds its new counts when it is done."""
    if counter.fingerprint is None:
        yield counter
        return
    path = cache_folder() / "ruler-token-counts" / counter.fingerprint / f"{name}.json"
    counts = _read(path)
    known = len(counts)

    def count(text: str) -> int:
        digest = blake2b(text.encode(), digest_size=16).hexdigest()
        if digest not in counts:
            counts[digest] = counter(text)
        return counts[digest]

    try:
        yield count
    finally:
        if len(counts) > known:
            _write(path, counts)


def _read(path: Path) -> dict[str, int]:
    """Return the counts in a file; none where there is no file or it is damaged."""
    try:
        counts: dict[str, int] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return counts


def _write(path: Path, counts: dict[str, int]) -> None:
    """Replace the file in one step. A folder that cannot be written costs time only."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            json.dump(counts, file)
        Path(file.name).replace(path)
