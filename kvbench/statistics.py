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

from kvbench.bootstrap import CONFIDENCE, ClusterBootstrap, Floats, Intervals, distinct_columns, holm
from kvbench.mean_interval import Estimate, known, lie_between_0_and_1, mean_intervals
from kvbench.measure import Measure
from kvbench.records import FULL, REPEAT
from kvbench.score_grid import ScoreGrid, press_names, score_grid

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
    "weight",
)
"""The columns of records that summaries and comparisons need."""

SAME = 1e-9
"""Scores that differ by less are the same."""


@dataclass(frozen=True)
class Difference(Estimate):
    """By how much one press's scores exceed another's on the same samples, with its interval.

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
    """The budget at which a press's score is enough beside the full cache's (`Measure.enough`).

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
        score: The mean over the subtasks of their mean scores, as it is shown; None if some subtask has no score here.
            Of a perplexity, a press's interval is that of the difference from the full cache.
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
        return self.ahead is not None and self.ahead.adjusted_p is not None and not self.ahead.told

    @property
    def incomparable(self) -> bool:
        """Whether it should be compared with the leader and the samples say nothing of the difference."""
        return self.ahead is not None and self.ahead.adjusted_p is None


@dataclass(frozen=True)
class NoiseFloor:
    """What answering the full cache twice tells of numbers that differ by rounding alone.

    Attributes:
        repeat: The second answers' score, as it is shown.
        difference: The second less the first, of the mean score.
        changed: Answers that were scored otherwise.
    """

    repeat: Estimate
    difference: Difference
    changed: int

    @property
    def n(self) -> int:
        """Answers that were given twice."""
        return self.difference.n


@dataclass(frozen=True)
class Summary:
    """The results of one protocol.

    Attributes:
        budgets: Tokens ascending, then shares ascending.
        full: The full cache, None where it was not run.
        curves: The best area first, those without one last, then by name.
        leader: The press that the others are compared with: of those that are no bounds the one with the best area.
        noise: None where the full cache was not answered twice.
        one_document: Subtasks whose intervals are for other questions about their only document (`ScoreGrid`).
    """

    budgets: tuple[Budget, ...]
    full: Cell | None
    curves: tuple[Curve, ...]
    leader: str | None = None
    noise: NoiseFloor | None = None
    one_document: tuple[str, ...] = ()

    @property
    def bounds(self) -> list[str]:
        """Presses that have an area and are no contenders."""
        return [c.press for c in self.curves if c.auc is not None and c.ahead is None and c.press != self.leader]


def summarise(
    frame: pd.DataFrame, is_bound: Callable[[str], bool] = lambda _: False, measure: Measure | None = None
) -> Summary:
    """Summarise the records of one protocol, or of one subtask of it.

    Args:
        frame: Rows of `kvbench.store.Results.frame`. Two press identities under one label (a press that was
            changed, another checkpoint) stay apart, with the identity added to the label.
        is_bound: Whether a press, by its name, is a bound rather than a policy (an oracle). It neither leads nor
            is it compared with the leader.
        measure: How the scores are read; by default more is better, and means are shown.
    """
    measure = measure or Measure()
    budgets = budgets_of(frame)
    grid = score_grid(frame, [budget.label for budget in budgets])
    cells = _cells(frame, grid, budgets, measure)
    of_full = cells.pop(FULL, {})
    full = of_full.get(FULL)
    curves = sorted(
        (_curve(press, cells[press], budgets, full, measure) for press in cells),
        key=lambda curve: _best_first(curve, measure),
    )
    leader = next((curve.press for curve in curves if curve.auc is not None and not is_bound(curve.press)), None)
    if any(curve.auc is not None for curve in curves):
        tokens = [budget.tokens for budget in budgets]
        curves = _with_intervals(curves, grid, tokens)
        if leader is not None:
            curves = _compared(curves, leader, grid, tokens, is_bound)
    return Summary(
        budgets=tuple(sorted(budgets, key=lambda budget: (budget.is_share, budget.tokens))),
        full=full and _shown(full, measure),
        curves=tuple(
            replace(curve, cells={label: _shown(cell, measure) for label, cell in curve.cells.items()})
            for curve in curves
        ),
        leader=leader,
        noise=_noise_floor(grid, measure.shown(of_full[REPEAT].score)) if REPEAT in of_full else None,
        one_document=grid.one_document,
    )


