"""Traces: what a model cached of a text, and the future attention u that its tokens got. What KVP learns from.

    DIR/traces.json                       the manifest: the model, the settings, and every sequence
    DIR/sequences/<number>.safetensors    one sequence, there once it is whole

A sequence's file holds `keys` and `values`, float16 `[layers, kv_heads, n, d]`, the keys after the rotary embedding,
and for each cut c `future_<c>`, float32 `[layers, kv_heads, c]`: u of the KVP paper (arXiv:2602.10238) if tokens
0 … c − 1 are the cache and all that follow are the future. Positions are 0 … n − 1. The last cut is n, where the
benchmark itself compresses. No query is stored: u is all that learning needs of them.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvbench.errors import KvbenchError, UsageError
from kvbench.models import ModelFacts
from kvbench.record_table import reason
from kvbench.store import LOCK, held, write_atomically
from kvbench.tensor_files import write_tensors

MANIFEST = "traces.json"
_SEQUENCES = "sequences"
_ENTRY, _FUTURE_TOKENS = "kvbench_trace", "future_tokens"


class TraceEntry(BaseModel):
    """One sequence of the manifest: where it comes from, and where it is cut."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    """The task's name without subset."""
    subtask: str
    sample: str
    """The sample's id."""
    sample_hash: str
    """Content hash of the sample, as in results."""
    source: str
    """The document that the sample comes from: what shares one belongs on the same side of a split."""
    cuts: tuple[int, ...] = Field(min_length=1)
    """Where the sequence is cut, ascending; the last is its length in tokens."""

    @property
    def tokens(self) -> int:
        """How many tokens are cached."""
        return self.cuts[-1]


class TraceManifest(BaseModel):
    """What all sequences of a folder share, and their list. A sequence is done once its file is there."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = 1
    """The version of the trace format."""
    model: str
    """The model's name as the user gave it."""
    weights: str
    """Which weights ran."""
    model_layers: int = Field(ge=1)
    """How many attention layers the model has."""
    layers: tuple[int, ...] = Field(min_length=1)
    """The numbers of the layers that are stored: those with full attention."""
    scaling: tuple[float, ...]
    """What each of these layers multiplies query·key by before the softmax."""
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    dtype: str
    """What the model was run in; u is computed in float32 from its keys and queries."""
    attention: str
    """The kernel of the prefill."""
    device: str
    seed: int
    """Of the generated data and of the cuts."""
    cuts: int = Field(ge=1)
    """Cuts per sequence; fewer where it is too short for so many."""
    rollout: int = Field(ge=1)
    """Tokens that a rollout generates at most."""
    data: dict[str, str] = Field(default_factory=dict)
    """Per `task:subtask` the source data that its samples are drawn from."""
    sequences: list[TraceEntry] = Field(default_factory=list)
    """Number i of this list is the file sequences/<i>.safetensors."""


@dataclass(frozen=True)
class Trace:
    """One sequence.

    Attributes:
        entry: Where it comes from.
        keys: Keys after the rotary embedding, float16 `[layers, kv_heads, n, d]`.
        values: Of the same shape.
        future: Per cut c the future attention u, float32 `[layers, kv_heads, c]`.
        future_tokens: How many tokens follow the last cut; cut c has n − c more.
    """

    entry: TraceEntry
    keys: Tensor
    values: Tensor
    future: dict[int, Tensor]
    future_tokens: int


