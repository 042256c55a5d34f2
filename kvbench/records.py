"""The schema of results: one `Record` per sample, press and budget, under a `Protocol` that all of a file share.

A file of records reads with pandas in one line, compressed or not: `pd.read_json("records/NAME.jsonl", lines=True)`.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = 1
"""The version of this schema, written into every protocol file."""


def content_hash(value: object) -> str:
    """Return 16 hex digits (64 bits) of the SHA-256 of `value` as canonical JSON."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(canonical.encode()).hexdigest()[:16]


def cell_key(protocol: str, sample: str, question: int, press: str, budget: str) -> str:
    """Return a cell's key, from the hashes of its protocol, sample and press, its question and its budget's label."""
    return content_hash([protocol, sample, question, press, budget])


def press_identity(label: str, identity: object) -> str:
    """Return the content hash of all that decides a press's ranking: its name and what `Press.identity` returns."""
    return content_hash([label.partition(":")[0], identity])


Schedule = Literal["after-prefill", "chunked"]
Stopped = Literal["end", "stop", "length"]
ShownAs = Literal["mean", "exp"]


class Protocol(BaseModel):
    """All that decides a result beside the sample, the press and the budget. Never mixed in one table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA
    model: str
    """The model's name as the user gave it (an alias, a hub id, or a folder's or file's name)."""
    weights: str
    """Which weights ran: where they came from, with the revision or digest that pins them."""
    task: str
    """The task's name without subset, e.g. `ruler-4k`."""
    task_version: int
    subtasks: tuple[str, ...] = ()
    """All subtasks that the task's score is the mean of, whichever were run; none if the task has no such list."""
    metric: str
    binary: bool
    """Whether every score is 0 or 1."""
    lower_is_better: bool = False
    shown_as: ShownAs = "mean"
    """"exp" where scores are negative log-likelihoods per token, whose mean is shown as a perplexity."""
    schedule: Schedule
    """When the cache is compressed: once after the whole prefill, or after every chunk of it."""
    chunk: int | None
    """Tokens per chunk, where the schedule is chunked."""
    question: Literal["inside", "after"]
    """Whether the question is compressed with the context, or fed after compression."""
    protect_first: int
    protect_last: int
    """How many first and last tokens the harness puts in front of every ranking."""
    positions: Literal["original"] = "original"
    """The kept tokens keep their original rotary positions."""
    dtype: str
    attention: str
    """The kernel of the prefill."""
    device: str
    """The kind of device: cpu, cuda, …"""
    seed: int

    @property
    def hash(self) -> str:
        """The protocol's content hash, part of every record's key."""
        return content_hash(self.model_dump(mode="json"))


class Environment(BaseModel):
    """What a run was made with. Recorded with every result, but not part of its key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kvbench: str
    python: str
    torch: str
    transformers: str
    processor: str
    """The processor's or the accelerator's name."""
    threads: int
    platform: str

    @property
    def hash(self) -> str:
        """The environment's content hash, by which records refer to it."""
        return content_hash(self.model_dump(mode="json"))


class Record(BaseModel):
    """The outcome of one cell: one question of one sample under one press and budget."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    """Content hash of protocol, sample, press and budget: a cell is computed once per key."""
    environment: str
    """Hash of the environment that computed it."""
    press: str
    """The press as a user names it, with the parameters that differ from its defaults."""
    press_identity: str
    """Content hash of the press's version, all its parameters and its checkpoint."""
    budget: str
    """As asked for: tokens per KV head ("256"), a share of the context ("25%"), "full", or "repeat"."""
    budget_tokens: int = Field(ge=1)
    """The budget in tokens per KV head for this sample, at most `context_tokens`."""
    sample: str
    sample_hash: str
    """Content hash of the sample: context, questions and targets."""
    data: str
    """The source data that the sample was drawn from, with fingerprints or revisions."""
    question: int = 0
    """Which of the sample's questions, from 0."""
    subtask: str
    source: str
    """The source document: records of one source are one cluster."""
    context_tokens: int
    """Tokens that were prefilled and compressed."""
    truncated_tokens: int = 0
    """Tokens that the task left out of the original to make it fit."""
    compressed: bool
    """False where the budget holds the whole context: the answer is then the full cache's."""
    status: Literal["ok", "failed"] = "ok"
    error: str | None = None
    """Why the cell failed."""
    score: float | None = None
    """The task's score; none if the cell failed."""
    weight: float = 1.0
    """What the score counts in a mean: its tokens, where it is a score per token."""
    other_metrics: tuple[str, ...] = ()
    """The names of further metrics of the same answer, and, in their order, its `other_scores`."""
    other_scores: tuple[float, ...] = ()
    prediction: str | None = None
    """The generated answer, or the most likely of the continuations."""
    log_likelihoods: tuple[float, ...] = ()
    """Per continuation the natural logarithm of its probability, where answers are not generated."""
    continuation_tokens: tuple[int, ...] = ()
    greedy: tuple[bool, ...] = ()
    """Per continuation whether greedy decoding would have given it."""
    targets: tuple[str, ...] = ()
    new_tokens: int = 0
    stopped: Stopped | None = None
    """What ended the answer: the model's end token, one of the task's stop texts, or the token limit."""
    kept_min: int | None = None
    kept_max: int | None = None
    """Measured KV entries per head after eviction: the least and the most over layers and KV heads."""
    peak_entries: int | None = None
    """Measured: the most entries per head that a layer held at any time, before it was cut."""
    kept_bytes: int | None = None
    """Measured bytes of the compressed cache, all layers, before the answer's own tokens."""
    peak_bytes: int | None = None
    """Measured: the most memory, weights included, that was held while the sample's cells were computed together: by
    torch on CUDA, elsewhere by the whole process; none where the system does not tell."""
    prefill_seconds: float | None = None
    """Of the sample's one prefill, shared by all its cells."""
    ranking_seconds: float | None = None
    """Of the press's ranking of all layers, shared by its budgets."""
    answering_seconds: float | None = None
    """Of the batch of cells that were answered together."""


FULL = "full"
"""The budget label, and the press name, of the full cache."""

REPEAT = "repeat"
"""The budget label of the full cache's second answer, computed independently of the first: the noise floor."""
