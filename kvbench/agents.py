"""The agents of the learned press KVP (arXiv:2602.10238): one small network per layer and KV head.

A checkpoint is a safetensors file. Its metadata says which model the agents belong to, how large they are and
how they were trained, and has the digest of their weights, which identifies them in results.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.models import ModelFacts

_INFO, _DIGEST = "kvbench_agents", "sha256"
_PICKLES = {".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt"}
_TOKENS_AT_ONCE = 1024


class AgentShape(BaseModel):
    """The sizes of one agent's layers; the defaults are the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    head_dim: int = Field(ge=1)
    hidden: int = Field(256, ge=1)
    """Features of the key, of the value, and of both hidden layers."""
    position_features: int = Field(32, ge=1)
    positions: int = Field(6000, ge=1)
    """Rows of the position table; a later position reads the last row."""

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of one agent, by name."""
        linear = {
            "key": (self.head_dim, self.hidden),
            "value": (self.head_dim, self.hidden),
            "first": (2 * self.hidden + self.position_features, self.hidden),
            "second": (self.hidden, self.hidden),
            "score": (self.hidden, 1),
        }
        sizes: dict[str, tuple[int, ...]] = {"position_table": (self.positions, self.position_features)}
        for name, (inputs, outputs) in linear.items():
            sizes |= {f"{name}_weight": (inputs, outputs), f"{name}_bias": (outputs,)}
        for name in ("key", "value", "first", "second"):
            sizes |= {f"{name}_norm_weight": (self.hidden,), f"{name}_norm_bias": (self.hidden,)}
        for part in ("weight", "bias"):
            sizes[f"position_norm_{part}"] = (self.position_features,)
        return sizes

    @property
    def parameters(self) -> int:
        """How many parameters one agent has."""
        return sum(math.prod(size) for size in self.tensors.values())


class AgentsInfo(BaseModel):
    """Which model a set of agents belongs to, how large they are, and how they came to be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    """The version of the checkpoint format."""
    model: str
    """The model's name, as it was given for the training."""
    layers: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    shape: AgentShape
    training: dict[str, Any] = Field(default_factory=dict)
    """What the training says of itself: data, steps, seed, …"""


