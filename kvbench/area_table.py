"""One table of all results: presses by tasks, with the area under the curve and the budget that is enough."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd
from rich.console import Console

from kvbench.captions import conditions_of, metric_of, one_document_in_words
from kvbench.measure import ENOUGH, Measure
from kvbench.statistics import Curve, Difference, Summary
from kvbench.table import NOT_KNOWN, NOT_RUN, Table, areas, marks_in_words
from kvbench.table_layout import Column, Layout, show_layouts


def show_areas(tables: Sequence[Table], style: str, console: Console) -> None:
    """Print the areas of several tables side by side as `rich`, `md`, `csv`, `json` or `latex`.

    Raises:
        UsageError: There is no such style.
    """
    for_machines = {"csv": lambda: _to_csv(tables), "json": lambda: _to_json(tables)}
    show_layouts([area_layout(tables)], for_machines, style, console)


def area_layout(tables: Sequence[Table]) -> Layout:
    """Put the tables' areas side by side: protocols share a table but never a column."""
    presses = _presses(tables)
    heads = _heads(tables)
    enough = f"at {ENOUGH:.0%}"
    bounds = [press for press in presses if any(press in table.summary.bounds for table in tables)]
    return Layout(
        title="AUC over log2(budget), as a share of the full cache",
        names=Column("press", presses),
        groups=[
            [
                Column(head, _in_rows(presses, table.summary, areas(table))),
                Column(enough, _in_rows(presses, table.summary, [_enough(curve) for curve in table.summary.curves])),
            ]
            for head, table in zip(heads, tables, strict=True)
        ],
        notes=[
            f"± half the 95 % interval; {marks_in_words([table.summary for table in tables])}",
            *([f"not compared, a bound: {', '.join(bounds)}"] if bounds else []),
            f"{enough}: tokens per KV head at which the score reaches {ENOUGH:.0%} of the full cache's",
            *_directions(heads, tables),
            *_sources(heads, tables),
            *one_document_in_words(_of_one_document(tables)),
        ],
    )


def area_rows(tables: Sequence[Table]) -> list[dict[str, object]]:
    """Return one row per table and press: nothing is rounded, unknown numbers are None."""
    return [
        {
            "protocol": table.protocol.hash,
            "model": table.protocol.model,
            "task": table.protocol.task,
            "subtask": table.subtask,
            "missing": "+".join(table.missing),
            "press": curve.press,
            "auc": curve.auc,
            "auc_low": curve.auc_low,
            "auc_high": curve.auc_high,
            "leader": table.summary.leader,
            "tied": curve.tied,
            **{f"ahead_{name}": value for name, value in asdict(curve.ahead or Difference()).items()},
            "enough_tokens": curve.enough and curve.enough.tokens,
            "enough_relation": curve.enough and curve.enough.relation,
        }
        for table in tables
        for curve in table.summary.curves
    ]


def _to_csv(tables: Sequence[Table]) -> str:
    return pd.DataFrame(area_rows(tables)).to_csv(index=False, lineterminator="\n")


def _to_json(tables: Sequence[Table]) -> str:
    return json.dumps(area_rows(tables), indent=2, ensure_ascii=False) + "\n"


def _presses(tables: Sequence[Table]) -> list[str]:
    """Return all presses: those with an area in the most columns first, then by the sum of their areas' merits."""
    found: dict[str, list[float]] = {}
    for table in tables:
        measure = Measure.of(table.protocol)
        for curve in table.summary.curves:
            found.setdefault(curve.press, []).extend([] if curve.auc is None else [measure.merit(curve.auc)])
    return sorted(found, key=lambda press: (-len(found[press]), -float(np.sum(found[press])), press))


def _in_rows(presses: Sequence[str], summary: Summary, texts: Sequence[str]) -> list[str]:
    text = dict(zip((curve.press for curve in summary.curves), texts, strict=True))
    return [text.get(press, NOT_RUN) for press in presses]


def _enough(curve: Curve) -> str:
    return NOT_KNOWN if curve.enough is None else str(curve.enough)


def _heads(tables: Sequence[Table]) -> list[str]:
    """Return the tasks' names, numbered where several protocols have the same."""
    names = [f"{t.protocol.task}:{t.subtask}" if t.subtask else t.protocol.task for t in tables]
    several = {name for name, count in Counter(names).items() if count > 1}
    return [
        f"{name} #{names[: place + 1].count(name)}" if name in several else name for place, name in enumerate(names)
    ]


def _directions(heads: Sequence[str], tables: Sequence[Table]) -> list[str]:
    """Return which columns are read the other way round."""
    lower = [head for head, table in zip(heads, tables, strict=True) if table.protocol.lower_is_better]
    if not lower:
        return []
    return [f"{', '.join(lower)}: lower is better; enough is a score of at most 1/{ENOUGH:g} of the full cache's"]


def _of_one_document(tables: Sequence[Table]) -> list[str]:
    """Return the subtasks of one document, each once, after its task."""
    return list(
        dict.fromkeys(f"{table.protocol.task}:{subtask}" for table in tables for subtask in table.summary.one_document)
    )


def _sources(heads: Sequence[str], tables: Sequence[Table]) -> list[str]:
    """Return which columns were measured how, those measured alike in one line."""
    alike: dict[str, list[str]] = {}
    for head, table in zip(heads, tables, strict=True):
        missing = f"; missing: {', '.join(table.missing)}" if table.missing else ""
        how = f"{table.protocol.model} · {metric_of(table.protocol)}; {conditions_of(table.protocol)}{missing}"
        alike.setdefault(how, []).append(head)
    return [f"{', '.join(columns)}: {how}" for how, columns in alike.items()]
