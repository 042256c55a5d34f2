"""Tables of results: presses by budgets, one table per protocol and, if wanted, per subtask."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import pandas as pd
from rich.console import Console

from kvbench.captions import (
    area_decimals,
    area_in_words,
    conditions_of,
    interval_in_words,
    missing_subtasks,
    one_document_in_words,
    title_of,
)
from kvbench.mean_interval import Estimate
from kvbench.measure import Measure
from kvbench.records import FULL, Protocol
from kvbench.statistics import Cell, Curve, NoiseFloor, Summary, summarise
from kvbench.store import Results
from kvbench.table_layout import Column, Layout, show_layouts

NOT_KNOWN = "n/a"
NOT_RUN = "-"
LEADS, TIES, INCOMPARABLE = "*", "=", "?"
"""What follows the area of the leader, of those that are not told from it, and of those that cannot be compared."""


@dataclass(frozen=True)
class Table:
    """The results of one protocol, or of one subtask of it.

    Attributes:
        missing: Subtasks of the task that have no results.
    """

    protocol: Protocol
    subtask: str | None
    summary: Summary
    missing: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What was measured."""
        return title_of(self.protocol, self.subtask, self.missing)


def make_tables(
    results: Results, subtasks: bool = False, is_bound: Callable[[str], bool] = lambda _: False
) -> list[Table]:
    """Make one table per protocol, followed by one per subtask, in the task's order, where `subtasks` asks for them.

    Presses that `is_bound` names are no contenders, see `summarise`.
    """
    tables = []
    for protocol in results.protocols.values():
        rows, measure = results.rows(protocol), Measure.of(protocol)
        places = {name: place for place, name in enumerate(protocol.subtasks)}
        names = sorted(rows["subtask"].unique(), key=lambda name: (places.get(name, len(places)), name))
        tables.append(Table(protocol, None, summarise(rows, is_bound, measure), missing_subtasks(protocol, names)))
        if subtasks:
            parts = {name: rows[rows["subtask"] == name] for name in names}
            tables += [Table(protocol, name, summarise(part, is_bound, measure)) for name, part in parts.items()]
    return tables


def show(tables: Sequence[Table], style: str, console: Console) -> None:
    """Print tables as `rich` (for reading, within the console's width), `md`, `csv`, `json` or `latex`.

    Raises:
        UsageError: There is no such style.
    """
    for_machines = {"csv": lambda: to_csv(tables), "json": lambda: to_json(tables)}
    show_layouts([_layout(table) for table in tables], for_machines, style, console)


def to_csv(tables: Sequence[Table]) -> str:
    """Render tables as one CSV, a row per press and budget: nothing is rounded, unknown numbers are empty."""
    rows = [
        {
            "protocol": table.protocol.hash,
            "model": table.protocol.model,
            "task": table.protocol.task,
            "subtask": table.subtask,
            "missing": "+".join(table.missing),
            "press": curve.press,
            "budget": label,
            "budget_tokens": next((b.tokens for b in table.summary.budgets if b.label == label), None),
            **asdict(cell.score),
            "n": cell.n,
            "failed": cell.failed,
            "whole": cell.whole,
            "auc": curve.auc,
            "auc_low": curve.auc_low,
            "auc_high": curve.auc_high,
            "tied": curve.tied,
        }
        for table in tables
        for curve in _rows(table.summary)
        for label, cell in curve.cells.items()
    ]
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


def to_json(tables: Sequence[Table]) -> str:
    """Render tables as a JSON list, each with its protocol: nothing is rounded, unknown numbers are null."""
    content = [
        {
            "hash": table.protocol.hash,
            "protocol": table.protocol.model_dump(mode="json"),
            "subtask": table.subtask,
            "missing": table.missing,
            **asdict(table.summary),
            "tied": [curve.press for curve in table.summary.curves if curve.tied],
        }
        for table in tables
    ]
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def areas(table: Table) -> list[str]:
    """Return the areas with their intervals, the leader and those tied with it marked."""
    curves, decimals = table.summary.curves, area_decimals(table.protocol)
    texts = [estimate(curve.area, decimals) for curve in curves]
    if not any(curve.ahead for curve in curves):
        return texts
    marks = [
        LEADS if curve.press == table.summary.leader else TIES * curve.tied + INCOMPARABLE * curve.incomparable
        for curve in curves
    ]
    width = max(map(len, marks))
    return [text + mark.ljust(width) for text, mark in zip(texts, marks, strict=True)]


def marks_in_words(summaries: Sequence[Summary]) -> str:
    """Return, as a note, what the marks of `areas` say."""
    words = f"{LEADS} leads; {TIES} not told from it (paired bootstrap, Holm-adjusted p ≥ 0.05)"
    if any(curve.incomparable for summary in summaries for curve in summary.curves):
        words += f"; {INCOMPARABLE} too few samples to compare it"
    return words


