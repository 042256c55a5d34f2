"""What a task's scores mean: whether less is better, and as what their mean is shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvbench.mean_interval import Estimate, known
from kvbench.records import Protocol, ShownAs

ENOUGH = 0.95
"""The share of the full cache's score at which a budget counts as enough."""


@dataclass(frozen=True)
class Measure:
    """How scores are read.

    Attributes:
        lower_is_better: Whether less is better.
        shown_as: "exp" where scores are negative log-likelihoods per token: tables and figures show the exponential
            of their mean, the perplexity. Areas and differences are always those of the mean itself.
    """

    lower_is_better: bool = False
    shown_as: ShownAs = "mean"

    @classmethod
    def of(cls, protocol: Protocol) -> Measure:
        """Return how a protocol's scores are read."""
        return cls(protocol.lower_is_better, protocol.shown_as)

    @property
    def exponential(self) -> bool:
        """Whether the exponential of a mean is shown."""
        return self.shown_as == "exp"

    def shown(self, mean: Estimate) -> Estimate:
        """Return a mean and the ends of its interval as they are shown."""
        if not self.exponential:
            return mean
        with np.errstate(over="ignore"):
            ends = [None if value is None else known(np.exp(value)) for value in (mean.mean, mean.low, mean.high)]
        return Estimate(*ends)

    def enough(self, full: float) -> float:
        """Return the mean score that counts as enough beside the full cache's.

        It is `ENOUGH` of the full cache's; where less is better, what the full cache's is `ENOUGH` of. Of a
        perplexity that is said, not of its logarithm: it may be 1 / `ENOUGH` of the full cache's.
        """
        factor = 1 / ENOUGH if self.lower_is_better else ENOUGH
        return full + float(np.log(factor)) if self.exponential else full * factor

    def reaches(self, mean: float, target: float) -> bool:
        """Whether a mean score is as good as another, but for rounding."""
        short = mean - target if self.lower_is_better else target - mean
        return short <= 1e-12 * abs(target)

    def merit(self, area: float) -> float:
        """Return a number that is larger the better an area is, and 1 for the full cache's."""
        if not self.lower_is_better:
            return area
        return 1 / area if area > 0 else np.inf
