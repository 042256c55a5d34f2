"""Tables of results: presses by budgets, one table per protocol and, if wanted, per subtask."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from kvbench.captions import conditions_of, missing_subtasks, title_of
from kvbench.errors import unknown
from kvbench.records import FULL, Protocol
from kvbench.statistics import Cell, Estimate, Summary, summarise
from kvbench.store import Results

NOT_KNOWN = "n/a"
NOT_RUN = "-"
_GAP = 2  # between columns


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


def make_tables(results: Results, subtasks: bool = False) -> list[Table]:
    """Make one table per protocol, followed by one per subtask, in the task's order, where `subtasks` asks for them."""
    tables = []
    for protocol in results.protocols.values():
        rows = results.rows(protocol)
        places = {name: place for place, name in enumerate(protocol.subtasks)}
        names = sorted(rows["subtask"].unique(), key=lambda name: (places.get(name, len(places)), name))
        tables.append(Table(protocol, None, summarise(rows), missing_subtasks(protocol, names)))
        if subtasks:
            tables += [Table(protocol, name, summarise(rows[rows["subtask"] == name])) for name in names]
    return tables


def show(tables: Sequence[Table], style: str, console: Console) -> None:
    """Print tables as `rich` (for reading, within the console's width), `md`, `csv` or `json`.

    Raises:
        UsageError: There is no such style.
    """
    if style == "rich":
        for table in tables:
            _print(table, console)
    elif style in _STYLES:
        console.out(_STYLES[style](tables), highlight=False, end="")
    else:
        raise unknown("table format", style, ["rich", *_STYLES])


def to_markdown(tables: Sequence[Table]) -> str:
    """Render tables as Markdown, each under a heading."""
    return "\n".join(f"### {table.title}\n\n{_markdown(table)}" for table in tables)


def to_csv(tables: Sequence[Table]) -> str:
    """Render tables as one CSV, a row per press and budget: nothing is rounded, unknown numbers are empty."""
    rows = [
        {
            "protocol": table.protocol.hash,
            "model": table.protocol.model,
            "task": table.protocol.task,
            "subtask": table.subtask,
            "missing": "+".join(table.missing),
            "press": press,
            "budget": label,
            "budget_tokens": next((b.tokens for b in table.summary.budgets if b.label == label), None),
            **asdict(cell.score),
            "n": cell.n,
            "failed": cell.failed,
            "whole": cell.whole,
            "auc": auc,
        }
        for table in tables
        for press, cells, auc in _rows(table.summary)
        for label, cell in cells.items()
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
        }
        for table in tables
    ]
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


_STYLES: dict[str, Callable[[Sequence[Table]], str]] = {"md": to_markdown, "csv": to_csv, "json": to_json}


@dataclass(frozen=True)
class _Column:
    head: str
    values: list[str]

    @property
    def width(self) -> int:
        return max(len(text) for text in (self.head, *self.values))


@dataclass(frozen=True)
class _Layout:
    press: _Column
    scores: list[_Column]
    beside: list[_Column]
    """What a row has beside its scores: the area, and counts where they say something."""


def _rows(summary: Summary) -> list[tuple[str, dict[str, Cell], float | None]]:
    """Return press, cells and area, the full cache first."""
    full = [(FULL, {FULL: summary.full}, None)] if summary.full else []
    return [*full, *((curve.press, curve.cells, curve.auc) for curve in summary.curves)]


def _layout(summary: Summary) -> _Layout:
    rows = _rows(summary)
    labels = [budget.label for budget in summary.budgets] or [FULL]
    decimals = _decimals(summary)
    scores = [
        _Column(label, [_score(cells.get(FULL) or cells.get(label), decimals) for _, cells, _ in rows])
        for label in labels
    ]
    beside = []
    if len(labels) > 1:
        beside.append(_Column("AUC", ["" if press == FULL else _number(auc, 2) for press, _, auc in rows]))
    if len(_counts(summary)) > 1:
        beside.append(_Column("n", [_range({cell.n for cell in cells.values()}) for _, cells, _ in rows]))
    for head, total in (("failed", _failed), ("whole", _whole)):
        totals = [total(cells) for _, cells, _ in rows]
        if any(totals):
            beside.append(_Column(head, [str(number) for number in totals]))
    return _Layout(_Column("press", [press for press, _, _ in rows]), scores, beside)