def estimate(score: Estimate, decimals: int) -> str:
    """Return a number with half its interval."""
    half = _half(score)
    interval = "" if half is None else f"±{half:.{decimals}f}".replace("±0.", "±.")
    return (NOT_KNOWN if score.mean is None else f"{score.mean:.{decimals}f}") + interval


def estimate_with_ends(score: Estimate, decimals: int) -> str:
    """Return a number with the ends of its interval, of which it is not the middle."""
    if score.mean is None or score.low is None or score.high is None:
        return estimate(score, decimals)
    return f"{score.mean:.{decimals}f} [{score.low:.{decimals}f}, {score.high:.{decimals}f}]"


def _written(protocol: Protocol) -> Callable[[Estimate, int], str]:
    """Return how a protocol's scores are written."""
    return estimate_with_ends if protocol.shown_as == "exp" else estimate


def _rows(summary: Summary) -> list[Curve]:
    """Return the full cache, which has no area, and the presses."""
    return [*([Curve(FULL, {FULL: summary.full})] if summary.full else []), *summary.curves]


def _layout(table: Table) -> Layout:
    summary = table.summary
    rows = _rows(summary)
    labels = [budget.label for budget in summary.budgets] or [FULL]
    decimals = _decimals(summary)
    written = _written(table.protocol)
    columns = [
        Column(label, [_score(row.cells.get(FULL) or row.cells.get(label), decimals, written) for row in rows])
        for label in labels
    ]
    if len(labels) > 1:
        full = [""] if summary.full else []
        columns.append(Column("AUC", [*full, *areas(table)]))
    if len(_counts(summary)) > 1:
        columns.append(Column("n", [_range({cell.n for cell in row.cells.values()}) for row in rows]))
    for head, total in (("failed", _failed), ("whole", _whole)):
        totals = [total(row.cells) for row in rows]
        if any(totals):
            columns.append(Column(head, [str(number) for number in totals]))
    return Layout(
        title=table.title,
        names=Column("press", [row.press for row in rows]),
        groups=[[column] for column in columns],
        notes=_notes(table, {column.head for column in columns}),
        rule=summary.full is not None,
    )


def _failed(cells: dict[str, Cell]) -> int:
    return sum(cell.failed for cell in cells.values())


def _whole(cells: dict[str, Cell]) -> int:
    return sum(cell.whole for label, cell in cells.items() if label != FULL)


def _counts(summary: Summary) -> set[int]:
    return {cell.n for row in _rows(summary) for cell in row.cells.values()}


def _range(numbers: set[int]) -> str:
    return str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)}-{max(numbers)}"


def _notes(table: Table, heads: set[str]) -> list[str]:
    interval = interval_in_words(table.protocol)
    reading = [f"[{interval}]" if table.protocol.shown_as == "exp" else f"± half the {interval}"]
    if "n" not in heads:
        reading.append(f"n = {_range(_counts(table.summary))} answers")
    if "AUC" in heads:
        half = ["± half the 95 % interval"] if table.protocol.shown_as == "exp" else []
        reading.append(", ".join([area_in_words(table.protocol), *half]))
    notes = [f"missing: {', '.join(table.missing)}"] if table.missing else []
    notes += [conditions_of(table.protocol), "; ".join(reading)]
    notes += one_document_in_words(table.summary.one_document)
    if any(curve.ahead for curve in table.summary.curves):
        notes.append(marks_in_words([table.summary]))
    if table.summary.bounds and "AUC" in heads:
        notes.append(f"not compared, a bound: {', '.join(table.summary.bounds)}")
    if noise := table.summary.noise:
        notes.append(noise_in_words(noise, _decimals(table.summary), table.protocol))
    if "failed" in heads:
        notes.append("failed: answers without a score, which no mean includes")
    if "whole" in heads:
        notes.append("whole: answers whose budget held the whole context, so that nothing was evicted")
    return notes


def noise_in_words(noise: NoiseFloor, decimals: int, protocol: Protocol) -> str:
    """Return what the full cache's second answers say of numbers that rounding alone can change."""
    changed = f"{noise.changed} of {noise.n} answers" if noise.changed else "no answer"
    again = _written(protocol)(noise.repeat, decimals)
    return f"noise floor: the full cache answered again scores {again}, {changed} scored otherwise"


def _decimals(summary: Summary) -> int:
    """Return the decimals that a table needs: fewer for scores up to 100, more for narrow intervals."""
    scores = [cell.score for row in _rows(summary) for cell in row.cells.values()]
    halves = [half for score in scores if (half := _half(score)) is not None]
    scale = max((abs(score.mean) for score in scores if score.mean is not None), default=1)
    narrow = bool(halves) and max(halves) < 0.01 * max(scale, 1)
    return 2 - int(scale > 10) + int(narrow)


def _half(score: Estimate) -> float | None:
    return None if score.low is None or score.high is None else (score.high - score.low) / 2


def _score(cell: Cell | None, decimals: int, written: Callable[[Estimate, int], str]) -> str:
    return NOT_RUN if cell is None else written(cell.score, decimals)
