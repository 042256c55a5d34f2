"""From records to numbers: a mean with its interval per press and budget, and one area per press.

Failed cells are counted beside every mean: neither dropped in silence nor taken for zeros. A number that the
results do not determine is None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from kvbench.records import FULL

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval; each is None where the scores do not determine it."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Cell:
    """All records of one press at one budget.

    Attributes:
        score: The mean over the subtasks of their mean scores; None if some subtask has no score here.
        n: Records that have a score.
        failed: Records that have none.
        whole: Records whose budget held the whole context, so that nothing was evicted.
    """

    score: Estimate
    n: int
    failed: int
    whole: int


@dataclass(frozen=True)
class Budget:
    """A column of a table.

    Attributes:
        label: The budget as asked for: "256" or "25%".
        tokens: Its place on the axis, in tokens per KV head; of a share, the mean over the records.
    """

    label: str
    tokens: float

    @property
    def is_share(self) -> bool:
        """Whether it was asked for as a share of the context."""
        return self.label.endswith("%")


@dataclass(frozen=True)
class Curve:
    """One press over the budgets.

    Attributes:
        cells: By budget label; a budget that was not run is absent.
        auc: `normalised_auc` of the means over all budgets of the summary, None where one is absent.
    """

    press: str
    cells: dict[str, Cell]
    auc: float | None


@dataclass(frozen=True)
class Summary:
    """The results of one protocol.

    Attributes:
        budgets: Tokens ascending, then shares ascending.
        full: The full cache, None where it was not run.
        curves: The best area first, those without one last, then by name.
    """

    budgets: tuple[Budget, ...]
    full: Cell | None
    curves: tuple[Curve, ...]


def summarise(frame: pd.DataFrame) -> Summary:
    """Summarise the records of one protocol, or of one subtask of it.

    Args:
        frame: Rows of `kvbench.store.Results.frame`. Two press identities under one label (a press that was
            changed, another checkpoint) stay apart, with the identity added to the label.
    """
    subtasks, sources = pd.factorize(frame["subtask"])[0], pd.factorize(frame["source"])[0]
    scores = frame["score"].where(frame["status"] == "ok").to_numpy(float)
    compressed = frame["compressed"].to_numpy(bool)
    curves: dict[str, dict[str, Cell]] = {}
    for cell, rows in frame.groupby([_names(frame), "budget"], observed=True).indices.items():
        press, budget = cast(tuple[str, str], cell)
        scored = rows[~np.isnan(scores[rows])]
        complete = len(np.unique(subtasks[scored])) == subtasks.max() + 1
        curves.setdefault(press, {})[budget] = Cell(
            score=mean_interval(scores[scored], subtasks[scored], sources[scored]) if complete else Estimate(),
            n=len(scored),
            failed=len(rows) - len(scored),
            whole=int(np.count_nonzero(~compressed[rows])),
        )
    full = curves.pop(FULL, {}).get(FULL)
    budgets = _budgets(frame)
    ranked = [Curve(press, cells, _area(budgets, cells, full)) for press, cells in curves.items()]
    return Summary(
        budgets=tuple(sorted(budgets, key=lambda budget: (budget.is_share, budget.tokens))),
        full=full,
        curves=tuple(sorted(ranked, key=lambda curve: (curve.auc is None, -(curve.auc or 0), curve.press))),
    )


def mean_interval(scores: ArrayLike, subtasks: ArrayLike, sources: ArrayLike) -> Estimate:
    """Estimate the unweighted mean of the subtasks' mean scores, with its 95 % interval.

    Scores of one source document vary together, so sources are what was sampled. A subtask's mean has the
    cluster-robust variance of its sources' summed residuals, corrected by G / (G − 1) for G sources. The
    interval is Student's, with Satterthwaite's degrees of freedom; with one subtask and one score per source
    it is the plain t interval. Where all scores are 0 or 1, each from a source of its own, they make a
    proportion: a single subtask then has Wilson's interval, and one of several has the variance of
    (successes + ½) / (n + 1), which is not 0 where all succeed or all fail.

    Args:
        scores: `[n]`.
        subtasks: `[n]`, the subtask of each score as an integer.
        sources: `[n]`, the source document of each score as an integer.

    Returns:
        No mean without scores; no interval if a subtask has a single source, or the scores have no spread.
    """
    scores = np.asarray(scores, float)
    if not len(scores):
        return Estimate()
    subtask, source = (np.unique(codes, return_inverse=True)[1] for codes in (subtasks, sources))
    n = np.bincount(subtask)
    means = np.bincount(subtask, scores) / n
    mean = float(means.mean())
    own_source = np.bincount(source)[source] == 1
    proportions = np.bincount(subtask, np.isin(scores, (0, 1)) & own_source) == n
    if proportions.all() and len(n) == 1:
        return Estimate(mean, *_wilson(mean, len(scores)))

    variance, freedom = _variance_of_sum(scores, subtask, source, proportions)
    if not variance or not freedom:
        return Estimate(mean)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance)) / len(n)
    return Estimate(mean, mean - half, mean + half)


def normalised_auc(tokens: Sequence[float], means: Sequence[float | None], full: float | None) -> float | None:
    """Return the area under score over log2(budget), divided by the log range, as a share of the full cache.

    Args:
        tokens: The budgets in tokens per KV head, ascending.
        means: The mean score at each.
        full: The full cache's mean score.

    Returns:
        1 for a press that scores like the full cache at every budget. None if a score is missing, if the
        budgets span no range (nothing is extrapolated), or if the full cache's score is not above 0.
    """
    known = [mean for mean in means if mean is not None]
    if len(known) < len(means) or len(known) < 2 or full is None or full <= 0 or tokens[0] == tokens[-1]:
        return None
    position = np.log2(tokens)
    return float(np.trapezoid(known, position) / (position[-1] - position[0]) / full)


def _variance_of_sum(
    scores: NDArray[np.float64],
    subtask: NDArray[np.int64],
    source: NDArray[np.int64],
    proportions: NDArray[np.bool_],
) -> tuple[float, float]:
    """Return the variance of the sum of the subtasks' means and its degrees of freedom; 0 if unknown.

    Args:
        scores: `[n]`.
        subtask: `[n]`, from 0.
        source: `[n]`, from 0.
        proportions: `[subtasks]`, which of them are proportions.
    """
    n = np.bincount(subtask)
    means = np.bincount(subtask, scores) / n
    pairs, pair = np.unique(subtask * len(scores) + source, return_inverse=True)
    pair_subtask, pair_source = np.divmod(pairs, len(scores))
    sources = np.bincount(pair_subtask)  # of each subtask
    if np.any(sources == 1):
        return 0.0, 0.0
    residuals = np.where(proportions[subtask], 0, scores - means[subtask]) / n[subtask]
    clustered = np.bincount(pair, residuals) * np.sqrt(sources / (sources - 1))[pair_subtask]
    smoothed = (means * n + 0.5) / (n + 1)
    variances = np.where(proportions, smoothed * (1 - smoothed) / n, np.bincount(pair_subtask, clustered**2))
    if not variances.any():
        return 0.0, 0.0
    # Summed by source over the subtasks: a source that several of them share brings their covariance.
    variance = np.sum(variances[proportions]) + np.sum(np.bincount(pair_source, clustered) ** 2)
    freedom = np.sum(variances) ** 2 / np.sum(variances**2 / (sources - 1))
    return float(variance), min(float(freedom), len(np.unique(source)) - 1)


def _wilson(proportion: float, n: int) -> tuple[float, float]:
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    centre = (proportion + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(proportion * (1 - proportion) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return float(centre - half), float(centre + half)


def _area(budgets: Sequence[Budget], cells: dict[str, Cell], full: Cell | None) -> float | None:
    means = [cells[budget.label].score.mean if budget.label in cells else None for budget in budgets]
    return normalised_auc([budget.tokens for budget in budgets], means, full.score.mean if full else None)


def _budgets(frame: pd.DataFrame) -> list[Budget]:
    """Return the budgets of a run, ascending in tokens."""
    tokens = frame.groupby("budget", observed=True)["budget_tokens"].mean().drop(FULL, errors="ignore")
    budgets = [
        Budget(label, float(mean if label.endswith("%") else label))
        for label, mean in zip(map(str, tokens.index), tokens, strict=True)
    ]
    return sorted(budgets, key=lambda budget: budget.tokens)


def _names(frame: pd.DataFrame) -> pd.Series:
    """Return each row's press label, with the identity where one label has several."""
    pairs = frame[["press", "press_identity"]].drop_duplicates()
    twins = set(pairs["press"][pairs["press"].duplicated()]) - {FULL}
    if not twins:
        return frame["press"]
    label, identity = frame["press"].astype(str), frame["press_identity"].astype(str).str[:6]
    return label.where(~label.isin(twins), label + "#" + identity)