def normalised_auc(tokens: Sequence[float], means: Sequence[float | None], full: float | None) -> float | None:
    """Return the area under score over log2(budget), divided by the log range, as a share of the full cache.

    Args:
        tokens: The budgets in tokens per KV head, ascending.
        means: The mean score at each.
        full: The full cache's mean score.

    Returns:
        1 for a press that scores like the full cache at every budget; more than 1 is worse where less is better.
        None if a score is missing, if the budgets span no range (nothing is extrapolated), or if the full cache's
        score is not above 0.
    """
    there = [mean for mean in means if mean is not None]
    if len(there) < len(means) or len(there) < 2 or full is None or full <= 0 or tokens[0] == tokens[-1]:
        return None
    position = np.log2(tokens)
    return float(np.trapezoid(there, position) / (position[-1] - position[0]) / full)


def enough_budget(
    tokens: Sequence[float], means: Sequence[float | None], full: float | None, measure: Measure | None = None
) -> EnoughBudget | None:
    """Return the first budget whose score is enough (`Measure.enough`), linear in log2(budget) in between.

    Args:
        tokens: The budgets in tokens per KV head, ascending.
        means: The mean score at each.
        full: The full cache's mean score.
        measure: How the scores are read; by default more is better.

    Returns:
        None if a score is missing or the full cache's is not above 0.
    """
    measure = measure or Measure()
    there = [mean for mean in means if mean is not None]
    if len(there) < len(means) or not there or full is None or full <= 0:
        return None
    target = measure.enough(full)
    first = next((place for place, mean in enumerate(there) if measure.reaches(mean, target)), None)
    if first is None:
        return EnoughBudget(tokens[-1], ">")
    if first == 0:
        return EnoughBudget(tokens[0], "≤")
    share = (target - there[first - 1]) / (there[first] - there[first - 1])
    left, right = np.log2(tokens[first - 1 : first + 1])
    return EnoughBudget(float(2 ** (left + share * (right - left))), "=")


def area_intervals(grid: ScoreGrid, tokens: Sequence[float]) -> Intervals:
    """Return the intervals of all presses' areas as shares of the full cache.

    Args:
        grid: With the budgets ascending.
        tokens: The budgets.
    """
    weights = trapezoid_weights(tokens)
    bootstrap = ClusterBootstrap(grid.subtask, grid.source, weights=grid.weight)
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
        bootstrap = ClusterBootstrap(grid.subtask[pattern], grid.source[pattern], weights=grid.weight[pattern])
        means = bootstrap.means(np.column_stack([scores @ trapezoid_weights(tokens), grid.full[pattern]]))
        areas = means[:-1] / means[-1:]
        found = differences_of(areas.estimate, bootstrap.intervals(areas), n=int(pattern.sum()))
        for place, difference in zip(places, found, strict=True):
            differences[place] = difference
    return adjusted(differences)


def differences_of(estimate: Floats, intervals: Intervals, n: int) -> list[Difference]:
    """Return each number with its interval and p, not corrected for the others."""
    columns = zip(estimate, intervals.low, intervals.high, intervals.p, strict=True)
    return [Difference(known(mean), known(low), known(high), known(p), n=n) for mean, low, high, p in columns]