def _failed(cells: dict[str, Cell]) -> int:
    return sum(cell.failed for cell in cells.values())


def _whole(cells: dict[str, Cell]) -> int:
    return sum(cell.whole for label, cell in cells.items() if label != FULL)


def _counts(summary: Summary) -> set[int]:
    return {cell.n for _, cells, _ in _rows(summary) for cell in cells.values()}


def _range(numbers: set[int]) -> str:
    return str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)}-{max(numbers)}"


def _notes(table: Table, layout: _Layout) -> list[str]:
    heads = {column.head for column in layout.beside}
    reading = ["± half the 95 % interval"]
    if "n" not in heads:
        reading.append(f"n = {_range(_counts(table.summary))} answers")
    if "AUC" in heads:
        reading.append("AUC over log2(budget) as a share of the full cache")
    notes = [f"missing: {', '.join(table.missing)}"] if table.missing else []
    notes += [conditions_of(table.protocol), "; ".join(reading)]
    if "failed" in heads:
        notes.append("failed: answers without a score, which no mean includes")
    if "whole" in heads:
        notes.append("whole: answers whose budget held the whole context, so that nothing was evicted")
    return notes


def _decimals(summary: Summary) -> int:
    """Return the decimals that a table needs: fewer for scores up to 100, more for narrow intervals."""
    scores = [cell.score for _, cells, _ in _rows(summary) for cell in cells.values()]
    halves = [half for score in scores if (half := _half(score)) is not None]
    scale = max((abs(score.mean) for score in scores if score.mean is not None), default=1)
    narrow = bool(halves) and max(halves) < 0.01 * max(scale, 1)
    return 2 - int(scale > 10) + int(narrow)


def _half(score: Estimate) -> float | None:
    return None if score.low is None or score.high is None else (score.high - score.low) / 2


def _score(cell: Cell | None, decimals: int) -> str:
    if cell is None:
        return NOT_RUN
    half = _half(cell.score)
    interval = "" if half is None else f"±{half:.{decimals}f}".replace("±0.", "±.")
    return _number(cell.score.mean, decimals) + interval


def _number(value: float | None, decimals: int) -> str:
    return NOT_KNOWN if value is None else f"{value:.{decimals}f}"


def _markdown(table: Table) -> str:
    layout = _layout(table.summary)
    columns = [layout.press, *layout.scores, *layout.beside]
    lines = [[column.head for column in columns], ["---", *["---:"] * (len(columns) - 1)]]
    lines += [list(values) for values in zip(*(column.values for column in columns), strict=True)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{body}\n\n{'; '.join(_notes(table, layout))}.\n"


def _print(table: Table, console: Console) -> None:
    layout = _layout(table.summary)
    console.print(Text(table.title, style="bold"))
    for block in _blocks(layout, console.width):
        grid = RichTable(box=box.SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
        for column in block:
            grid.add_column(column.head, justify="left" if column is layout.press else "right", overflow="fold")
        for index, values in enumerate(zip(*(column.values for column in block), strict=True)):
            grid.add_row(*map(Text, values), end_section=index == 0 and table.summary.full is not None)
        console.print(grid)
        console.print()
    for note in _notes(table, layout):
        console.print(Text(note, style="dim"))
    console.print()


def _blocks(layout: _Layout, width: int) -> list[list[_Column]]:
    """Spread the columns evenly over the fewest blocks that fit the width, each with the presses in front."""
    fewest = len(_filled(layout, width))
    return next(blocks for narrower in range(width + 1) if len(blocks := _filled(layout, narrower)) <= fewest)


def _filled(layout: _Layout, width: int) -> list[list[_Column]]:
    blocks: list[list[_Column]] = []
    room = -1
    for column in [*layout.scores, *layout.beside]:
        room -= _GAP + column.width
        if room < 0:
            blocks.append([layout.press])
            room = width - layout.press.width - _GAP - column.width
        blocks[-1].append(column)
    return blocks
