"""The sequences to learn from, of one or several folders of traces, and which of them are held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvbench.errors import UsageError
from kvbench.traces import Trace, TraceEntry, TraceManifest, Traces


@dataclass(frozen=True)
class Corpus:
    """Sequences of one model.

    Attributes:
        folders: The folders of traces.
        sequences: Each sequence as the number of its folder and its number in it.
    """

    folders: tuple[Traces, ...]
    sequences: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Corpus:
        """Open folders of traces.

        Raises:
            UsageError: One has no sequences, or they are not all of one model.
        """
        folders = tuple(Traces(path) for path in paths)
        for folder in folders:
            if not folder.numbers:
                raise UsageError(f"'{folder.path}' has no finished sequence yet: `kvbench traces` goes on from there")
            _refuse_another_model(folders[0], folder)
        return cls(folders, tuple((i, number) for i, folder in enumerate(folders) for number in folder.numbers))

    @property
    def manifest(self) -> TraceManifest:
        """What the folders say of the model."""
        return self.folders[0].manifest

    @property
    def agents(self) -> int:
        """How many agents there are: one per stored layer and KV head."""
        return len(self.manifest.layers) * self.manifest.kv_heads

    def entry(self, sequence: tuple[int, int]) -> TraceEntry:
        """Return where a sequence comes from."""
        folder, number = sequence
        return self.folders[folder].entry(number)

    def read(self, sequence: tuple[int, int]) -> Trace:
        """Read a sequence."""
        folder, number = sequence
        return self.folders[folder].read(number)


@dataclass(frozen=True)
class Split:
    """Which sequences are learned from, and which only measured."""

    train: tuple[tuple[int, int], ...]
    held_out: tuple[tuple[int, int], ...]


def split(corpus: Corpus, share: float, most: int, seed: int) -> Split:
    """Hold out a share of each task's sequences; sequences of one source document stay together.

    Args:
        corpus: All sequences.
        share: The share of each task's sequences that is held out.
        most: Hold out at most so many of a task, as far as its sources allow.
        seed: Of the choice.

    Raises:
        UsageError: A task's sequences all come from one source.
    """
    by_task: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for sequence in corpus.sequences:
        entry = corpus.entry(sequence)
        by_task.setdefault(entry.task, {}).setdefault(entry.source, []).append(sequence)
    held_out: list[tuple[int, int]] = []
    for task, sources in sorted(by_task.items()):
        if len(sources) < 2:
            raise UsageError(f"the traces of {task} come from {len(sources)} source: give two or more, one is held out")
        count = sum(map(len, sources.values()))
        wanted = max(1, min(most, round(share * count)))
        names = sorted(sources)
        np.random.default_rng(seed).shuffle(names)
        taken: list[tuple[int, int]] = []
        for name in names[:-1]:
            if len(taken) >= wanted:
                break
            taken += sources[name]
        held_out += taken
    chosen = set(held_out)
    return Split(tuple(s for s in corpus.sequences if s not in chosen), tuple(sorted(held_out)))


def _refuse_another_model(first: Traces, other: Traces) -> None:
    for fact in ("model", "weights", "layers", "kv_heads", "head_dim"):
        theirs, ours = getattr(other.manifest, fact), getattr(first.manifest, fact)
        if theirs != ours:
            raise UsageError(
                f"the traces of '{other.path}' are of another model than those of '{first.path}': "
                f"{fact.replace('_', ' ')} {theirs}, not {ours}"
            )
