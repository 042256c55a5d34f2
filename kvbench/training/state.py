"""A training's own checkpoint: all that a killed training needs to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvbench.errors import KvbenchError, UsageError
from kvbench.record_table import reason
from kvbench.tensor_files import write_tensors

_INFO = "kvbench_training"
_GROUPS = ("weights", "average", "best", "first_moment", "second_moment")


class _Info(BaseModel):
    """What the file says beside its tensors."""

    model_config = ConfigDict(extra="forbid")

    identity: str
    step: int = Field(ge=0)
    seconds: float = Field(ge=0)
    curve: list[dict[str, Any]]
    best_cost: float | None


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
            KvbenchError: The system refuses (a full disk, say); an older file is not touched.
        """
        tensors = {
            f"{group}.{name}": tensor.cpu() for group in _GROUPS for name, tensor in getattr(self, group).items()
        }
        info = _Info(
            identity=identity,
            step=self.step,
            seconds=self.seconds,
            curve=self.curve,
            best_cost=self.best_cost if self.curve else None,
        )
        try:
            write_tensors(path, tensors, {_INFO: info.model_dump_json()})
        except OSError as error:
            raise KvbenchError(f"cannot write to {path}: {reason(error)}") from error

    @classmethod
    def load(cls, path: Path, identity: str, weights: Mapping[str, Tensor]) -> TrainingState:
        """Read a state.

        Args:
            path: The safetensors file.
            identity: The training's.
            weights: What it begins with: every tensor by name, of the shape that the file's must have.

        Raises:
            UsageError: The file is no training's state, or that of another training.
        """
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                names = file.keys()
                tensors = {name: file.get_tensor(name).clone() for name in names}
        except (OSError, SafetensorError) as error:
            raise _no_state(path, str(error)) from error
        try:
            info = _Info.model_validate_json(metadata.get(_INFO, ""))
        except ValidationError as error:
            raise _no_state(path, f"its metadata must have {_INFO}") from error
        if info.identity != identity:
            raise UsageError(
                f"{path} is the state of a training with other settings or traces: delete it to begin anew"
            )
        groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
        for group in _GROUPS:
            for name, tensor in weights.items():
                found = tensors.get(f"{group}.{name}")
                if found is None or (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
                    raise _no_state(path, f"'{group}.{name}' must be {tensor.dtype} {tuple(tensor.shape)}")
                groups[group][name] = found
        best_cost = float("inf") if info.best_cost is None else info.best_cost
        return cls(**groups, step=info.step, seconds=info.seconds, curve=info.curve, best_cost=best_cost)


def _no_state(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is not the state of a training: {why}; delete it to begin anew")