class Agents(nn.Module):
    """The agents of one model, all in the same tensors with the leading dimensions `[layers, kv_heads]`.

    An agent takes a token's key and value through a linear layer and a layer norm each, and its original
    position through a table and a layer norm. Their concatenation passes two blocks of linear layer, layer
    norm and SiLU, and a last linear layer makes it one number. A layer's heads are scored by one batched
    matrix product per linear layer.

    Attributes:
        info: Which model the agents belong to, and their sizes.
        weights: Every tensor by name, `[layers, kv_heads, *info.shape.tensors[name]]`.
    """

    def __init__(self, info: AgentsInfo, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.info = info
        self.weights = nn.ParameterDict({name: nn.Parameter(weights[name]) for name in info.shape.tensors})

    @classmethod
    def untrained(cls, info: AgentsInfo, seed: int) -> Self:
        """Return agents with torch's usual initial weights for linear layers, norms and tables."""
        generator = torch.Generator().manual_seed(seed)
        weights: dict[str, Tensor] = {}
        for name, size in info.shape.tensors.items():
            layer, _, part = name.rpartition("_")
            tensor = torch.empty(info.layers, info.kv_heads, *size)
            if layer.endswith("norm"):
                weights[name] = tensor.fill_(1.0 if part == "weight" else 0.0)
            elif part == "table":
                weights[name] = tensor.normal_(generator=generator)
            else:
                bound = info.shape.tensors[f"{layer}_weight"][0] ** -0.5
                weights[name] = tensor.uniform_(-bound, bound, generator=generator)
        return cls(info, weights)

    @property
    def digest(self) -> str:
        """The SHA-256 of all weights in float32, by which results name the agents."""
        digest = sha256()
        for name, tensor in sorted(self.weights.items()):
            digest.update(f"{name}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def score(self, layer: int, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        """Score the tokens of one layer; differentiable.

        Args:
            layer: The layer's number in the model.
            keys: Keys after the rotary embedding, `[batch, kv_heads, n, head_dim]`.
            values: Values, of the same shape.
            positions: Original positions, int64 `[batch, kv_heads, n]`.

        Returns:
            float32 `[batch, kv_heads, n]`, higher is kept longer.
        """
        states = torch.cat([keys.float(), values.float()], dim=-1)
        blocks = [slice(start, start + _TOKENS_AT_ONCE) for start in range(0, keys.shape[-2], _TOKENS_AT_ONCE)]
        scores = [self._score(layer, states[..., block, :], positions[..., block]) for block in blocks]
        return torch.cat(scores, dim=-1)

    def _score(self, layer: int, states: Tensor, positions: Tensor) -> Tensor:
        batch = len(states)
        keys, values = states.transpose(0, 1).flatten(1, 2).chunk(2, dim=-1)  # [kv_heads, batch · n, head_dim]
        rows = positions.transpose(0, 1).flatten(1).clamp(max=self.info.shape.positions - 1)
        table = self.weights["position_table"][layer]  # [kv_heads, positions, position_features]
        places = table.gather(1, rows.unsqueeze(-1).expand(-1, -1, table.shape[-1]))
        features = [
            self._norm(layer, "key", self._linear(layer, "key", keys)),
            self._norm(layer, "value", self._linear(layer, "value", values)),
            self._norm(layer, "position", places),
        ]
        x = torch.cat(features, dim=-1)
        for block in ("first", "second"):
            x = functional.silu(self._norm(layer, block, self._linear(layer, block, x)))
        scores = self._linear(layer, "score", x)  # [kv_heads, batch · n, 1]
        return scores.view(len(scores), batch, -1).transpose(0, 1)

    def _linear(self, layer: int, name: str, x: Tensor) -> Tensor:
        bias = self.weights[f"{name}_bias"][layer].unsqueeze(1)
        return torch.baddbmm(bias, x, self.weights[f"{name}_weight"][layer])

    def _norm(self, layer: int, name: str, x: Tensor) -> Tensor:
        weight = self.weights[f"{name}_norm_weight"][layer].unsqueeze(1)
        bias = self.weights[f"{name}_norm_bias"][layer].unsqueeze(1)
        return torch.addcmul(bias, functional.layer_norm(x, x.shape[-1:]), weight)


def save_agents(agents: Agents, path: Path) -> str:
    """Write a checkpoint; a file of that name is replaced only once the new one is complete.

    Returns:
        The digest of the weights.

    Raises:
        UsageError: The file cannot be written.
    """
    digest = agents.digest
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in agents.weights.items()}
    metadata = {_INFO: agents.info.model_dump_json(), _DIGEST: digest}
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(tensors, unfinished, metadata)
        unfinished.replace(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"the agents cannot be written to {path}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return digest


def load_agents(path: Path, model: ModelFacts | None = None) -> Agents:
    """Read a checkpoint and make sure that it is whole and belongs to the model.

    Args:
        path: The safetensors file.
        model: The model that the agents are to rank for; any if none is given.

    Raises:
        UsageError: There is no such file; it is a pickle; it is damaged; it holds something else than agents;
            a tensor is missing, of the wrong shape or not finite; or the agents belong to another model.
    """
    info, digest, weights = _read(path)
    if model is not None:
        _check_model(path, info, model)
    _check_weights(path, info, weights)
    agents = Agents(info, weights)
    if agents.digest != digest:
        raise UsageError(f"{path} is damaged: its weights are not those that were saved (their SHA-256 differs)")
    return agents


def _read(path: Path) -> tuple[AgentsInfo, str, dict[str, Tensor]]:
    if not path.is_file():
        raise UsageError(f"there is no agents file {path}")
    if path.suffix in _PICKLES or _is_pickle(path):
        raise UsageError(f"{path} is a pickle, which can run code when read: agents are read from safetensors only")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            names = file.keys()
            weights = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} cannot be read as safetensors: {error}") from error
    if _INFO not in metadata or _DIGEST not in metadata:
        raise UsageError(f"{path} holds no agents: its metadata must have {_INFO} and {_DIGEST}")
    try:
        info = AgentsInfo.model_validate_json(metadata[_INFO])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise UsageError(f"{path} describes its agents wrongly: {where}: {first['msg'].lower()}") from None
    return info, metadata[_DIGEST], weights


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(9)
    archive = start.startswith(b"PK\x03\x04")  # torch.save's
    bare = start.startswith(b"\x80") and start[8:] != b"{"  # in safetensors, "{" follows the header's length
    return archive or bare


def _check_model(path: Path, info: AgentsInfo, model: ModelFacts) -> None:
    facts = {
        "model": (info.model, model.name),
        "layers": (info.layers, model.layers),
        "KV heads per layer": (info.kv_heads, model.kv_heads),
        "head size": (info.shape.head_dim, model.head_dim),
    }
    for fact, (theirs, ours) in facts.items():
        if theirs != ours:
            raise UsageError(f"{path} holds agents for another model: its {fact} is {theirs}, here it is {ours}")


def _check_weights(path: Path, info: AgentsInfo, weights: Mapping[str, Tensor]) -> None:
    sizes = {name: (info.layers, info.kv_heads, *size) for name, size in info.shape.tensors.items()}
    if odd := sorted(sizes.keys() ^ weights.keys()):
        kind = "lacks the tensor" if odd[0] in sizes else "has an unknown tensor"
        raise UsageError(f"{path} {kind} '{odd[0]}': agents have {', '.join(sizes)}")
    for name, size in sizes.items():
        tensor = weights[name]
        shape = tuple(tensor.shape)
        if shape != size or tensor.dtype != torch.float32:
            raise UsageError(f"{path}: '{name}' is {tensor.dtype} {shape}, it must be torch.float32 {size}")
        if not bool(tensor.isfinite().all()):
            raise UsageError(f"{path}: '{name}' has values that are not finite")