def adjusted(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences with p adjusted for judging them together."""
    corrected = holm([np.nan if difference.p is None else difference.p for difference in differences])
    return [replace(d, adjusted_p=known(p)) for d, p in zip(differences, corrected, strict=True)]


def score_difference(grid: ScoreGrid, ahead: Floats) -> Difference:
    """Return the mean of differences `[samples]` between two scores of the same samples, NaN where one is missing."""
    paired = ~np.isnan(ahead)
    if not paired.any() or len(np.unique(grid.subtask[paired])) < len(np.unique(grid.subtask)):
        return Difference()
    bootstrap = ClusterBootstrap(grid.subtask[paired], grid.source[paired], weights=grid.weight[paired])
    means = bootstrap.means(ahead[paired, None])
    [difference] = differences_of(means.estimate, bootstrap.intervals(means), n=int(paired.sum()))
    return difference


def _noise_floor(grid: ScoreGrid, repeat: Estimate) -> NoiseFloor | None:
    ahead = grid.repeat - grid.full
    if np.isnan(ahead).all():
        return None
    return NoiseFloor(repeat, score_difference(grid, ahead), changed=int(np.sum(np.abs(ahead) > SAME)))


def _shown(cell: Cell, measure: Measure) -> Cell:
    return replace(cell, score=measure.shown(cell.score))


def _cells(
    frame: pd.DataFrame, grid: ScoreGrid, budgets: Sequence[Budget], measure: Measure
) -> dict[str, dict[str, Cell]]:
    """Return all cells by press and budget, with their mean scores; a grid's budgets are those given."""
    places = [(press, budget.label) for press in grid.presses for budget in budgets]
    scores = np.column_stack([grid.scores.reshape(len(grid.full), -1), grid.full, grid.repeat])
    intervals = _column_intervals(scores, grid, bounded=not measure.exponential and lie_between_0_and_1(scores))
    if measure.exponential:
        intervals[: len(places)] = _beside_full(intervals[: len(places)], scores[:, : len(places)], grid)
    found = dict(zip([*places, (FULL, FULL), (FULL, REPEAT)], zip(intervals, scores.T, strict=True), strict=True))
    counts = (~frame["compressed"]).groupby([press_names(frame), frame["budget"]], observed=True).agg(["size", "sum"])
    cells: dict[str, dict[str, Cell]] = {}
    for cell, size, whole in counts.itertuples(name=None):
        press, budget = map(str, cell)
        score, column = found[press, budget]
        n = int(np.count_nonzero(~np.isnan(column)))
        cells.setdefault(press, {})[budget] = Cell(score, n, failed=size - n, whole=int(whole))
    return cells


def _column_intervals(scores: Floats, grid: ScoreGrid, bounded: bool) -> list[Estimate]:
    """Return the mean of each column of `[samples, k]`, None where a subtask has no score."""
    estimates = [Estimate()] * scores.shape[1]
    present = ~np.isnan(scores)
    patterns, number = distinct_columns(present)
    for index, pattern in enumerate(patterns.T):
        if len(np.unique(grid.subtask[pattern])) == len(np.unique(grid.subtask)):
            places = np.flatnonzero(number == index)
            found = mean_intervals(
                scores[np.ix_(pattern, places)],
                grid.subtask[pattern],
                grid.source[pattern],
                grid.weight[pattern],
                bounded,
            )
            for place, estimate in zip(places, found, strict=True):
                estimates[place] = estimate
    return estimates


def _beside_full(means: Sequence[Estimate], scores: Floats, grid: ScoreGrid) -> list[Estimate]:
    """Give each mean of `[samples, k]` scores the interval of its difference from the full cache's.

    Texts differ in perplexity far more than presses do on one text.
    """
    differences = _column_intervals(scores - grid.full[:, None], grid, bounded=False)
    return [
        mean if mean.mean is None else _around(mean.mean, difference)
        for mean, difference in zip(means, differences, strict=True)
    ]


def _around(mean: float, difference: Estimate) -> Estimate:
    if difference.mean is None or difference.low is None or difference.high is None:
        return Estimate(mean)
    return Estimate(mean, mean + difference.low - difference.mean, mean + difference.high - difference.mean)


def _curve(press: str, cells: dict[str, Cell], budgets: Sequence[Budget], full: Cell | None, measure: Measure) -> Curve:
    """Return a press without what the bootstrap adds."""
    tokens = [budget.tokens for budget in budgets]
    means = [cells[budget.label].score.mean if budget.label in cells else None for budget in budgets]
    reference = full.score.mean if full else None
    auc = normalised_auc(tokens, means, reference)
    return Curve(press, cells, auc, enough=enough_budget(tokens, means, reference, measure))


def _with_intervals(curves: Sequence[Curve], grid: ScoreGrid, tokens: Sequence[float]) -> list[Curve]:
    intervals = area_intervals(grid, tokens)
    ends = dict(zip(grid.presses, zip(intervals.low, intervals.high, strict=True), strict=True))
    return [
        replace(curve, auc_low=known(ends[curve.press][0]), auc_high=known(ends[curve.press][1])) for curve in curves
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


def _best_first(curve: Curve, measure: Measure) -> tuple[bool, float, str]:
    sign = 1 if measure.lower_is_better else -1
    return (curve.auc is None, sign * (curve.auc or 0), curve.press)


def budgets_of(frame: pd.DataFrame) -> list[Budget]:
    """Return the budgets of a run, ascending in tokens."""
    tokens = frame.groupby("budget", observed=True)["budget_tokens"].mean().drop([FULL, REPEAT], errors="ignore")
    budgets = [
        Budget(label, float(mean if label.endswith("%") else label))
        for label, mean in zip(map(str, tokens.index), tokens, strict=True)
    ]
    return sorted(budgets, key=lambda budget: budget.tokens)
