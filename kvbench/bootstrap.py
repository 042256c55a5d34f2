"""The cluster bootstrap: intervals and p-values of what is computed from means, such as ratios and differences.

What was sampled are source documents, so they are what is resampled, within the subtasks that they belong to. From
each stratum of G clusters a resample draws G − 1 and weighs them by G / (G − 1), which makes the variance right for
few clusters (Rao & Wu 1988). Every statistic of one `ClusterBootstrap` sees the same resamples: differences between
presses are paired.

An interval is the bootstrap's standard error times Student's quantile (Efron & Tibshirani 1993, chapter 12), with
Satterthwaite's degrees of freedom from the influence values of the nonparametric delta method (Davison & Hinkley
1997, section 2.7) and, in strata whose clusters weigh differently, Bell & McCaffrey's (2002).
`benchmarks/coverage.py` shows why: at the few documents that benchmarks have, percentile and BCa intervals hold the
truth too rarely. Bootstrap-t divides by the resample's own error, which is 0 in many resamples where nearly all
samples say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

CONFIDENCE = 0.95
RESAMPLES = 2_000
SEED = 0

_BLOCK = 1 << 22  # weights drawn at a time
_NO_SPREAD = 1e-12  # a standard error that is nothing but rounding

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Statistics:
    """Some numbers computed from the same samples, k of them.

    Attributes:
        estimate: `[k]`, from the samples themselves; NaN where they do not determine it.
        resampled: `[resamples, k]`, from each resample.
        influence: `[clusters, k]`, what each cluster adds to the estimate, to first order; sums to 0 in a stratum.
    """

    estimate: Floats
    resampled: Floats
    influence: Floats

    def __getitem__(self, columns: slice) -> Statistics:
        """Return some of the numbers."""
        return Statistics(self.estimate[columns], self.resampled[:, columns], self.influence[:, columns])

    def __matmul__(self, weights: Floats) -> Statistics:
        """Return weighted sums; weights are `[k, sums]`."""
        return Statistics(self.estimate @ weights, self.resampled @ weights, self.influence @ weights)

    def __sub__(self, other: Statistics) -> Statistics:
        """Return differences."""
        return Statistics(
            self.estimate - other.estimate, self.resampled - other.resampled, self.influence - other.influence
        )

    def __truediv__(self, other: Statistics) -> Statistics:
        """Return ratios, each computed inside its resample."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.estimate / other.estimate
            resampled = self.resampled / other.resampled
            influence = (self.influence - ratio * other.influence) / other.estimate
        return Statistics(ratio, resampled, influence)


@dataclass(frozen=True)
class Intervals:
    """What the bootstrap says about k numbers; NaN where the samples do not determine it.

    Attributes:
        low: `[k]`.
        high: `[k]`.
        p: `[k]`, two-sided, of the hypothesis that the number is 0.
    """

    low: Floats
    high: Floats
    p: Floats


