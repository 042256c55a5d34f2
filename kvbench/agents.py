"""The agents of the learned press KVP (arXiv:2602.10238): one small network per layer and KV head.

A checkpoint is a safetensors file. Its metadata says which model the agents belong to, how large they are and
how they were trained, and has the digest of their weights, which identifies them in results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from kvbench.embedded_model import ALIAS, HUB_ID
from kvbench.errors import UsageError
from kvbench.record_table import reason
from kvbench.tensor_files import write_tensors

if TYPE_CHECKING:
    from kvbench.models import ModelFacts

_INFO, _DIGEST = "kvbench_agents", "sha256"
_PICKLES = {".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt"}
CHECKPOINTS = Path(__file__).parent / "checkpoints"
"""The agents that come with kvbench, `<model>[-<variant>].safetensors`."""
MIXTURE = "mixture"
"""The variant that was trained on all kinds of traces."""
_STORED = (torch.float32, torch.float16)
_TOKENS_AT_ONCE = 1024


class AgentShape(BaseModel):
    """The sizes of one agent's layers; the defaults are the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    head_dim: int = Field(ge=1)
    hidden: int = Field(default=256, ge=1)
    """Features of the key, of the value, and of both hidden layers."""
    position: Literal["table", "log_cosines"] = "table"
    """How a position is read: from a learned table with a layer norm, as in the paper, or as fixed cosines of its
    logarithm, which change little where training ended."""
    position_features: int = Field(default=32, ge=1)
    positions: int = Field(default=6000, ge=1)
    """How many positions are told apart; a later one counts as the last."""

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
        sizes: dict[str, tuple[int, ...]] = {}
        if self.position == "table":
            sizes["position_table"] = (self.positions, self.position_features)
            sizes |= {f"position_norm_{part}": (self.position_features,) for part in ("weight", "bias")}
        for name, (inputs, outputs) in linear.items():
            sizes |= {f"{name}_weight": (inputs, outputs), f"{name}_bias": (outputs,)}
        for name in ("key", "value", "first", "second"):
            sizes |= {f"{name}_norm_weight": (self.hidden,), f"{name}_norm_bias": (self.hidden,)}
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
    weights: str = ""
    """Which weights the traces came from, as `ModelFacts.weights` says it."""
    layers: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    shape: AgentShape
    training: dict[str, Any] = Field(default_factory=dict)
    """What the training says of itself: data, steps, seed, …"""


