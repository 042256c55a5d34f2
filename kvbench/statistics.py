"""From records to numbers: a mean with its interval per press and budget, and one area per press.

Failed cells are counted beside every mean: neither dropped in silence nor taken for zeros. A number that the
results do not determine is None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from kvbench.bootstrap import CONFIDENCE, ClusterBootstrap, Intervals, distinct_columns, holm, indicator
from kvbench.records import FULL
from kvbench.score_grid import Codes, Floats, ScoreGrid, press_names, score_grid

COLUMNS = (
    "press",
    "press_identity",
    "budget",
    "budget_tokens",
    "sample",
    "question",
    "subtask",
    "source",
    "compressed",
    "status",
    "score",
)
"""The columns of records that summaries and comparisons need."""

ENOUGH = 0.95
"""The share of the full cache's score at which a budget counts as enough."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval; each is None where the scores do not determine it."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Difference(Estimate):
    """How much better one press is than another on the same samples, with its interval.

    Attributes:
        p: Two-sided, of there being no difference.
        adjusted_p: The same with Holm's correction for all differences that are judged together.
        n: The answers that both have.
    """

    p: float | None = None
    adjusted_p: float | None = None
    n: int = 0

    @property
    def told(self) -> bool:
        """Whether the samples tell a difference."""
        return self.adjusted_p is not None and self.adjusted_p < 1 - CONFIDENCE


