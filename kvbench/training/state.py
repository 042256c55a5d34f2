"""A training's own checkpoint: all that a killed training needs to go on as if nothing had happened."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvbench.errors import UsageError

_INFO = "kvbench_training"
_GROUPS = ("weights", "average", "best", "first_moment", "second_moment")


@dataclass
class TrainingState:
    """Where a training stands.

    Attributes:
        weights: The agents' tensors by name, `[agents, *shape]`.
        average: Their moving average.
        best: The average with the least held-out cost so far.
        first_moment: AdamW's.
        second_moment: AdamW's.
        step: Steps that have been made.
        seconds: Time that they took, evaluations included.
        curve: What each evaluation found.
        best_cost: The least held-out cost.
    """

    weights: dict[str, Tensor]
    average: dict[str, Tensor]
    best: dict[str, Tensor]
    first_moment: dict[str, Tensor]
    second_moment: dict[str, Tensor]
    step: int = 0
    seconds: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)
    best_cost: float = float("inf")

    @classmethod
    def new(cls, weights: Mapping[str, Tensor]) -> TrainingState:
        """Return the state before the first step."""

        def copy() -> dict[str, Tensor]:
            return {name: tensor.clone() for name, tensor in weights.items()}

        def zeros() -> dict[str, Tensor]:
            return {name: torch.zeros_like(tensor) for name, tensor in weights.items()}

        return cls(copy(), copy(), copy(), zeros(), zeros())

    def save(self, path: Path, identity: str) -> None:
        """Write the state; a file of that name is replaced only once the new one is complete.

        Args:
            path: The safetensors file.
            identity: What must be the same for the training to go on from it.

        Raises:
            UsageError: The file cannot be written.
        """
        tensors = {
            f"{group}.{name}": tensor.contiguous().cpu()
            for group in _GROUPS
            for name, tensor in getattr(self, group).items()
        }
        best_cost = self.best_cost if self.curve else None
        info = {"step": self.step, "seconds": self.seconds, "curve": self.curve, "best_cost": best_cost}
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            save_file(tensors, unfinished, {_INFO: json.dumps({"identity": identity, **info})})
            unfinished.replace(path)
        except (OSError, SafetensorError) as error:
            raise UsageError(f"the training's state cannot be written to {path}: {error}") from error
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path, identity: str) -> TrainingState:
        """Read a state.

        Raises:
            UsageError: The file is no training's state, or that of another training.
        """
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                names = file.keys()
                tensors = {name: file.get_tensor(name).clone() for name in names}
            info = json.loads(metadata[_INFO])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise UsageError(f"{path} is not the state of a training: {error}; delete it to begin anew") from error
        if info["identity"] != identity:
            raise UsageError(
                f"{path} is the state of a training with other settings or traces: delete it to begin anew"
            )
        groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
        for key, tensor in tensors.items():
            group, _, name = key.partition(".")
            groups[group][name] = tensor
        best_cost = float("inf") if info["best_cost"] is None else info["best_cost"]
        return cls(**groups, step=info["step"], seconds=info["seconds"], curve=info["curve"], best_cost=best_cost)
