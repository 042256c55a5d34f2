"""The training loop: all agents at once, each from its own gradient (KVP, arXiv:2602.10238, section 3)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvbench.agents import Agents, AgentsInfo, score_tokens
from kvbench.records import content_hash
from kvbench.training.corpus import Corpus, Split
from kvbench.training.draws import Draw, draw_tokens
from kvbench.training.evaluation import normalised_costs
from kvbench.training.objectives import find_objective
from kvbench.training.processes import Processes
from kvbench.training.settings import TrainingSettings
from kvbench.training.state import TrainingState

_AGENTS_AT_ONCE = 6
"""On a CPU: the features of so many agents' tokens stay in its cache; faster than all at once, with the same result."""
_SAVE_SECONDS = 60.0
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Evaluation:
    """The held-out cost at one point of a training.

    Attributes:
        step: Steps made.
        seconds: Time since the training's start, in all its runs.
        cost: Normalised cost, averaged over heads and held-out sequences: 1 is the best possible.
        by_task: The same for the sequences of each task.
        median: The median head's.
        worst: The worst head's.
        worst_head: Its layer and KV head.
    """

    step: int
    seconds: float
    cost: float
    by_task: dict[str, float]
    median: float
    worst: float
    worst_head: tuple[int, int]


class Trainer:
    """A training, from its first step or from where it was stopped.

    Attributes:
        settings: How it is set up.
        state: Where it stands.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: Split,
        info: AgentsInfo,
        settings: TrainingSettings,
        device: str = "cpu",
        processes: Processes | None = None,
    ) -> None:
        """Set up a training; nothing is computed yet.

        Args:
            corpus: The sequences.
            split: Which of them are learned from.
            info: Which model the agents are for, and their sizes.
            settings: How to train.
            device: Where to.
            processes: This process among those that train together.
        """
        self.settings = settings
        self.identity = content_hash(
            {
                "settings": settings.model_dump(mode="json"),
                "info": info.model_dump(mode="json", exclude={"training"}),
                "train": [corpus.entry(sequence).model_dump(mode="json") for sequence in split.train],
                "held_out": [corpus.entry(sequence).model_dump(mode="json") for sequence in split.held_out],
            }
        )
        self._corpus, self._split, self._info = corpus, split, info
        self._objective = find_objective(settings.objective)
        self._device = torch.device(device)
        self._processes = processes or Processes()
        self._layers = list(corpus.manifest.layers)
        self._untrained = Agents.untrained(info, settings.seed)
        self.state = TrainingState.new(self._flat(self._untrained))

    def run(
        self,
        tell: Callable[[Evaluation], None],
        checkpoint: Path | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Agents:
        """Train to the end, and return the agents with the least held-out cost.

        Args:
            tell: Called after each evaluation, in the first process.
            checkpoint: Where the state is kept, and taken from if there is one.
            stopped: Asked before each step, in the first process, whether to leave the rest for another run.

        Raises:
            KeyboardInterrupt: It was stopped; its state is kept.
        """
        if checkpoint is not None and checkpoint.is_file():
            self.state = TrainingState.load(checkpoint, self.identity, self.state.weights)
        self._to_device()
        begun, saved = time.monotonic() - self.state.seconds, time.monotonic()
        progress = self._progress(begun)
        while progress < 1:
            if self._processes.agree(stopped(), self._device):
                self._save(checkpoint)
                raise KeyboardInterrupt
            self._step(progress)
            self.state.seconds = time.monotonic() - begun
            before, progress = progress, self._progress(begun)
            evaluations = self.settings.evaluations
            due = int(min(progress, 1) * evaluations) > int(before * evaluations)
            if due and self._processes.is_first:
                evaluation = self._evaluate()
                self.state.seconds = time.monotonic() - begun
                tell(evaluation)
            if due or time.monotonic() - saved > _SAVE_SECONDS:
                self._save(checkpoint)
                saved = time.monotonic()
        return self.agents(self.state.best)

    def _save(self, checkpoint: Path | None) -> None:
        if checkpoint is not None and self._processes.is_first:
            self.state.save(checkpoint, self.identity)

    def agents(self, weights: dict[str, Tensor]) -> Agents:
        """Return the agents of the whole model; layers without traces keep their initial weights."""
        full = {name: tensor.detach().clone() for name, tensor in self._untrained.weights.items()}
        for name, tensor in weights.items():
            full[name][self._layers] = tensor.detach().cpu().unflatten(0, (len(self._layers), -1))
        return Agents(self._info, full)

    def _flat(self, agents: Agents) -> dict[str, Tensor]:
        return {name: tensor.detach()[self._layers].flatten(0, 1) for name, tensor in agents.weights.items()}

    def _to_device(self) -> None:
        for group in ("weights", "average", "best", "first_moment", "second_moment"):
            tensors = getattr(self.state, group)
            setattr(self.state, group, {name: tensor.to(self._device) for name, tensor in tensors.items()})

    def _progress(self, begun: float) -> float:
        """Return which part of the training is done: of its steps, or of its time if that is further."""
        steps = self.state.step / self.settings.steps
        if self.settings.minutes is None:
            return steps
        return self._processes.agree(
            max(steps, (time.monotonic() - begun) / (60 * self.settings.minutes)), self._device
        )

    def _step(self, progress: float) -> None:
        """Make one step."""
        batch = self._batch()
        gradients = {name: torch.zeros_like(tensor) for name, tensor in self.state.weights.items()}
        at_once = _AGENTS_AT_ONCE if self._device.type == "cpu" else self._corpus.agents
        if batch:
            for start in range(0, self._corpus.agents, at_once):
                self._add_gradients(slice(start, start + at_once), batch, gradients)
        self._processes.add_up(gradients.values())
        clip(gradients, self.settings.clip)
        self.state.step += 1
        self._update(gradients, learning_rate(self.settings, self.state.step, progress))

    def _batch(self) -> list[_Part]:
        """Draw the step's sequences, a cut of each and tokens of each; keep this process's share."""
        settings = self.settings
        rng = np.random.default_rng([settings.seed, self.state.step])
        count = len(self._split.train)
        chosen = rng.choice(count, settings.batch, replace=settings.batch > count)
        seeds = rng.integers(2**31, size=settings.batch)
        parts = []
        for index, seed in list(zip(chosen, seeds, strict=True))[self._processes.rank :: self._processes.count]:
            own = np.random.default_rng(seed)
            trace = self._corpus.read(self._split.train[index])
            cut = int(own.choice(trace.entry.cuts))
            future = trace.future[cut].flatten(0, 1).to(self._device)
            draw = draw_tokens(future, settings.tokens, settings.certain, own)
            keys, values = (
                _rows(states.flatten(0, 1).to(self._device), draw.tokens) for states in (trace.keys, trace.values)
            )
            parts.append(_Part(draw, keys, values))
        return parts

    def _add_gradients(self, agents: slice, batch: Sequence[_Part], gradients: dict[str, Tensor]) -> None:
        """Add some agents' gradients of the mean loss over the whole step's sequences."""
        weights = {name: tensor[agents].detach().requires_grad_() for name, tensor in self.state.weights.items()}
        keys = torch.cat([part.keys[agents] for part in batch], dim=1).float()
        values = torch.cat([part.values[agents] for part in batch], dim=1).float()
        positions = torch.cat([part.draw.tokens[agents] for part in batch], dim=1)
        scores = score_tokens(self._info.shape, weights, keys, values, positions)
        losses = [
            self._objective(own, part.draw.of(agents)).sum()
            for own, part in zip(scores.split([part.draw.m for part in batch], dim=1), batch, strict=True)
        ]
        loss = torch.stack(losses).sum() / self.settings.batch
        for name, gradient in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
            gradients[name][agents] = gradient

    @torch.no_grad()
    def _update(self, gradients: dict[str, Tensor], lr: float) -> None:
        """Update by AdamW (Loshchilov and Hutter, ICLR 2019), and the moving average with it."""
        state, step = self.state, self.state.step
        corrections = [1 - beta**step for beta in _BETAS]
        decay = min(self.settings.average, (1 + step) / (10 + step))
        for name, gradient in gradients.items():
            weight, first, second = state.weights[name], state.first_moment[name], state.second_moment[name]
            first.lerp_(gradient, 1 - _BETAS[0])
            second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
            denominator = (second / corrections[1]).sqrt_().add_(_EPSILON)
            weight.mul_(1 - lr * self.settings.weight_decay).addcdiv_(first, denominator, value=-lr / corrections[0])
            state.average[name].lerp_(weight, 1 - decay)

    def _evaluate(self) -> Evaluation:
        """Measure the averaged weights on the held-out sequences, and keep them if they are the best."""
        state = self.state
        agents = self.agents(state.average)
        costs: dict[str, list[Tensor]] = {}
        for sequence in self._split.held_out:
            task = self._corpus.entry(sequence).task
            costs.setdefault(task, []).append(normalised_costs(agents, self._corpus.read(sequence), self._layers))
        heads = torch.stack([cost for of_task in costs.values() for cost in of_task]).mean(dim=0)  # [layers, kv_heads]
        cost = float(heads.mean())
        layer, head = divmod(int(heads.argmax()), heads.shape[1])
        evaluation = Evaluation(
            step=state.step,
            seconds=round(state.seconds, 1),
            cost=cost,
            by_task={task: float(torch.stack(of_task).mean()) for task, of_task in costs.items()},
            median=float(heads.median()),
            worst=float(heads.max()),
            worst_head=(self._layers[layer], head),
        )
        state.curve.append(evaluation_record(evaluation))
        if not cost >= state.best_cost:
            state.best_cost = cost
            state.best = {name: tensor.clone() for name, tensor in state.average.items()}
        return evaluation


@dataclass(frozen=True)
class _Part:
    """A sequence's drawn tokens: keys and values `[agents, m, head_dim]`."""

    draw: Draw
    keys: Tensor
    values: Tensor