class Traces:
    """A folder of traces, to read from.

    Attributes:
        path: The folder.
        manifest: What its sequences share.
    """

    def __init__(self, path: Path) -> None:
        """Open a folder that `kvbench traces` wrote, finished or not.

        Raises:
            UsageError: There is no such folder, or its manifest is not what kvbench writes.
        """
        self.path = Path(path)
        self.manifest = read_manifest(self.path)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the sequences that are there, ascending."""
        count = len(self.manifest.sequences)
        return [number for number in range(count) if sequence_file(self.path, number).is_file()]

    def entry(self, number: int) -> TraceEntry:
        """Return where a sequence comes from and where it is cut."""
        return self.manifest.sequences[number]

    def read(self, number: int) -> Trace:
        """Read a sequence; its tensors are mapped from the file, not copied.

        Raises:
            UsageError: The file cannot be read, or holds something else than the manifest says.
        """
        file = sequence_file(self.path, number)
        entry = self.entry(number)
        try:
            with safe_open(file, "pt") as stream:
                metadata = stream.metadata() or {}
                tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - not a dict
        except (OSError, SafetensorError) as error:
            raise UsageError(
                f"{file} cannot be read as safetensors: {error}; `kvbench traces` takes it again"
            ) from error
        if metadata.get(_ENTRY) != entry.model_dump_json():
            raise UsageError(f"{file} is not the sequence of {MANIFEST}: sample '{entry.sample}' of {entry.task}")
        if not (future_tokens := metadata.get(_FUTURE_TOKENS, "")).isdecimal():
            raise UsageError(f"{file}: {_FUTURE_TOKENS} is {reprlib.repr(future_tokens)}, it must be a whole number")
        self._check(file, entry, tensors)
        future = {cut: tensors[f"future_{cut}"] for cut in entry.cuts}
        return Trace(entry, tensors["keys"], tensors["values"], future, int(future_tokens))

    def refuse_other_model(self, model: ModelFacts) -> None:
        """Make sure that the traces are a model's own.

        Raises:
            UsageError: They were taken from another model or other weights.
        """
        facts = {"name": (self.manifest.model, model.name), "weights": (self.manifest.weights, model.weights)}
        for fact, (theirs, ours) in facts.items():
            if theirs != ours:
                raise UsageError(f"the traces in '{self.path}' are of another model: {fact} {theirs}, here {ours}")

    def _check(self, file: Path, entry: TraceEntry, tensors: dict[str, Tensor]) -> None:
        heads = (len(self.manifest.layers), self.manifest.kv_heads)
        states = (*heads, entry.tokens, self.manifest.head_dim)
        expected: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "keys": (torch.float16, states),
            "values": (torch.float16, states),
        }
        expected |= {f"future_{cut}": (torch.float32, (*heads, cut)) for cut in entry.cuts}
        for name, (dtype, shape) in expected.items():
            if name not in tensors:
                raise UsageError(f"{file} lacks the tensor '{name}'")
            if (tensors[name].dtype, tuple(tensors[name].shape)) != (dtype, shape):
                found = f"{tensors[name].dtype} {tuple(tensors[name].shape)}"
                raise UsageError(f"{file}: '{name}' is {found}, it must be {dtype} {shape}")


def sequence_file(path: Path, number: int) -> Path:
    """Return the file of a sequence."""
    return path / _SEQUENCES / f"{number:06d}.safetensors"


def is_taken(path: Path, number: int, entry: TraceEntry) -> bool:
    """Tell whether a sequence's file is there, whole and the entry's own; its tensors are not read."""
    try:
        with safe_open(sequence_file(path, number), "pt") as stream:  # compares the file's length with its header
            return bool((stream.metadata() or {}).get(_ENTRY) == entry.model_dump_json())
    except (OSError, SafetensorError):
        return False


def read_manifest(path: Path) -> TraceManifest:
    """Read the manifest of a folder of traces.

    Raises:
        UsageError: There is none, or it is not what kvbench writes.
    """
    file = path / MANIFEST
    try:
        return TraceManifest.model_validate_json(file.read_bytes())
    except OSError:
        raise UsageError(f"there are no traces in '{path}': `kvbench traces` writes them") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise UsageError(f"{file} is not a manifest of traces: {where}: {first['msg'].lower()}") from None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make a folder of traces if it is not there, and hold it for writing; a lock dies with its process.

    Raises:
        UsageError: The folder cannot be written, or somebody else is writing to it.
    """
    try:
        (path / _SEQUENCES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"folder of traces '{path}' cannot be written to: {reason(error)}") from error
    with held(path / LOCK, f"folder of traces '{path}'"):
        yield


def write_manifest(path: Path, manifest: TraceManifest) -> None:
    """Write the manifest of a folder that is held for writing.

    Raises:
        KvbenchError: The system refuses (a full disk, say); the older one is not touched.
    """
    try:
        write_atomically(path / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise KvbenchError(f"cannot write to {path / MANIFEST}: {reason(error)}") from error


def write_sequence(path: Path, number: int, trace: Trace) -> None:
    """Write a sequence's file, which is there only once it is whole.

    Raises:
        KvbenchError: The system refuses (a full disk, say).
    """
    file = sequence_file(path, number)
    tensors = {"keys": trace.keys, "values": trace.values}
    tensors |= {f"future_{cut}": received for cut, received in trace.future.items()}
    metadata = {_ENTRY: trace.entry.model_dump_json(), _FUTURE_TOKENS: str(trace.future_tokens)}
    try:
        write_tensors(file, tensors, metadata)
    except OSError as error:
        raise KvbenchError(f"cannot write to {file}: {reason(error)}") from error


def sequence_bytes(layers: int, model: ModelFacts, entry: TraceEntry) -> int:
    """Return how many bytes the tensors of a sequence take on disk, with `layers` layers stored."""
    return layers * model.kv_heads * (2 * 2 * entry.tokens * model.head_dim + 4 * sum(entry.cuts))
