"""From records to numbers: a mean with its interval per press and budget, and one area per press.

Failed cells are counted beside every mean: neither dropped in silence nor taken for zeros. A number that the
results do not determine is None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from kvbench.bootstrap import CONFIDENCE, ClusterBootstrap, Intervals, holm
from kvbench.records import FULL
from kvbench.score_grid import Floats, ScoreGrid, press_names, score_grid

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
    cells = _cells(frame)
    full = cells.pop(FULL, {}).get(FULL)
    budgets = budgets_of(frame)
    curves = sorted((_curve(press, cells[press], budgets, full) for press in cells), key=_best_first)
    leader = next((curve.press for curve in curves if curve.auc is not None and not is_bound(curve.press)), None)
    if any(curve.auc is not None for curve in curves):
        grid = score_grid(frame, [budget.label for budget in budgets])
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
    for pattern in np.unique(paired, axis=1).T:  # without failures there is one
        places = np.flatnonzero((paired == pattern[:, None]).all(axis=0))
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


def _cells(frame: pd.DataFrame) -> dict[str, dict[str, Cell]]:
    """Return all cells by press and budget."""
    subtasks, sources = pd.factorize(frame["subtask"])[0], pd.factorize(frame["source"])[0]
    scores = frame["score"].where(frame["status"] == "ok").to_numpy(float)
    compressed = frame["compressed"].to_numpy(bool)
    cells: dict[str, dict[str, Cell]] = {}
    for cell, rows in frame.groupby([press_names(frame), "budget"], observed=True).indices.items():
        press, budget = cast(tuple[str, str], cell)
        scored = rows[~np.isnan(scores[rows])]
        complete = len(np.unique(subtasks[scored])) == subtasks.max() + 1
        cells.setdefault(press, {})[budget] = Cell(
            score=mean_interval(scores[scored], subtasks[scored], sources[scored]) if complete else Estimate(),
            n=len(scored),
            failed=len(rows) - len(scored),
            whole=int(np.count_nonzero(~compressed[rows])),
        )
    return cells


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