def _rows(states: Tensor, tokens: Tensor) -> Tensor:
    """Return each agent's own rows, `[agents, m, head_dim]` of `[agents, n, head_dim]`; far faster than gather."""
    agents, n, _ = states.shape
    first = torch.arange(agents, device=states.device).unsqueeze(1) * n
    return states.flatten(0, 1)[first + tokens]


def evaluation_record(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation as plain data, as it is kept in checkpoints."""
    return {
        "step": evaluation.step,
        "seconds": evaluation.seconds,
        "cost": round(evaluation.cost, 5),
        "by_task": {task: round(cost, 5) for task, cost in evaluation.by_task.items()},
        "median": round(evaluation.median, 5),
        "worst": round(evaluation.worst, 5),
        "worst_head": list(evaluation.worst_head),
    }


def learning_rate(settings: TrainingSettings, step: int, progress: float) -> float:
    """Return the learning rate: rising over the warm-up, then along a cosine of the training's progress to its end.

    Args:
        settings: The training's.
        step: The step's number, from 1.
        progress: Which part of the training was done before it, from 0 to 1.
    """
    cosine = settings.last_lr + (settings.lr - settings.last_lr) * (1 + math.cos(math.pi * progress)) / 2
    return cosine * min(1.0, step / max(1, settings.warm_up))


def clip(gradients: dict[str, Tensor], norm: float) -> None:
    """Scale each agent's gradient down to a norm of at most `norm`; one agent's large one leaves the others alone."""
    squares = [gradient.flatten(1).square().sum(dim=1) for gradient in gradients.values()]
    scale = (norm / (torch.stack(squares).sum(dim=0).sqrt() + 1e-6)).clamp(max=1)  # [agents]
    for gradient in gradients.values():
        gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
