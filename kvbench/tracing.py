"""Taking traces: draw sequences from tasks, run the model once on each, and store what `kvbench.traces` describes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor

from kvbench.attention import AttentionCall
from kvbench.errors import KvbenchError, UsageError
from kvbench.full_cache import FullCache
from kvbench.future import attention_after_cuts
from kvbench.models import Model, ModelSource
from kvbench.press import sample_seed
from kvbench.prompts import Prompt, prompts_of
from kvbench.records import content_hash
from kvbench.task import Question, Sample, Task
from kvbench.traces import (
    MANIFEST,
    Trace,
    TraceEntry,
    TraceManifest,
    is_taken,
    read_manifest,
    sequence_file,
    write_manifest,
    write_sequence,
)

SHORTEST_CUT = 8
"""A drawn cut leaves at least one in so many of the context's tokens."""


@dataclass(frozen=True)
class TraceSettings:
    """What is asked for beside the tasks.

    Attributes:
        samples: Sequences per task, spread evenly over its subtasks.
        cuts: Per sequence; the last is the whole context, the others are drawn.
        rollout: Tokens that a generated future has at most.
        seed: Of the generated data and of the cuts.
        dtype: Of the weights.
        device: What runs them.
        attention: The kernel of the prefill.
    """

    samples: int
    cuts: int
    rollout: int
    seed: int
    dtype: str
    device: str
    attention: str


@dataclass(frozen=True)
class Drawn:
    """A sequence to take: a context, and what is to follow it.

    Attributes:
        entry: Where it comes from and where it is cut.
        context: int64 `[n]`.
        fed: The prompt's last tokens, int64 `[t]`.
        question: Answered greedily, or its one continuation is the future.
        continuations: None, or one, int64 `[m]`.
    """

    entry: TraceEntry
    context: Tensor
    fed: Tensor
    question: Question
    continuations: tuple[Tensor, ...]


@dataclass
class Draw:
    """All sequences that are asked for.

    Attributes:
        sequences: In the order of the tasks, without repetitions.
        data: Per `task:subtask` the source data that its samples are drawn from.
        remarks: What there is to say about it, in a sentence each.
    """

    sequences: list[Drawn] = field(default_factory=list)
    data: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def draw_sequences(source: ModelSource, tasks: Sequence[Task], settings: TraceSettings) -> Draw:
    """Draw the sequences. Loads the tokenizer and the data, but no weights.

    Of a sample it is the first question that is asked, where the task itself has it (inside the context or after it).
    What does not fit the model's window is left out.

    Raises:
        UsageError: The data cannot be had.
    """
    draw = Draw()
    known: set[str] = set()
    for task in (task.for_model(source.facts) for task in tasks):
        samples = spread_samples(task, source, settings.samples, settings.seed)
        if len(samples) < settings.samples:
            draw.remarks.append(f"{task.name} has {len(samples)} samples, not {settings.samples}")
        too_long = 0
        for sample in samples:
            drawn = _drawn(source, task, sample, settings)
            if drawn is None:
                too_long += 1
            elif drawn.entry.sample_hash not in known:
                known.add(drawn.entry.sample_hash)
                draw.sequences.append(drawn)
                draw.data[f"{task.name}:{sample.subtask}"] = task.data_of(sample.subtask)
        if too_long:
            draw.remarks.append(
                f"{too_long} samples of {task.name} are left out: with their future they take more than the "
                f"{source.facts.window} positions that {source.name} knows"
            )
    return draw


