"""`kvbench train`: traces in, KVP's agents out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from kvbench.commands.interrupts import interruptible
from kvbench.errors import UsageError
from kvbench.store import LOCK, held, holder_file

if TYPE_CHECKING:
    from kvbench.agents import Agents
    from kvbench.training.corpus import Corpus, Split
    from kvbench.training.trainer import Evaluation, Trainer

STATE = ".training.safetensors"
"""Ends the name of a training's own checkpoint, beside the file that it makes."""


@dataclass(frozen=True)
class TrainRequest:
    """`kvbench train` as it was typed; None stands for the agent's default."""

    traces: Sequence[Path]
    to: Path
    objective: str
    agent: str
    steps: int | None
    lr: float | None
    batch: int | None
    tokens: int | None
    minutes: float | None
    seed: int
    device: str | None
    half: bool


def train_command(request: TrainRequest, out: Console, err: Console) -> None:
    """Train, or go on with a training that was stopped, and write the agents.

    Raises:
        UsageError: A name, a folder of traces or a file is wrong.
    """
    from kvbench.agents import AgentsInfo
    from kvbench.models import choose_device
    from kvbench.training.corpus import Corpus, split
    from kvbench.training.objectives import find_objective
    from kvbench.training.processes import joined
    from kvbench.training.settings import make_settings, shape_of
    from kvbench.training.trainer import Trainer

    find_objective(request.objective)
    settings = make_settings(
        request.agent,
        objective=request.objective,
        steps=request.steps,
        lr=request.lr,
        batch=request.batch,
        tokens=request.tokens,
        minutes=request.minutes,
        seed=request.seed,
    )
    corpus = Corpus.of(request.traces)
    parts = split(corpus, settings.held_out, settings.held_out_most, settings.seed)
    manifest = corpus.manifest
    info = AgentsInfo(
        model=manifest.model,
        weights=manifest.weights,
        layers=manifest.model_layers,
        kv_heads=manifest.kv_heads,
        shape=shape_of(settings.agent, manifest.head_dim),
    )
    with joined(choose_device(request.device)) as (processes, device), _writing(request.to, processes.is_first):
        trainer = Trainer(corpus, parts, info, settings, device, processes)
        if _is_there(request.to, trainer.identity):
            err.print(
                f"{request.to} is there already, of the same settings and traces", highlight=False, soft_wrap=True
            )
            return
        if processes.is_first:
            err.print(
                f"{corpus.agents} agents of {info.shape.parameters:,} parameters, {len(parts.train)} sequences to "
                f"learn from, {len(parts.held_out)} held out, {settings.steps} steps",
                highlight=False,
                soft_wrap=True,
            )
        checkpoint = request.to.with_name(request.to.name + STATE)
        with interruptible("step") as stopped:
            agents = trainer.run(lambda evaluation: _print(evaluation, settings.steps, err), checkpoint, stopped)
        if processes.is_first:
            _write(agents, trainer, corpus, parts, request)
            checkpoint.unlink(missing_ok=True)
            best = trainer.state.best_cost
            out.print(f"{request.to}: held-out normalised cost {best:.3f} (1 is the best possible)", highlight=False)


@contextmanager
def _writing(to: Path, is_first: bool) -> Iterator[None]:
    """Hold the agents' file for writing in the first process; what it is held with goes once the file is there.

    Raises:
        UsageError: The file's folder is not there or cannot be written to, or somebody else is writing the file.
    """
    if not to.parent.is_dir():
        raise UsageError(f"there is no folder '{to.parent}' to write {to.name} to")
    if not is_first:
        yield
        return
    lock = to.with_name(f".{to.name}{LOCK}")
    with held(lock, f"agents file '{to}'"):
        yield
        lock.unlink()  # whoever waits for it finds the file finished
        holder_file(lock).unlink()


def _is_there(file: Path, identity: str) -> bool:
    """Tell whether the training has been finished before.

    Raises:
        UsageError: The file is something else.
    """
    from kvbench.agents import load_agents

    if not file.exists():
        return False
    if load_agents(file).info.training.get("identity") != identity:
        raise UsageError(f"{file} holds agents of another training: give another name, or delete it")
    return True


def _write(agents: Agents, trainer: Trainer, corpus: Corpus, parts: Split, request: TrainRequest) -> None:
    """Write the agents with all that is to be known of how they came to be."""
    import torch

    from kvbench.agents import Agents, save_agents
    from kvbench.environment import describe_environment

    training: dict[str, Any] = {
        "identity": trainer.identity,
        "command": shlex.join(["kvbench", *sys.argv[1:]]),
        "settings": trainer.settings.model_dump(mode="json"),
        "held_out_cost": round(trainer.state.best_cost, 5),
        "curve": trainer.state.curve,
        "seconds": round(trainer.state.seconds, 1),
        "environment": describe_environment().model_dump(mode="json"),
        "traces": [folder.manifest.model_dump(mode="json", exclude={"sequences"}) for folder in corpus.folders],
        "learned_from": _counts(corpus, parts.train),
        "held_out": [
            {"task": entry.task, "subtask": entry.subtask, "sample": entry.sample, "sample_hash": entry.sample_hash}
            for entry in map(corpus.entry, parts.held_out)
        ],
    }
    info = agents.info.model_copy(update={"training": training})
    finished = Agents(info, dict(agents.weights.items()))
    save_agents(finished, request.to, torch.float16 if request.half else torch.float32)


def _counts(corpus: Corpus, sequences: Sequence[tuple[int, int]]) -> dict[str, int]:
    """Count sequences by `task:subtask`."""
    counts: dict[str, int] = {}
    for entry in map(corpus.entry, sequences):
        name = f"{entry.task}:{entry.subtask}"
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def _print(evaluation: Evaluation, steps: int, err: Console) -> None:
    tasks = ", ".join(f"{task} {cost:.3f}" for task, cost in evaluation.by_task.items())
    layer, head = evaluation.worst_head
    err.print(
        f"step {evaluation.step} of {steps}, {evaluation.seconds:.0f} s: held-out cost {evaluation.cost:.3f} "
        f"({tasks}); median head {evaluation.median:.3f}, worst {evaluation.worst:.2f} (layer {layer}, head {head})",
        highlight=False,
        soft_wrap=True,
    )
