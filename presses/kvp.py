"""KVP: a learned order."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from kvbench.agents import Agents, load_agents
from kvbench.errors import UsageError
from kvbench.press import LayerCache, Reads, ScorePress

if TYPE_CHECKING:
    from kvbench.models import ModelFacts


class KVP(ScorePress):
    """Learned: a small network per KV head foresees the attention a token will get.

    An agent scores a token from its key, its value and its original position alone, and was trained so that
    sorting by the score loses the least future attention over all budgets. The checkpoint holds the agents of
    all layers and heads of one model.
    """

    paper: ClassVar[str] = "Learning to Evict from Key-Value Cache, arXiv:2602.10238 (ICML 2026)"
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS, Reads.VALUES, Reads.POSITIONS})

    static_scores: ClassVar[bool] = True

    checkpoint: str | None = Field(None, description="The safetensors file with the model's trained agents.")
    _agents: Agents | None = PrivateAttr(default=None)
    _digest: str | None = PrivateAttr(default=None)

    def for_model(self, model: "ModelFacts") -> Self:
        """Return a copy with the agents loaded and checked against the model.

        Raises:
            UsageError: No checkpoint is given, it cannot be used, or it belongs to another model.
        """
        ready = self.model_copy()
        ready._agents = load_agents(self._file(), model)
        ready._digest = ready._agents.digest
        return ready

    def identity(self) -> dict[str, object]:
        """Return version and parameters, with the digest of the agents' weights for the file's name.

        Raises:
            UsageError: No checkpoint is given, or it cannot be used.
        """
        return {**super().identity(), "checkpoint": self._digest or load_agents(self._file()).digest}

    @torch.no_grad()
    def score(self, layer: LayerCache) -> Tensor:
        """Return the agents' scores."""
        if self._agents is None:
            raise UsageError(f"the agents of {self._file()} are not loaded: they are checked against a model first")
        agents = self._agents.to(layer.keys.device)
        return agents.score(layer.index, layer.keys, layer.values, layer.positions)

    def _file(self) -> Path:
        if self.checkpoint is None:
            raise UsageError("press kvp needs trained agents: give them with kvp:checkpoint=FILE")
        return Path(self.checkpoint)