def spread_samples(task: Task, source: ModelSource, count: int, seed: int) -> list[Sample]:
    """Return the first `count` samples of a task, taken from its subtasks in turn."""
    subtasks = len({sample.subtask for sample in task.samples(source.tokenizer, 1, seed)})
    by_subtask: dict[str, list[Sample]] = {}
    for sample in task.samples(source.tokenizer, -(-count // subtasks), seed):
        by_subtask.setdefault(sample.subtask, []).append(sample)
    rounds = zip_longest(*by_subtask.values())
    return [sample for one_of_each in rounds for sample in one_of_each if sample is not None][:count]


def _drawn(source: ModelSource, task: Task, sample: Sample, settings: TraceSettings) -> Drawn | None:
    """Return a sample's sequence; none if it does not fit the model's window."""
    prompt = prompts_of(source.tokenizer, sample, task.question)[0]
    n = len(prompt.context)
    question, continuations = _future_of(sample.questions[prompt.questions[0]], prompt)
    room = source.facts.window - n - len(prompt.fed[0])
    if room < max((len(tokens) for tokens in continuations), default=1):
        return None
    if not continuations:
        question = question.model_copy(update={"max_new_tokens": min(settings.rollout, room)})
    sample_hash = content_hash(sample.model_dump(mode="json"))
    entry = TraceEntry(
        task=task.name,
        subtask=sample.subtask,
        sample=sample.id,
        sample_hash=sample_hash,
        source=sample.source,
        cuts=draw_cuts(n, settings.cuts, sample_seed(settings.seed, sample_hash)),
    )
    return Drawn(entry, prompt.context, prompt.fed[0], question, continuations)


def _future_of(question: Question, prompt: Prompt) -> tuple[Question, tuple[Tensor, ...]]:
    """Return the prompt's first question with one continuation at most: the reference, where it has several."""
    if not question.continuations:
        return question, ()
    targets = {target.strip() for target in question.targets}
    right = [i for i, text in enumerate(question.continuations) if text.strip() in targets]
    chosen = right[0] if right else 0
    only = question.model_copy(update={"continuations": (question.continuations[chosen],)})
    return only, (prompt.continuations[0][chosen],)


def draw_cuts(n: int, count: int, seed: int) -> tuple[int, ...]:
    """Return the cut n and `count − 1` others, uniform from n / 8 on, as far as there are so many; ascending."""
    possible = np.arange(max(1, n // SHORTEST_CUT), n)
    drawn = np.random.default_rng(seed).choice(possible, min(count - 1, len(possible)), replace=False)
    return (*sorted(drawn.tolist()), n)


def take_trace(model: Model, drawn: Drawn) -> Trace:
    """Run the model once: prefill, rollout on the full cache, u at every cut.

    Raises:
        KvbenchError: The model has no full-attention layer, or its keys or values do not fit half precision.
    """
    cuts = drawn.entry.cuts
    within: dict[int, list[Tensor]] = {}

    def watch(call: AttentionCall) -> None:
        within[call.layer] = attention_after_cuts(call.query[:, :, cuts[0] :], call.key, call.scaling, cuts)

    cache = FullCache(model, drawn.context, watch)
    rollout = cache.roll_out(drawn.question, drawn.fed, drawn.continuations)
    keys, values = (torch.cat(states).half().cpu() for states in zip(*map(cache.layer, cache.layers), strict=True))
    if not (bool(keys.isfinite().all()) and bool(values.isfinite().all())):
        raise KvbenchError(f"keys or values of sample '{drawn.entry.sample}' do not fit half precision")
    future = {
        cut: torch.cat([within[layer][i] + rollout.future[layer][..., :cut] for layer in cache.layers]).cpu()
        for i, cut in enumerate(cuts)
    }
    return Trace(drawn.entry, keys, values, future, rollout.tokens)


@dataclass(frozen=True)
class StoredLayers:
    """The layers with full attention, which traces store.

    Attributes:
        numbers: Their numbers.
        scaling: What each multiplies query·key by before the softmax.
    """

    numbers: tuple[int, ...]
    scaling: tuple[float, ...]


def stored_layers(model: Model) -> StoredLayers:
    """Find a model's layers with full attention."""
    probe = FullCache(model, torch.zeros(1, dtype=torch.int64), lambda _: None)
    return StoredLayers(tuple(probe.layers), tuple(probe.scaling[layer] for layer in probe.layers))


class Tracer(Interface):
    """What sequences are run with: a loaded model, wherever it is."""

    def layers(self) -> StoredLayers:
        """Return the layers that traces store."""

    def take(self, sequences: Sequence[Drawn], stopped: Callable[[], bool]) -> Iterator[tuple[Drawn, Trace]]:
        """Yield each sequence's trace; begin none once `stopped`."""


@dataclass(frozen=True)
class ModelTracer:
    """A tracer in this process."""

    model: Model

    def layers(self) -> StoredLayers:
        """Return the layers that traces store."""
        return stored_layers(self.model)

    def take(self, sequences: Sequence[Drawn], stopped: Callable[[], bool]) -> Iterator[tuple[Drawn, Trace]]:
        """Yield each sequence's trace, in order; begin none once `stopped`."""
        for drawn in sequences:
            if stopped():
                return
            yield drawn, take_trace(self.model, drawn)


class TraceFolder:
    """A folder of traces that a run makes or resumes."""

    def __init__(self, path: Path, source: ModelSource, settings: TraceSettings) -> None:
        """Look at what is there.

        Raises:
            UsageError: The folder holds traces of another model or of other settings.
        """
        self.path = path
        self._facts = source.facts
        self.settings: dict[str, object] = {
            "model": source.name,
            "weights": source.weights,
            "dtype": settings.dtype,
            "attention": settings.attention,
            "device": settings.device.partition(":")[0],
            "seed": settings.seed,
            "cuts": settings.cuts,
            "rollout": settings.rollout,
        }
        self.manifest = read_manifest(path) if (path / MANIFEST).exists() else None
        for name, ours in self.settings.items():
            if self.manifest and (theirs := getattr(self.manifest, name)) != ours:
                raise UsageError(
                    f"'{path}' holds traces with {name} {theirs}, this command's is {ours}: use another folder"
                )

    def missing(self, draw: Draw) -> list[Drawn]:
        """Return the sequences that are not there yet; one whose file is damaged is not there.

        Raises:
            UsageError: Those that are there were drawn from other data.
        """
        if self.manifest is None:
            return draw.sequences
        for name in draw.data.keys() & self.manifest.data.keys():
            if draw.data[name] != self.manifest.data[name]:
                raise UsageError(
                    f"'{self.path}' holds traces of {name} drawn from {self.manifest.data[name]}, not from "
                    f"{draw.data[name]}: use another folder"
                )
        sequences = enumerate(self.manifest.sequences)
        done = {entry.sample_hash for number, entry in sequences if is_taken(self.path, number, entry)}
        return [drawn for drawn in draw.sequences if drawn.entry.sample_hash not in done]

    def take(
        self,
        tracer: Tracer,
        draw: Draw,
        tell: Callable[[Drawn], None] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> TraceManifest:
        """Take what is missing; each sequence is on disk before it is told of. The folder is held for writing.

        Args:
            tracer: What sequences are run with.
            draw: What is wanted.
            tell: Called after each sequence is on disk.
            stopped: Whether to leave the rest for another run.

        Raises:
            KvbenchError: A sequence cannot be taken or stored; those before it are not touched.
        """
        missing = self.missing(draw)
        manifest = self.manifest = self._extended(tracer, draw)
        write_manifest(self.path, manifest)
        numbers = _numbers(manifest)
        for drawn, trace in tracer.take(missing, stopped):
            write_sequence(self.path, numbers[drawn.entry.sample_hash], trace)
            tell(drawn)
        return manifest

    @property
    def bytes(self) -> int:
        """What the sequences take on disk, measured."""
        return sum(file.stat().st_size for file in self._files())

    def _files(self) -> Iterator[Path]:
        count = len(self.manifest.sequences) if self.manifest else 0
        files = (sequence_file(self.path, number) for number in range(count))
        return (file for file in files if file.is_file())

    def _extended(self, tracer: Tracer, draw: Draw) -> TraceManifest:
        manifest = self.manifest or self._new_manifest(tracer.layers())
        known = _numbers(manifest)
        manifest.sequences.extend(d.entry for d in draw.sequences if d.entry.sample_hash not in known)
        manifest.data.update(draw.data)
        return manifest

    def _new_manifest(self, layers: StoredLayers) -> TraceManifest:
        return TraceManifest.model_validate(
            {
                **self.settings,
                "model_layers": self._facts.layers,
                "layers": layers.numbers,
                "scaling": layers.scaling,
                "kv_heads": self._facts.kv_heads,
                "head_dim": self._facts.head_dim,
            }
        )


def _numbers(manifest: TraceManifest) -> dict[str, int]:
    """Return the number of each sequence by the hash of its sample."""
    return {entry.sample_hash: number for number, entry in enumerate(manifest.sequences)}
