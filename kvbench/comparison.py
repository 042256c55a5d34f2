"""Two presses on the same samples: by how much one is better, how surely, and how often."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from kvbench.bootstrap import Floats
from kvbench.captions import area_decimals, conditions_of, metric_of, missing_subtasks, one_document_in_words, title_of
from kvbench.errors import UsageError, unknown
from kvbench.records import FULL, Protocol
from kvbench.score_grid import ScoreGrid, press_names, score_grid
from kvbench.statistics import (
    SAME,
    Budget,
    Difference,
    adjusted,
    area_differences,
    budgets_of,
    score_difference,
    trapezoid_weights,
)
from kvbench.store import Results
from kvbench.table_layout import Column, Layout, show_layouts, to_terminal

OUTCOME_NOTE = (
    "p: paired bootstrap over source documents; Holm: p corrected for all {corrected_for}; wins: answers on which "
    "{press} scores better"
)


@dataclass(frozen=True)
class Outcome:
    """How the first press does against the second.

    Attributes:
        difference: The first less the second, of the mean scores themselves: of a perplexity, in nats per token.
        wins: Answers on which the first scores better.
        ties: On which both score the same.
        losses: On which the second scores better.
    """

    difference: Difference
    wins: int
    ties: int
    losses: int


@dataclass(frozen=True)
class Comparison:
    """Two presses under one protocol, at the budgets that both have.

    Attributes:
        protocol: What was measured and how.
        presses: The first and the second.
        area: Of the areas, as shares of the full cache; its answers are compared by their own areas.
        budgets: Of the scores by budget, with p-values corrected for their number.
        missing: Subtasks of the task that have no results.
        one_document: Subtasks whose intervals are for other questions about their only document (`ScoreGrid`).
    """

    protocol: Protocol
    presses: tuple[str, str]
    area: Outcome
    budgets: dict[str, Outcome]
    missing: tuple[str, ...] = ()
    one_document: tuple[str, ...] = ()

    @property
    def conclusion(self) -> str:
        """What can be said, in one line: of the area, or of the score where there is a single budget."""
        if len(self.budgets) == 1:
            [(budget, outcome)] = self.budgets.items()
            measure, found = f"{self.protocol.metric} at {budget}", outcome.difference
        else:
            measure, found = "AUC", self.area.difference
        if found.mean is None:
            return f"{measure} cannot be compared: too few answers of both presses and the full cache"
        if not found.told:
            return f"no difference in {measure} can be told at this n ({found.n} answers)"
        first_is_better = (found.mean > 0) != self.protocol.lower_is_better
        by = found if found.mean > 0 else _reversed(found)
        unit = "" if measure == "AUC" else _unit(self.protocol)
        lead = _interval(by, area_decimals(self.protocol), "")
        return f"{self.presses[0 if first_is_better else 1]} is better by {lead}{unit} in {measure}"


def compare(results: Results, first: str, second: str) -> list[Comparison]:
    """Compare two presses under every protocol that has both.

    Args:
        results: The records.
        first: A press's name as tables show it, or "full".
        second: Another.

    Raises:
        UsageError: There is no such press, both are the same, or no protocol has both at one budget.
    """
    for press in (first, second):
        require_press(results, press)
    if first == second:
        raise UsageError(f"'{first}' cannot be compared with itself: name two presses")
    comparisons = compare_where_possible(results, first, second)
    if not comparisons:
        raise UsageError(f"'{first}' and '{second}' have no protocol and budget in common")
    return comparisons


def require_press(results: Results, press: str) -> None:
    """Refuse a press that has no records.

    Raises:
        UsageError: There is none of that name.
    """
    known = set(map(str, press_names(results.frame).unique()))
    if press not in known:
        raise unknown("press", press, known)


def compare_where_possible(results: Results, first: str, second: str) -> list[Comparison]:
    """Compare two presses under every protocol that has both at one budget, which may be none."""
    comparisons = []
    for protocol in results.protocols.values():
        frame = results.rows(protocol)
        pair, budgets = _pair(frame, first, second)
        if budgets:
            missing = missing_subtasks(protocol, set(frame["subtask"]))
            comparisons.append(_compare(protocol, pair, budgets, missing))
    return comparisons


def show_comparisons(comparisons: Sequence[Comparison], style: str, console: Console) -> None:
    """Print comparisons as `rich` (for reading, within the console's width), `md`, `latex` or `json`.

    Raises:
        UsageError: There is no such style.
    """
    if style == "rich":
        for comparison in comparisons:
            to_terminal(_layout(comparison), console)
            console.print(Text(comparison.conclusion, style="bold"))
            console.print()
        return
    layouts = [_layout(comparison) for comparison in comparisons]
    concluded = [
        replace(layout, notes=[comparison.conclusion, *layout.notes])
        for layout, comparison in zip(layouts, comparisons, strict=True)
    ]
    show_layouts(concluded, {"json": lambda: to_json(comparisons)}, style, console)


def to_json(comparisons: Sequence[Comparison]) -> str:
    """Render comparisons as a JSON list: nothing is rounded, unknown numbers are null."""
    content = [
        {
            "hash": comparison.protocol.hash,
            **asdict(comparison),
            "protocol": comparison.protocol.model_dump(mode="json"),
            "conclusion": comparison.conclusion,
        }
        for comparison in comparisons
    ]
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _pair(frame: pd.DataFrame, first: str, second: str) -> tuple[ScoreGrid, list[Budget]]:
    """Return the scores of two presses at the budgets that both were run at, and those budgets."""
    names = press_names(frame).astype(str)
    run = {press: set(frame["budget"][names == press]) for press in (first, second)}
    budgets = [budget for budget in budgets_of(frame) if all({budget.label, FULL} & labels for labels in run.values())]
    grid = score_grid(frame, [budget.label for budget in budgets])
    scores = [
        # The full cache scores the same at every budget.
        np.repeat(grid.full[:, None], len(budgets), axis=1)
        if press == FULL
        else grid.scores[:, grid.presses.index(press)]
        for press in (first, second)
        if budgets
    ]
    return replace(grid, presses=(first, second), scores=np.stack(scores, axis=1) if budgets else grid.scores), budgets


def _compare(protocol: Protocol, pair: ScoreGrid, budgets: Sequence[Budget], missing: tuple[str, ...]) -> Comparison:
    ahead = pair.scores[:, 0] - pair.scores[:, 1]  # [samples, budgets]
    differences = adjusted([score_difference(pair, ahead[:, place]) for place in range(len(budgets))])
    tokens = [budget.tokens for budget in budgets]
    area, areas = Difference(), np.full(len(ahead), np.nan)
    if tokens[0] < tokens[-1]:
        [area] = area_differences(pair, tokens, [0], reference=1)
        areas = ahead @ trapezoid_weights(tokens)
    return Comparison(
        protocol,
        (pair.presses[0], pair.presses[1]),
        _outcome(area, areas[~np.isnan(pair.full)], protocol),
        {
            b.label: _outcome(d, ahead[:, place], protocol)
            for place, (b, d) in enumerate(zip(budgets, differences, strict=True))
        },
        missing,
        pair.one_document,
    )


def _outcome(difference: Difference, ahead: Floats, protocol: Protocol) -> Outcome:
    ahead = ahead[~np.isnan(ahead)] * (-1 if protocol.lower_is_better else 1)
    wins, losses = int(np.sum(ahead > SAME)), int(np.sum(ahead < -SAME))
    return Outcome(difference, wins, len(ahead) - wins - losses, losses)


def _layout(comparison: Comparison) -> Layout:
    first, second = comparison.presses
    area = {"AUC": comparison.area} if len(comparison.budgets) > 1 else {}
    rows = {**comparison.budgets, **area}
    notes = [f"missing: {', '.join(comparison.missing)}"] if comparison.missing else []
    return Layout(
        title=f"{first} − {second} · {title_of(comparison.protocol, missing=comparison.missing)}",
        names=Column("budget", list(rows)),
        groups=[[column] for column in outcome_columns(list(rows.values()), comparison.protocol)],
        notes=[
            *notes,
            conditions_of(comparison.protocol),
            f"difference [95 % interval] of the mean {_score(comparison.protocol)}, of AUC as a share of the full "
            f"cache; {OUTCOME_NOTE.format(corrected_for='budgets', press=first)}",
            *one_document_in_words(comparison.one_document),
        ],
    )


def outcome_columns(outcomes: Sequence[Outcome], protocol: Protocol) -> list[Column]:
    """Put outcomes into words, one a row; what was not corrected has no Holm p-value."""
    decimals = area_decimals(protocol)
    return [
        Column("difference", [_interval(outcome.difference, decimals) for outcome in outcomes]),
        Column("p", [_probability(outcome.difference.p) for outcome in outcomes]),
        Column("Holm", [_corrected(outcome.difference) for outcome in outcomes]),
        Column("wins", [str(outcome.wins) for outcome in outcomes]),
        Column("ties", [str(outcome.ties) for outcome in outcomes]),
        Column("losses", [str(outcome.losses) for outcome in outcomes]),
    ]


def _corrected(difference: Difference) -> str:
    known = difference.p is None or difference.adjusted_p is not None
    return _probability(difference.adjusted_p) if known else ""


def _score(protocol: Protocol) -> str:
    if protocol.shown_as == "exp":
        return f"logarithm of {protocol.metric} (nats per token; lower is better)"
    return metric_of(protocol)


def _unit(protocol: Protocol) -> str:
    return " nats per token" if protocol.shown_as == "exp" else ""


def _reversed(difference: Difference) -> Difference:
    """Return the difference of the second from the first."""
    mean, low, high = (None if x is None else -x for x in (difference.mean, difference.high, difference.low))
    return replace(difference, mean=mean, low=low, high=high)


def _interval(difference: Difference, decimals: int, sign: str = "+") -> str:
    ends = (difference.mean, difference.low, difference.high)
    mean, low, high = (None if end is None else f"{end:{sign}.{decimals}f}" for end in ends)
    if mean is None:
        return "n/a"
    return mean if low is None or high is None else f"{mean} [{low}, {high}]"


def _probability(p: float | None) -> str:
    if p is None:
        return "n/a"
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
