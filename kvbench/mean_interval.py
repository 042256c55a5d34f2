"""The mean over subtasks of their mean scores, with an interval that holds the truth also where documents are few.

Scores of one source document vary together, so sources are what was sampled. A subtask's mean is a ratio of sums,
Σ w·x / Σ w; its variance is the cluster-robust one of its sources' summed residuals, times G / (G − 1) for G sources.
The interval is Student's. Its degrees of freedom are Bell & McCaffrey's (Survey Methodology 28, 2002) for sources of
unequal weight, G − 1 where all weigh the same, and Satterthwaite's of their sum over subtasks.

Of scores between 0 and 1 the ends are Wilson's at the effective number of answers, p (1 − p) / variance, with Student's
quantile (Franco, Little, Louis & Slud, Journal of Survey Statistics and Methodology 7, 2019): near 0 and 1, where few
sources bring most of the variance, the symmetric interval holds the truth too rarely (`benchmarks/coverage.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from kvbench.bootstrap import CONFIDENCE, Codes, Floats, freedom_of, indicator


@dataclass(frozen=True)
class Estimate:
    """A number and its interval; each is None where the scores do not determine it."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None


def mean_interval(
    scores: ArrayLike,
    subtasks: ArrayLike,
    sources: ArrayLike,
    weights: ArrayLike | None = None,
    bounded: bool | None = None,
) -> Estimate:
    """Estimate the unweighted mean of the subtasks' weighted mean scores, with its 95 % interval.

    With one subtask and one score per source it is the plain t interval; where these scores are all 0 or 1 and weigh
    the same it is Wilson's. In a mean over several subtasks such a proportion has the variance of (successes + ½) /
    (n + 1), which is not 0 where all succeed or all fail. Where every score is 0, or every one 1, sources count as
    answers.

    Args:
        scores: `[n]`.
        subtasks: `[n]`, the subtask of each score as an integer.
        sources: `[n]`, the source document of each score as an integer.
        weights: `[n]`, what each score counts in its subtask's mean; 1 by default.
        bounded: Whether scores lie between 0 and 1 by their nature; by default, whether these do.

    Returns:
        No mean without scores; no interval if a subtask has a single source, or the scores have no spread.
    """
    scores = np.asarray(scores, float)
    if not len(scores):
        return Estimate()
    if bounded is None:
        bounded = lie_between_0_and_1(scores)
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, float)
    [estimate] = mean_intervals(scores[:, None], np.asarray(subtasks), np.asarray(sources), weights, bounded)
    return estimate


def lie_between_0_and_1(scores: Floats) -> bool:
    """Whether all scores do; NaN is none."""
    known = scores[~np.isnan(scores)]
    return bool(np.all((known >= 0) & (known <= 1)))


def mean_intervals(
    scores: Floats, subtasks: Codes, sources: Codes, weights: Floats, bounded: bool
) -> Sequence[Estimate]:
    """Return what `mean_interval` does for each column of `[n, k]` scores of the same samples."""
    sample = _Sample.of(subtasks, sources, weights)
    means = sample.means(scores)  # [subtasks, k]
    proportions = sample.proportions(scores)  # [subtasks, k]
    variance, freedom = sample.variance_of_mean(scores, means, proportions)
    mean = means.mean(axis=0)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance)
    low, high = mean - half, mean + half
    if bounded:
        low, high = _wilson_ends(mean, variance, freedom, proportions[0] & (len(means) == 1), sample)
    return [Estimate(*map(known, ends)) for ends in zip(mean, low, high, strict=True)]


def known(number: float) -> float | None:
    """Return a number, None for what is none."""
    return float(number) if np.isfinite(number) else None