class ClusterBootstrap:
    """Resamples of the source documents behind some samples.

    Subtasks that share sources make one stratum, which is resampled as a whole; ordinarily each subtask is one.
    """

    def __init__(
        self,
        subtasks: ArrayLike,
        sources: ArrayLike,
        resamples: int = RESAMPLES,
        seed: int = SEED,
        weights: ArrayLike | None = None,
    ) -> None:
        """Prepare the resamples.

        Args:
            subtasks: `[n]`, the subtask of each sample as an integer.
            sources: `[n]`, the source document of each sample as an integer.
            resamples: How many.
            seed: Of the resamples.
            weights: `[n]`, what each sample counts in its subtask's mean; 1 by default.
        """
        self._subtask = np.unique(subtasks, return_inverse=True)[1]
        self._cluster, self._strata = _clusters(self._subtask, np.unique(sources, return_inverse=True)[1])
        self._weight = np.ones(len(self._subtask)) if weights is None else np.asarray(weights, float)
        share = np.bincount(self._cluster, self._weight / np.bincount(self._subtask, self._weight)[self._subtask])
        self._freedom = np.array([freedom_of(share[part] / share[part].sum()) for part in self._strata])
        self._resamples = resamples
        self._seed = seed

    def means(self, values: ArrayLike) -> Statistics:
        """Return the unweighted means over the subtasks of the subtasks' weighted mean values.

        Args:
            values: `[n, k]`, NaN where a sample has none.
        """
        scores: Floats = np.asarray(values, float)
        present = ~np.isnan(scores)
        # Most columns have values of the same samples: those are counted once per distinct set.
        patterns, pattern = distinct_columns(present)
        weighted = np.where(present, scores, 0) * self._weight[:, None]
        counted = patterns * self._weight[:, None]
        subtasks = self._subtask.max() + 1
        estimate = np.zeros(scores.shape[1])
        resampled = np.zeros((self._resamples, scores.shape[1]))
        influence = np.zeros((self._strata[-1].stop, scores.shape[1]))
        for subtask in range(subtasks):
            rows = self._subtask == subtask
            stratum = next(part for part in self._strata if part.start <= self._cluster[rows][0] < part.stop)
            member = indicator(self._cluster[rows] - stratum.start, stratum.stop - stratum.start)
            sums, counts = member @ weighted[rows], member @ counted[rows]  # [clusters, k], [clusters, patterns]
            with np.errstate(divide="ignore", invalid="ignore"):
                n = counts.sum(0)[pattern]
                mean = sums.sum(0) / n
                estimate += mean / subtasks
                influence[stratum] += (sums - mean * counts[:, pattern]) / n / subtasks
                for block, weights in self._weights(stratum):
                    resampled[block] += (weights @ sums) / (weights @ counts)[:, pattern] / subtasks
        return Statistics(estimate, resampled, influence)

    def intervals(self, statistics: Statistics) -> Intervals:
        """Return 95 % intervals, and p-values of being 0.

        Where all clusters of each subtask say the same there is no interval, and p is that of the sign test over
        clusters. A stratum with a single cluster, or a statistic that some resample does not determine, has neither.
        """
        variance, freedom = self._variance(statistics.influence)
        estimate, spread = statistics.estimate, variance > _NO_SPREAD**2
        with np.errstate(divide="ignore", invalid="ignore"):
            error = statistics.resampled.std(axis=0)
            half = np.where(spread, error * stats.t.ppf((1 + CONFIDENCE) / 2, freedom), np.nan)
            p = 2 * stats.t.sf(np.abs(estimate) / error, freedom)
        unanimous = np.where(np.abs(estimate) > _NO_SPREAD, 0.5 ** (len(statistics.influence) - 1), 1.0)
        p = np.where(spread, p, np.where(np.isnan(variance + estimate), np.nan, unanimous))
        return Intervals(estimate - half, estimate + half, p)

    def _variance(self, influence: Floats) -> tuple[Floats, Floats]:
        """Return the delta method's variances `[k]` and their degrees of freedom, NaN where there is no telling."""
        size = np.array([part.stop - part.start for part in self._strata])[:, None]
        freedom = self._freedom[:, None]
        squares = np.add.reduceat(influence**2, [part.start for part in self._strata])  # [strata, k]
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(size > 1, squares * size / (size - 1), np.nan)
            return parts.sum(axis=0), parts.sum(axis=0) ** 2 / np.sum(parts**2 / freedom, axis=0)

    def _weights(self, stratum: slice) -> Iterator[tuple[slice, Floats]]:
        """Yield how often each resample drew each cluster of a stratum, `[block of resamples, clusters]`.

        In a mean the factor G / (G − 1) of sums and counts cancels. A block is what fits the memory.
        """
        random = np.random.default_rng([self._seed, stratum.start])
        size = stratum.stop - stratum.start
        block = max(1, _BLOCK // size)
        for start in range(0, self._resamples, block):
            height = min(block, self._resamples - start)
            drawn = random.integers(size, size=(height, size - 1)) + size * np.arange(height)[:, None]
            weights = np.bincount(drawn.ravel(), minlength=height * size).reshape(height, size)
            yield slice(start, start + height), weights.astype(float)


def freedom_of(shares: Floats) -> float:
    """Return Bell & McCaffrey's degrees of freedom of the variance of a mean over clusters; NaN for one cluster.

    They take the clusters' means to vary alike, whatever their weights. With equal shares it is their number less 1.

    Args:
        shares: `[clusters]`, what each weighs; their sum is 1.
    """
    if len(shares) < 2:
        return np.nan
    # The residual of a cluster's mean is a row of 1 − (ones ⊗ shares); two rows' inner product is q − h_i − h_j,
    # and 1 more for a row with itself. Expanded, so that no matrix over pairs of clusters is needed.
    h, d, q = shares, shares**2, np.sum(shares**2)
    zeroth, first, second = d.sum(), np.sum(d * h), np.sum(d * h**2)
    trace = np.sum(d * (1 + q - 2 * h))
    squared = (q * zeroth) ** 2 + 2 * zeroth * second - 4 * q * zeroth * first + 2 * first**2
    return float(trace**2 / (squared + np.sum(d**2 * (1 + 2 * q - 4 * h))))


def holm(p: ArrayLike) -> Floats:
    """Return p-values adjusted for testing all of them at once (Holm 1979); NaN stays NaN and is not counted."""
    p = np.asarray(p, float)
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]
    adjusted = np.full_like(p, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return adjusted


def distinct_columns(values: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Codes]:
    """Return the distinct columns of `[n, k]`, and which of them each column is, `[k]`."""
    keys = np.array([column.tobytes().hex() for column in values.T])  # numpy would cut zeros off the end of bytes
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    return values[:, first], number


def indicator(cluster: Codes, clusters: int) -> csr_array:
    """Return the matrix `[clusters, n]` that sums n values by cluster."""
    n = len(cluster)
    return csr_array((np.ones(n), (cluster, np.arange(n))), shape=(clusters, n))


def _clusters(subtask: Codes, source: Codes) -> tuple[Codes, list[slice]]:
    """Number the sources so that those of a stratum follow each other.

    Returns:
        The number of each sample's source, `[n]`, and the numbers of each stratum.
    """
    subtasks, sources = subtask.max() + 1, source.max() + 1
    shape = (subtasks + sources, subtasks + sources)
    links = csr_array((np.ones(len(subtask)), (subtask, subtasks + source)), shape=shape)
    stratum = connected_components(links, directed=False)[1][subtasks:]  # of each source
    number = np.argsort(np.argsort(stratum, kind="stable"))
    ends = np.cumsum(np.bincount(stratum)).tolist()
    return number[source], [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
