"""KVP: a learned order."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from kvbench.agents import Agents, load_agents, shipped_agents
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

    variant: Literal["mixture", "ruler", "oasst2"] = Field(
        "mixture", description="Which agents of kvbench's own: trained on RULER, on conversations, or on both."
    )
    checkpoint: str | None = Field(None, description="A safetensors file with trained agents, in place of kvbench's.")
    transfer: bool = Field(False, description="Use a checkpoint that was trained for another model of the same shape.")
    _agents: Agents | None = PrivateAttr(default=None)
    _digest: str | None = PrivateAttr(default=None)

    def for_model(self, model: "ModelFacts") -> Self:
        """Return a copy with the agents loaded and checked against the model.

        Raises:
            UsageError: There is no checkpoint for the model, it cannot be used, or it belongs to another model.
        """
        file = Path(self.checkpoint) if self.checkpoint else shipped_agents(model, self.variant)
        ready = self.model_copy()
        ready._agents = load_agents(file, model, self.transfer)
        ready._digest = ready._agents.digest
        return ready

    def identity(self) -> dict[str, object]:
        """Return the version and the digest of the agents' weights, wherever their file lies.

        Raises:
            UsageError: The agents are kvbench's own, which are not known before the model is, or cannot be read.
        """
        return {"version": self.version, "checkpoint": self._digest or load_agents(self._file()).digest}

    @torch.no_grad()
    def score(self, layer: LayerCache) -> Tensor:
        """Return the agents' scores."""
        if self._agents is None:
            raise UsageError(f"the agents of {self._file()} are not loaded: they are checked against a model first")
        agents = self._agents.to(layer.keys.device)
        return agents.score(layer.index, layer.keys, layer.values, layer.positions)

    def _file(self) -> Path:
        if self.checkpoint is None:
            raise UsageError("press kvp takes agents that belong to a model: say which, or give kvp:checkpoint=FILE")
        return Path(self.checkpoint)
