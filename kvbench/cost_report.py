"""What `kvbench cost` measures, as a file: how much future attention each press evicts, and at what speed it ranks.

    results/cost/<model>_<task>_<hash>.json

One file per protocol and set of samples; measuring another press adds it to the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvbench.errors import KvbenchError, UsageError
from kvbench.mean_interval import Estimate, mean_interval
from kvbench.record_table import reason
from kvbench.records import Environment, content_hash
from kvbench.store import safe_name, write_atomically

RANDOM = "random"
"""The press that every head of another must beat."""


class CostProtocol(BaseModel):
    """All that decides a cost beside the samples and the press."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    model: str
    weights: str
    task: str
    """The task's name without subset."""
    origin: Literal["model", "traces"]
    """Whether the model was run for it, or stored traces were ranked (half-precision keys and values, no queries)."""
    seed: int
    """Of the generated data, and of the seeded presses."""
    rollout: int
    """Most tokens of a generated future."""
    protect_first: int
    protect_last: int
    """How many first and last tokens stand in front of every ranking, the best one's too."""
    dtype: str
    attention: str
    device: str
    budgets: tuple[str, ...]
    """Tokens per KV head ("256"), or shares of the context ("25%")."""
    layers: tuple[int, ...]
    """The numbers of the layers with full attention, which are what is ranked."""
    kv_heads: int


class CostSample(BaseModel):
    """One sample whose cache was ranked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sample: str
    sample_hash: str
    subtask: str
    source: str
    """The source document: samples of one source are one cluster."""
    data: str
    """The source data that the sample was drawn from."""
    tokens: int
    """Tokens of the context, n."""
    future_tokens: int
    """Tokens after it whose attention counts."""


class PressCost(BaseModel):
    """What one press's rankings cost. Lists of samples are in the order of the report's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str
    """Content hash of the press's version, all its parameters and its checkpoint."""
    reads: tuple[str, ...]
    """What the press declares to read."""
    normalised: list[list[list[float]]]
    """C(σ) / C(σ*), `[samples][layers][kv_heads]`, where C(σ) = Σ_b b·u_{σ_b}; 1 is the best."""
    evicted: list[list[float]]
    """The share of all future attention that is evicted, C_b / Σu, mean over heads: `[samples][budgets]`."""
    evicted_by_head: list[list[list[float]]]
    """The same, mean over samples: `[layers][kv_heads][budgets]`."""
    ranking_seconds: list[float]
    """Of all layers, per sample."""
    prefill_seconds: list[float] = Field(default_factory=list)
    """Of the prefill that was ranked, per sample; none where traces were."""

    @property
    def heads(self) -> NDArray[np.float64]:
        """The mean over samples of `normalised`, `[layers, kv_heads]`."""
        means: NDArray[np.float64] = np.asarray(self.normalised).mean(axis=0)
        return means


class CostReport(BaseModel):
    """The costs of some presses on the same samples."""

    model_config = ConfigDict(extra="forbid")

    protocol: CostProtocol
    samples: list[CostSample] = Field(min_length=1)
    environment: Environment
    """What the last press that was added was measured with."""
    presses: dict[str, PressCost]
    """By the press's name, with the parameters that differ from its defaults."""

    def file(self, folder: Path) -> Path:
        """Return the report's file in a folder of reports."""
        samples = [sample.sample_hash for sample in self.samples]
        identity = content_hash([self.protocol.model_dump(mode="json"), samples])
        return folder / f"{safe_name(self.protocol.model)}_{safe_name(self.protocol.task)}_{identity[:12]}.json"

    def mean_of(self, press: str) -> Estimate:
        """Return the mean over heads and samples of C(σ) / C(σ*), with its 95 % interval, clustered by source."""
        scores = np.asarray(self.presses[press].normalised).mean(axis=(1, 2))
        if not np.ptp(scores):  # the oracle's are all 1, which is no proportion
            return Estimate(float(scores[0]))
        sources = np.unique([sample.source for sample in self.samples], return_inverse=True)[1]
        return mean_interval(scores, np.zeros(len(scores), dtype=np.int64), sources, bounded=False)


@dataclass(frozen=True)
class CostSummary:
    """One press of a report in numbers.

    Attributes:
        press: Its label.
        mean: C(σ) / C(σ*) over heads and samples.
        worst: The layer and the KV head with the highest mean over samples.
        worst_mean: That mean.
        worse_than_random: How many heads have a higher mean than `random` has in them; none without `random`.
        speed: Tokens ranked per second and head.
        share_of_prefill: Time of ranking over time of prefill; none where traces were ranked.
    """

    press: str
    mean: Estimate
    worst: tuple[int, int]
    worst_mean: float
    worse_than_random: int | None
    speed: float
    share_of_prefill: float | None


def summarise(report: CostReport) -> list[CostSummary]:
    """Return every press in numbers, the best first."""
    tokens = sum(sample.tokens for sample in report.samples)
    random = report.presses.get(RANDOM)
    summaries = []
    for label, cost in report.presses.items():
        heads = cost.heads
        layer, head = np.unravel_index(heads.argmax(), heads.shape)
        seconds, prefill = sum(cost.ranking_seconds), sum(cost.prefill_seconds)
        summaries.append(
            CostSummary(
                press=label,
                mean=report.mean_of(label),
                worst=(report.protocol.layers[layer], int(head)),
                worst_mean=float(heads.max()),
                worse_than_random=None if random is None else int((heads > random.heads).sum()),
                speed=tokens * heads.size / seconds,
                share_of_prefill=seconds / prefill if prefill else None,
            )
        )
    return sorted(summaries, key=lambda summary: (summary.mean.mean or np.inf, summary.press))


def read_report(file: Path) -> CostReport:
    """Read one report.

    Raises:
        UsageError: The file cannot be read, or is not what kvbench writes.
    """
    try:
        return CostReport.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UsageError(f"the cost report {file} cannot be read: {reason(error)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise UsageError(f"{file} is not a cost report: {where}: {first['msg'].lower()}") from None


def read_reports(folder: Path) -> list[CostReport]:
    """Read all reports of a folder, in the order of their names; none if there is no such folder.

    Raises:
        UsageError: A file in it is not what kvbench writes.
    """
    return [read_report(file) for file in sorted(folder.glob("*.json"))]


def add_to(folder: Path, report: CostReport) -> CostReport:
    """Write a report, with the other presses that its file has already, and return what is written.

    Raises:
        UsageError: The file that is there is not what kvbench writes.
        KvbenchError: It cannot be written.
    """
    file = report.file(folder)
    before = read_report(file).presses if file.exists() else {}
    whole = report.model_copy(update={"presses": {**before, **report.presses}})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, whole.model_dump_json() + "\n")
    except OSError as error:
        raise KvbenchError(f"cannot write to {file}: {reason(error)}") from error
    return whole