@dataclass(frozen=True)
class EnoughBudget:
    """The budget at which a press reaches `ENOUGH` of the full cache's score.

    Attributes:
        tokens: Per KV head.
        relation: "≤" the smallest budget measured, which is enough; ">" the largest, which is not; "=" between.
    """

    tokens: float
    relation: Literal["=", "≤", ">"]

    def __str__(self) -> str:
        sign = "" if self.relation == "=" else f"{self.relation} "
        return f"{sign}{self.tokens:.0f}"


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
        auc_low: The lower end of its interval.
        auc_high: The upper end.
        ahead: Its area less the leader's; None for the leader, what is no contender, and what has no area.
        enough: None where a score is missing.
    """

    press: str
    cells: dict[str, Cell]
    auc: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None
    ahead: Difference | None = None
    enough: EnoughBudget | None = None

    @property
    def area(self) -> Estimate:
        """The area with its interval."""
        return Estimate(self.auc, self.auc_low, self.auc_high)

    @property
    def tied(self) -> bool:
        """Whether the samples do not tell it from the leader."""
        return self.ahead is not None and not self.ahead.told


@dataclass(frozen=True)
class Summary:
    """The results of one protocol.

    Attributes:
        budgets: Tokens ascending, then shares ascending.
        full: The full cache, None where it was not run.
        curves: The best area first, those without one last, then by name.
        leader: The press that the others are compared with: of those that are no bounds the one with the best area.
    """

    budgets: tuple[Budget, ...]
    full: Cell | None
    curves: tuple[Curve, ...]
    leader: str | None = None

    @property
    def bounds(self) -> list[str]:
        """Presses that have an area and are no contenders."""
        return [c.press for c in self.curves if c.auc is not None and c.ahead is None and c.press != self.leader]


def summarise(frame: pd.DataFrame, is_bound: Callable[[str], bool] = lambda _: False) -> Summary:
    """Summarise the records of one protocol, or of one subtask of it.

    Args:
        frame: Rows of `kvbench.store.Results.frame`. Two press identities under one label (a press that was
            changed, another checkpoint) stay apart, with the identity added to the label.
        is_bound: Whether a press, by its name, is a bound rather than a policy (an oracle). It neither leads nor
            is it compared with the leader.
    """
    budgets = budgets_of(frame)
    grid = score_grid(frame, [budget.label for budget in budgets])
    cells = _cells(frame, grid, budgets)
    full = cells.pop(FULL, {}).get(FULL)
    curves = sorted((_curve(press, cells[press], budgets, full) for press in cells), key=_best_first)
    leader = next((curve.press for curve in curves if curve.auc is not None and not is_bound(curve.press)), None)
    if any(curve.auc is not None for curve in curves):
        tokens = [budget.tokens for budget in budgets]
        curves = _with_intervals(curves, grid, tokens)
        if leader is not None:
            curves = _compared(curves, leader, grid, tokens, is_bound)
    return Summary(
        budgets=tuple(sorted(budgets, key=lambda budget: (budget.is_share, budget.tokens))),
        full=full,
        curves=tuple(curves),
        leader=leader,
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
    [estimate] = _mean_intervals(scores[:, None], np.asarray(subtasks), np.asarray(sources))
    return estimate


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


def enough_budget(tokens: Sequence[float], means: Sequence[float | None], full: float | None) -> EnoughBudget | None:
    """Return the first budget whose score reaches `ENOUGH` of the full cache's, linear in log2(budget) in between.

    Args:
        tokens: The budgets in tokens per KV head, ascending.
        means: The mean score at each.
        full: The full cache's mean score.

    Returns:
        None if a score is missing or the full cache's is not above 0.
    """
    known = [mean for mean in means if mean is not None]
    if len(known) < len(means) or not known or full is None or full <= 0:
        return None
    # What is only rounding below the target reaches it.
    reached = np.flatnonzero(np.array(known) >= ENOUGH * full * (1 - 1e-12))
    if not len(reached):
        return EnoughBudget(tokens[-1], ">")
    first = int(reached[0])
    if first == 0:
        return EnoughBudget(tokens[0], "≤")
    share = (ENOUGH * full - known[first - 1]) / (known[first] - known[first - 1])
    left, right = np.log2(tokens[first - 1 : first + 1])
    return EnoughBudget(float(2 ** (left + share * (right - left))), "=")


def area_intervals(grid: ScoreGrid, tokens: Sequence[float]) -> Intervals:
    """Return the intervals of all presses' areas as shares of the full cache.

    Args:
        grid: With the budgets ascending.
        tokens: The budgets.
    """
    weights = trapezoid_weights(tokens)
    bootstrap = ClusterBootstrap(grid.subtask, grid.source)
    # The mean of a weighted sum is the weighted sum of means where all of a press's budgets have the same samples.
    present = ~np.isnan(grid.scores)
    whole = (present == present[:, :, :1]).all(axis=(0, 2))
    columns, sums = [grid.scores[:, whole] @ weights], [np.eye(len(whole))[whole]]  # [n, k], [k, presses]
    for press in np.flatnonzero(~whole):
        columns.append(grid.scores[:, press])
        sums.append(np.outer(weights, np.arange(len(whole)) == press))
    means = bootstrap.means(np.column_stack([*columns, grid.full]))
    return bootstrap.intervals(means[:-1] @ np.vstack(sums) / means[-1:])


def area_differences(
    grid: ScoreGrid, tokens: Sequence[float], presses: Sequence[int], reference: int
) -> list[Difference]:
    """Return how much larger the areas of some presses are than that of a reference, as shares of the full cache.

    A difference is of the samples that both presses and the full cache have scored everywhere. Intervals and p are
    those of one `ClusterBootstrap`, and p is corrected for the number of presses.

    Args:
        grid: With the budgets ascending.
        tokens: The budgets.
        presses: Numbers of presses.
        reference: The number of the press to compare with.
    """
    if not len(presses):
        return []
    complete = grid.complete
    paired = complete[:, presses] & complete[:, [reference]]  # [samples, presses]
    differences = [Difference()] * len(presses)
    patterns, number = distinct_columns(paired)  # without failures there is one
    for index, pattern in enumerate(patterns.T):
        places = np.flatnonzero(number == index)
        if len(np.unique(grid.subtask[pattern])) < len(np.unique(grid.subtask)):
            continue
        scores = grid.scores[pattern][:, np.array(presses)[places]] - grid.scores[pattern][:, [reference]]
        bootstrap = ClusterBootstrap(grid.subtask[pattern], grid.source[pattern])
        means = bootstrap.means(np.column_stack([scores @ trapezoid_weights(tokens), grid.full[pattern]]))
        areas = means[:-1] / means[-1:]
        found = differences_of(areas.estimate, bootstrap.intervals(areas), n=int(pattern.sum()))
        for place, difference in zip(places, found, strict=True):
            differences[place] = difference
    return adjusted(differences)


def differences_of(estimate: Floats, intervals: Intervals, n: int) -> list[Difference]:
    """Return each number with its interval and p, not corrected for the others."""
    columns = zip(estimate, intervals.low, intervals.high, intervals.p, strict=True)
    return [Difference(_known(mean), _known(low), _known(high), _known(p), n=n) for mean, low, high, p in columns]


def adjusted(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences with p adjusted for judging them together."""
    corrected = holm([np.nan if difference.p is None else difference.p for difference in differences])
    return [replace(d, adjusted_p=_known(p)) for d, p in zip(differences, corrected, strict=True)]