class Agents(nn.Module):
    """The agents of one model, all in the same tensors with the leading dimensions `[layers, kv_heads]`.

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
        weights = {name: tensor[layer] for name, tensor in self.weights.items()}
        batch = len(keys)
        # [kv_heads, batch · n, …]
        places = positions.transpose(0, 1).flatten(1)
        states = [states.transpose(0, 1).flatten(1, 2) for states in (keys, values)]
        blocks: Any = zip(*(t.split(_TOKENS_AT_ONCE, dim=1) for t in (*states, places)), strict=True)
        scores = [
            score_tokens(self.info.shape, weights, own_keys.float(), own_values.float(), rows)
            for own_keys, own_values, rows in blocks
        ]
        together = torch.cat(scores, dim=-1)  # [kv_heads, batch · n]
        return together.view(len(together), batch, -1).transpose(0, 1)


def score_tokens(
    shape: AgentShape, weights: Mapping[str, Tensor], keys: Tensor, values: Tensor, positions: Tensor
) -> Tensor:
    """Score tokens by several agents, each its own tokens, in one batched matrix product per linear layer.

    An agent takes a token's key and value through a linear layer and a layer norm each. With the features of the
    original position they pass two blocks of linear layer, layer norm and SiLU, and a last linear layer makes of
    them one number (KVP, arXiv:2602.10238, section 3).

    Args:
        shape: The agents' sizes.
        weights: Every tensor by name, `[agents, *shape.tensors[name]]`.
        keys: Keys after the rotary embedding, float32 `[agents, t, head_dim]`.
        values: Values, of the same shape.
        positions: Original positions, int64 `[agents, t]`.

    Returns:
        float32 `[agents, t]`.
    """

    def linear(name: str, x: Tensor) -> Tensor:
        return torch.baddbmm(weights[f"{name}_bias"].unsqueeze(1), x, weights[f"{name}_weight"])

    def norm(name: str, x: Tensor) -> Tensor:
        weight, bias = (weights[f"{name}_norm_{part}"].unsqueeze(1) for part in ("weight", "bias"))
        return torch.addcmul(bias, functional.layer_norm(x, x.shape[-1:]), weight)

    rows = positions.clamp(max=shape.positions - 1)
    if shape.position == "table":
        table = weights["position_table"]  # [agents, positions, position_features]
        place = norm("position", table.gather(1, rows.unsqueeze(-1).expand(-1, -1, table.shape[-1])))
    else:
        place = log_cosines(rows, shape.position_features, shape.positions)
    x = torch.cat([norm("key", linear("key", keys)), norm("value", linear("value", values)), place], dim=-1)
    for block in ("first", "second"):
        x = functional.silu(norm(block, linear(block, x)))
    scores: Tensor = linear("score", x)
    return scores.squeeze(-1)


def log_cosines(positions: Tensor, features: int, last: int) -> Tensor:
    """Return cos(π k x) for k = 1 … `features`, where x = log(1 + position) / log(1 + `last`): `[…, features]`."""
    x = positions.float().log1p() / math.log1p(last)
    return (x.unsqueeze(-1) * torch.arange(1, features + 1, device=x.device) * math.pi).cos()


def save_agents(agents: Agents, path: Path, dtype: torch.dtype = torch.float32) -> str:
    """Write a checkpoint; a file of that name is replaced only once the new one is complete.

    Args:
        agents: The agents.
        path: The safetensors file.
        dtype: What the weights are rounded to, float32 or float16; they are used in float32 either way.

    Returns:
        The digest of the weights, as they are stored.

    Raises:
        UsageError: The file cannot be written.
    """
    tensors = {name: tensor.detach().to("cpu", dtype) for name, tensor in agents.weights.items()}
    digest = Agents(agents.info, {name: tensor.float() for name, tensor in tensors.items()}).digest
    try:
        write_tensors(path, tensors, {_INFO: agents.info.model_dump_json(), _DIGEST: digest})
    except OSError as error:
        raise UsageError(f"the agents cannot be written to {path}: {reason(error)}") from error
    return digest


def load_agents(path: Path, model: ModelFacts | None = None, transfer: bool = False) -> Agents:
    """Read a checkpoint and make sure that it is whole and belongs to the model.

    The model is the agents' own if its name is, however it is spelled (`short_name`), or its weights are.

    Args:
        path: The safetensors file.
        model: The model that the agents are to rank for; any if none is given.
        transfer: Let the model be another one of the same shape.

    Raises:
        UsageError: There is no such file; it is a pickle; it is damaged; it holds something else than agents;
            a tensor is missing, of the wrong shape or not finite; or the agents belong to another model.
    """
    info, digest, weights = _read(path)
    if model is not None:
        _check_model(path, info, model, transfer)
    _check_weights(path, info, weights)
    agents = Agents(info, {name: tensor.float() for name, tensor in weights.items()})
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


def shipped_agents(model: ModelFacts, variant: str) -> Path:
    """Return the file of the agents that come with kvbench for a model.

    Args:
        model: The model.
        variant: `mixture`, or what the agents were trained on alone.

    Raises:
        UsageError: None come with it.
    """
    suffix = "" if variant == MIXTURE else f"-{variant}"
    file = CHECKPOINTS / f"{short_name(model.name)}{suffix}.safetensors"
    if not file.is_file():
        raise UsageError(
            f"kvbench comes without{f' {variant}' if suffix else ''} agents for {model.name}: train them with "
            "`kvbench train`, then give them with kvp:checkpoint=FILE"
        )
    return file


def short_name(model: str) -> str:
    """Return what a model's names have in common: the last part, in small letters, or kvbench's alias for it."""
    name = model.rpartition("/")[2].lower()
    return ALIAS if name == HUB_ID.rpartition("/")[2].lower() else name


def _check_model(path: Path, info: AgentsInfo, model: ModelFacts, transfer: bool) -> None:
    facts = {
        "layers": (info.layers, model.layers),
        "KV heads per layer": (info.kv_heads, model.kv_heads),
        "head size": (info.shape.head_dim, model.head_dim),
    }
    for fact, (theirs, ours) in facts.items():
        if theirs != ours:
            raise UsageError(f"{path} holds agents for another model: {fact} {theirs}, here {ours}")
    own = short_name(info.model) == short_name(model.name) or info.weights == model.weights
    if not (own or transfer):
        raise UsageError(
            f"{path} holds agents for another model: {info.model}, here {model.name}; if the two "
            "are as good as the same, say kvp:transfer=true"
        )


def _check_weights(path: Path, info: AgentsInfo, weights: Mapping[str, Tensor]) -> None:
    sizes = {name: (info.layers, info.kv_heads, *size) for name, size in info.shape.tensors.items()}
    if odd := sorted(sizes.keys() ^ weights.keys()):
        kind = "lacks the tensor" if odd[0] in sizes else "has an unknown tensor"
        raise UsageError(f"{path} {kind} '{odd[0]}': agents have {', '.join(sizes)}")
    for name, size in sizes.items():
        tensor = weights[name]
        shape = tuple(tensor.shape)
        if shape != size or tensor.dtype not in _STORED:
            raise UsageError(f"{path}: '{name}' is {tensor.dtype} {shape}, it must be torch.float32 or float16 {size}")
        if not bool(tensor.isfinite().all()):
            raise UsageError(f"{path}: '{name}' has values that are not finite")
