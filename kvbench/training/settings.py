"""How a training is set up, and the values that were found good."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvbench.agents import AgentShape
from kvbench.errors import UsageError, unknown

AgentKind = Literal["paper", "small"]


class TrainingSettings(BaseModel):
    """What decides the outcome of a training, beside the traces."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    objective: str = "exact"
    agent: AgentKind = "small"
    steps: int = Field(ge=1)
    lr: float = Field(gt=0)
    """The highest learning rate, reached after the warm-up."""
    last_lr: float = Field(1e-6, ge=0)
    """Where the cosine ends."""
    warm_up: int = Field(ge=0)
    """Steps over which the learning rate rises."""
    weight_decay: float = Field(1e-3, ge=0)
    batch: int = Field(ge=1)
    """Sequences per step, of all processes together."""
    tokens: int = Field(ge=4)
    """Tokens of a sequence that a step sees, per agent."""
    certain: float = Field(0.5, ge=0, lt=1)
    """Which share of them are those with the largest u; the others are random."""
    clip: float = Field(5.0, gt=0)
    """The largest norm of one agent's gradient."""
    average: float = Field(0.99, ge=0, lt=1)
    """Decay of the moving average of the weights, which is what is evaluated and kept."""
    held_out: float = Field(0.15, gt=0, lt=1)
    """The share of each task's sequences that is held out."""
    held_out_most: int = Field(16, ge=1)
    """The most of a task that are held out."""
    evaluations: int = Field(10, ge=1)
    """How often the held-out cost is measured."""
    minutes: float | None = Field(None, gt=0)
    """Stop after so many, with the schedule stretched over them, if that is before the last step."""
    seed: int = Field(0, ge=0)


_DEFAULTS: dict[str, dict[str, float]] = {
    # The paper's: section 4 and its appendix; one sequence per step, up to its whole length.
    "paper": {"steps": 4000, "lr": 5e-5, "warm_up": 100, "batch": 1, "tokens": 2048},
    # Found by trying on held-out traces of SmolLM2: README, "KVP".
    "small": {"steps": 400, "lr": 3e-3, "warm_up": 20, "batch": 4, "tokens": 512},
}


def make_settings(agent: str, **given: object) -> TrainingSettings:
    """Return an agent kind's defaults with what is `given`; None stands for the default.

    Raises:
        UsageError: There is no such kind of agent, or a value is out of range.
    """
    if agent not in _DEFAULTS:
        raise unknown("agent", agent, _DEFAULTS)
    chosen = {name: value for name, value in given.items() if value is not None}
    try:
        return TrainingSettings.model_validate({"agent": agent, **_DEFAULTS[agent], **chosen})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{first['loc'][0]} '{first['input']}' is not allowed: {first['msg'].lower()}") from None


def shape_of(agent: AgentKind, head_dim: int) -> AgentShape:
    """Return the sizes of an agent: the paper's, or the small ones that are embedded with kvbench."""
    if agent == "paper":
        return AgentShape(head_dim=head_dim)
    return AgentShape(head_dim=head_dim, hidden=96, position="log_cosines", position_features=8, positions=131_072)