@dataclass(frozen=True)
class _Sample:
    """What was sampled: subtasks and sources from 0, and each score's share of its subtask's weight.

    A part is a source within a subtask.
    """

    subtask: Codes
    source: Codes
    share: Floats  # [n]
    part: Codes  # [n]
    part_subtask: Codes  # [parts]
    part_source: Codes  # [parts]
    part_share: Floats  # [parts]

    @classmethod
    def of(cls, subtasks: Codes, sources: Codes, weights: Floats) -> _Sample:
        subtask, source = (np.unique(codes, return_inverse=True)[1] for codes in (subtasks, sources))
        share = weights / np.bincount(subtask, weights)[subtask]
        parts, part = np.unique(subtask * len(subtask) + source, return_inverse=True)
        part_subtask, part_source = np.divmod(parts, len(subtask))
        part_share = np.bincount(part, share).astype(float)
        return cls(subtask, source, share, part, part_subtask, part_source, part_share)

    @property
    def sources(self) -> Codes:
        """How many each subtask has."""
        return np.bincount(self.part_subtask)

    @property
    def has_lone_source(self) -> bool:
        """Whether some subtask has a single source."""
        return bool(np.any(self.sources == 1))

    @property
    def answers_of_sources(self) -> float:
        """How many answers would tell as much as the sources if all answers of a source were the same."""
        each = 1 / np.bincount(self.part_subtask, self.part_share**2)
        return float(len(each) ** 2 / np.sum(1 / each))

    def means(self, scores: Floats) -> Floats:
        """Return the subtasks' weighted means, `[subtasks, k]`."""
        return indicator(self.subtask, len(self.sources)) @ (scores * self.share[:, None])

    def proportions(self, scores: Floats) -> NDArray[np.bool_]:
        """Return which subtasks' scores are all 0 or 1, each from a source of its own, and weigh the same."""
        answers = np.bincount(self.subtask)
        own_source = np.bincount(self.source)[self.source] == 1
        alike = np.isclose(self.share * answers[self.subtask], 1)
        graded = ~np.isin(scores, (0, 1)) | ~(own_source & alike)[:, None]
        none: NDArray[np.bool_] = indicator(self.subtask, len(answers)) @ graded == 0
        return none

    def variance_of_mean(self, scores: Floats, means: Floats, proportions: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return the variances `[k]` of the means over subtasks and their degrees of freedom; NaN if unknown."""
        unknown = np.full(scores.shape[1], np.nan)
        if self.has_lone_source:
            return unknown, unknown
        subtasks, n = len(self.sources), np.bincount(self.subtask)[:, None]
        residuals = np.where(proportions[self.subtask], 0, scores - means[self.subtask]) * self.share[:, None]
        factor = np.sqrt(self.sources / (self.sources - 1))[self.part_subtask]
        clustered = indicator(self.part, len(self.part_share)) @ residuals * factor[:, None]
        smoothed = (means * n + 0.5) / (n + 1)
        squares = indicator(self.part_subtask, subtasks) @ clustered**2
        variances = np.where(proportions, smoothed * (1 - smoothed) / n, squares)
        variances[:, ~variances.any(axis=0)] = np.nan
        # Summed by source over the subtasks: a source that several of them share brings their covariance.
        shared = indicator(self.part_source, self.source.max() + 1) @ clustered
        variance = np.sum(variances * proportions, axis=0) + np.sum(shared**2, axis=0)
        each = np.array([freedom_of(self.part_share[self.part_subtask == place]) for place in range(subtasks)])
        freedom = np.sum(variances, axis=0) ** 2 / np.sum(variances**2 / each[:, None], axis=0)
        return variance / subtasks**2, np.minimum(freedom, self.source.max() + 1)


def _wilson_ends(
    mean: Floats, variance: Floats, freedom: Floats, plain: NDArray[np.bool_], sample: _Sample
) -> tuple[Floats, Floats]:
    """Return Wilson's ends at the effective number of answers; `plain` says which means are plain proportions."""
    normal = stats.norm.ppf((1 + CONFIDENCE) / 2)
    all_alike = ((mean < _ROUNDING) | (mean > 1 - _ROUNDING)) & (not sample.has_lone_source)
    with np.errstate(divide="ignore", invalid="ignore"):
        answers = mean * (1 - mean) / variance
    answers = np.where(plain, len(sample.share), np.where(all_alike, sample.answers_of_sources, answers))
    quantile = np.where(plain | all_alike, normal, stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    z2 = quantile**2 / answers
    centre = (mean + z2 / 2) / (1 + z2)
    half = np.sqrt(mean * (1 - mean) * z2 + z2**2 / 4) / (1 + z2)
    return centre - half, centre + half


_ROUNDING = 1e-12