def _mean_intervals(scores: Floats, subtasks: Codes, sources: Codes) -> list[Estimate]:
    """Return what `mean_interval` does for each column of `[n, k]` scores of the same samples."""
    subtask, source = (np.unique(codes, return_inverse=True)[1] for codes in (subtasks, sources))
    n = np.bincount(subtask)
    by_subtask = indicator(subtask, len(n))
    means = by_subtask @ scores / n[:, None]  # [subtasks, k]
    own_source = np.bincount(source)[source] == 1
    graded = ~np.isin(scores, (0, 1)) | ~own_source[:, None]
    proportions = by_subtask @ graded == 0  # [subtasks, k]
    variance, freedom = _variance_of_sum(scores, means, subtask, source, proportions)
    with np.errstate(invalid="ignore"):
        half = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance) / len(n)
    mean = means.mean(axis=0)
    low, high = mean - half, mean + half
    if len(n) == 1:
        one = proportions[0]
        low[one], high[one] = _wilson(mean[one], n[0])
    return [Estimate(*map(_known, ends)) for ends in zip(mean, low, high, strict=True)]


def _variance_of_sum(
    scores: Floats, means: Floats, subtask: Codes, source: Codes, proportions: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Return the variances `[k]` of the sums of the subtasks' means and their degrees of freedom; NaN if unknown.

    Args:
        scores: `[n, k]`.
        means: `[subtasks, k]`.
        subtask: `[n]`, from 0.
        source: `[n]`, from 0.
        proportions: `[subtasks, k]`, which of them are proportions.
    """
    n = np.bincount(subtask)[:, None]
    pairs, pair = np.unique(subtask * len(scores) + source, return_inverse=True)
    pair_subtask, pair_source = np.divmod(pairs, len(scores))
    sources = np.bincount(pair_subtask)[:, None]  # of each subtask
    if np.any(sources == 1):
        return np.full(scores.shape[1], np.nan), np.full(scores.shape[1], np.nan)
    residuals = np.where(proportions[subtask], 0, scores - means[subtask]) / n[subtask]
    clustered = indicator(pair, len(pairs)) @ residuals * np.sqrt(sources / (sources - 1))[pair_subtask]
    smoothed = (means * n + 0.5) / (n + 1)
    squares = indicator(pair_subtask, len(n)) @ clustered**2
    variances = np.where(proportions, smoothed * (1 - smoothed) / n, squares)
    variances[:, ~variances.any(axis=0)] = np.nan
    # Summed by source over the subtasks: a source that several of them share brings their covariance.
    shared = indicator(pair_source, source.max() + 1) @ clustered
    variance = np.sum(variances * proportions, axis=0) + np.sum(shared**2, axis=0)
    freedom = np.sum(variances, axis=0) ** 2 / np.sum(variances**2 / (sources - 1), axis=0)
    return variance, np.minimum(freedom, source.max())


def _wilson(proportion: Floats, n: int) -> tuple[Floats, Floats]:
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    centre = (proportion + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(proportion * (1 - proportion) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return centre - half, centre + half


def _cells(frame: pd.DataFrame, grid: ScoreGrid, budgets: Sequence[Budget]) -> dict[str, dict[str, Cell]]:
    """Return all cells by press and budget; a grid's budgets are those given."""
    places = [(press, budget.label) for press in grid.presses for budget in budgets]
    scores = np.column_stack([grid.scores.reshape(len(grid.full), -1), grid.full])
    found = dict(zip([*places, (FULL, FULL)], zip(_column_intervals(scores, grid), scores.T, strict=True), strict=True))
    counts = (~frame["compressed"]).groupby([press_names(frame), frame["budget"]], observed=True).agg(["size", "sum"])
    cells: dict[str, dict[str, Cell]] = {}
    for cell, size, whole in counts.itertuples(name=None):
        press, budget = map(str, cell)
        score, column = found[press, budget]
        n = int(np.count_nonzero(~np.isnan(column)))
        cells.setdefault(press, {})[budget] = Cell(score, n, failed=size - n, whole=int(whole))
    return cells


def _column_intervals(scores: Floats, grid: ScoreGrid) -> list[Estimate]:
    """Return the mean of each column of `[samples, k]`, None where a subtask has no score."""
    estimates = [Estimate()] * scores.shape[1]
    present = ~np.isnan(scores)
    patterns, number = distinct_columns(present)
    for index, pattern in enumerate(patterns.T):
        if len(np.unique(grid.subtask[pattern])) == len(np.unique(grid.subtask)):
            places = np.flatnonzero(number == index)
            columns = scores[np.ix_(pattern, places)]
            found = _mean_intervals(columns, grid.subtask[pattern], grid.source[pattern])
            for place, estimate in zip(places, found, strict=True):
                estimates[place] = estimate
    return estimates


def _curve(press: str, cells: dict[str, Cell], budgets: Sequence[Budget], full: Cell | None) -> Curve:
    """Return a press without what the bootstrap adds."""
    tokens = [budget.tokens for budget in budgets]
    means = [cells[budget.label].score.mean if budget.label in cells else None for budget in budgets]
    reference = full.score.mean if full else None
    auc = normalised_auc(tokens, means, reference)
    return Curve(press, cells, auc, enough=enough_budget(tokens, means, reference))


def _with_intervals(curves: Sequence[Curve], grid: ScoreGrid, tokens: Sequence[float]) -> list[Curve]:
    intervals = area_intervals(grid, tokens)
    ends = dict(zip(grid.presses, zip(intervals.low, intervals.high, strict=True), strict=True))
    return [
        replace(curve, auc_low=_known(ends[curve.press][0]), auc_high=_known(ends[curve.press][1])) for curve in curves
    ]


def _compared(
    curves: Sequence[Curve], leader: str, grid: ScoreGrid, tokens: Sequence[float], is_bound: Callable[[str], bool]
) -> list[Curve]:
    """Add the differences from the leader."""
    others = [
        curve.press for curve in curves if curve.auc is not None and curve.press != leader and not is_bound(curve.press)
    ]
    number = {press: place for place, press in enumerate(grid.presses)}
    found = area_differences(grid, tokens, [number[press] for press in others], number[leader])
    differences = dict(zip(others, found, strict=True))
    return [replace(curve, ahead=differences.get(curve.press)) for curve in curves]


def trapezoid_weights(tokens: Sequence[float]) -> Floats:
    """Return what each budget's score weighs in the area over log2(budget), divided by the log range: `[budgets]`."""
    position = np.log2(tokens)
    steps = np.diff(position) / (position[-1] - position[0])
    return np.convolve(steps, [0.5, 0.5])


def _best_first(curve: Curve) -> tuple[bool, float, str]:
    return (curve.auc is None, -(curve.auc or 0), curve.press)


def _known(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def budgets_of(frame: pd.DataFrame) -> list[Budget]:
    """Return the budgets of a run, ascending in tokens."""
    tokens = frame.groupby("budget", observed=True)["budget_tokens"].mean().drop(FULL, errors="ignore")
    budgets = [
        Budget(label, float(mean if label.endswith("%") else label))
        for label, mean in zip(map(str, tokens.index), tokens, strict=True)
    ]
    return sorted(budgets, key=lambda budget: budget.tokens)
