"""What the leaderboard page holds: every table, and of every cell what produced it, as plain data."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from kvbench import __version__
from kvbench.captions import conditions_of, missing_subtasks, one_document_in_words, title_of
from kvbench.mean_interval import Estimate
from kvbench.plot_style import looks_of
from kvbench.records import FULL, Environment, Protocol
from kvbench.statistics import Cell, Curve, Summary
from kvbench.store import Results, ResultsFolder
from kvbench.table import Table, make_tables, noise_in_words

_DIGITS = 7  # significant: more than any score's interval has, and half the page's size


def make_content(
    results: Results, folder: Path, attention_reading: Callable[[str], bool], is_bound: Callable[[str], bool]
) -> dict[str, Any]:
    """Return the page's data, the same from the same results.

    Args:
        results: The results of `folder`.
        folder: Where the environments are read from.
        attention_reading: Whether the press with a given label reads attention; its line is dashed.
        is_bound: Whether a press is a bound on what any policy can reach, and so leads no table.
    """
    tables: dict[str, list[Table]] = {}
    for table in make_tables(results, True, is_bound):
        tables.setdefault(table.protocol.hash, []).append(table)
    protocols = sorted(results.protocols.values(), key=lambda protocol: (title_of(protocol), conditions_of(protocol)))
    presses = {curve.press for group in tables.values() for table in group for curve in table.summary.curves}
    looks = looks_of(presses, attention_reading)
    environments = sorted({str(name) for name in results.frame["environment"].unique()})
    return {
        "kvbench": __version__,
        "looks": {press: asdict(looks[press]) for press in sorted(looks)},
        "environments": {name: _environment(folder, name) for name in environments},
        "protocols": [
            _protocol(folder, protocol, results.rows(protocol), tables[protocol.hash]) for protocol in protocols
        ],
    }


def _environment(folder: Path, name: str) -> dict[str, Any] | None:
    """Return an environment's fields; None where its file is missing or holds something else."""
    try:
        text = (folder / "environments" / Path(f"{name}.json").name).read_bytes()
        return Environment.model_validate_json(text).model_dump(mode="json")
    except (OSError, ValidationError):
        return None


def _protocol(folder: Path, protocol: Protocol, rows: pd.DataFrame, tables: Sequence[Table]) -> dict[str, Any]:
    presses = [FULL, *(curve.press for curve in tables[0].summary.curves)]
    named = {press: _rows_of(rows, press) for press in presses}
    measured = [table.subtask for table in tables[1:] if table.subtask is not None]
    missing = missing_subtasks(protocol, measured)
    return {
        "hash": protocol.hash,
        "file": f"records/{ResultsFolder(folder).records_file(protocol).name}",
        "title": title_of(protocol, missing=missing),
        "conditions": conditions_of(protocol),
        "notes": [f"without {', '.join(missing)}"] if missing else [],
        "fields": protocol.model_dump(mode="json"),
        "data": {
            str(subtask): sorted({str(origin) for origin in origins})
            for subtask, origins in rows.groupby("subtask", observed=True)["data"].unique().items()
        },
        "command": {"model": shlex.quote(protocol.model), "rest": _options(protocol)},
        "presses": {press: _press(press, of) for press, of in named.items() if len(of)},
        "tables": [_table(table, named, measured if missing else ()) for table in tables],
    }


def _rows_of(rows: pd.DataFrame, press: str) -> pd.DataFrame:
    """Return the rows of a press as a summary names it: its label, with the identity where a label has several."""
    found = rows[rows["press"] == press]
    if found.empty:
        label, _, identity = press.rpartition("#")
        found = rows[(rows["press"] == label) & rows["press_identity"].astype(str).str.startswith(identity)]
    return found


def _press(press: str, rows: pd.DataFrame) -> dict[str, Any]:
    budgets = {str(label): part for label, part in rows.groupby("budget", observed=True)}
    return {
        "label": str(rows["press"].iloc[0]),
        "quoted": shlex.quote(str(rows["press"].iloc[0])),
        "identities": sorted({str(identity) for identity in rows["press_identity"]}) if press != FULL else [],
        "made": {label: _made(part) for label, part in budgets.items()},
    }


def _made(rows: pd.DataFrame) -> dict[str, Any]:
    """Return what computed the cells of a press at a budget, and what was measured of its cache."""
    kept, size = rows[["kept_min", "kept_max"]].dropna(), rows["kept_bytes"].dropna()
    return {
        "environments": sorted({str(name) for name in rows["environment"]}),
        "kept": [int(kept["kept_min"].min()), int(kept["kept_max"].max())] if len(kept) else None,
        "bytes": round(float(size.mean())) if len(size) else None,
    }


def _table(table: Table, named: dict[str, pd.DataFrame], part: Sequence[str]) -> dict[str, Any]:
    task, subset = table.protocol.task, table.subtask
    if subset is None and part:
        subset = "+".join(part)
    summary = table.summary
    samples = {press: _samples(rows, table.subtask) for press, rows in named.items()}
    return {
        "subtask": table.subtask,
        "task": shlex.quote(f"{task}:{subset}" if subset else task),
        "budgets": [asdict(budget) | {"share": budget.is_share} for budget in summary.budgets],
        "leader": summary.leader,
        "bounds": summary.bounds,
        "notes": one_document_in_words(summary.one_document),
        "noise": noise_in_words(summary.noise, 3, table.protocol) if summary.noise else None,
        "rows": [
            _curve(curve)
            | {
                "cells": {
                    label: _cell(cell, samples[curve.press].get(label, cell.n)) for label, cell in curve.cells.items()
                }
            }
            for curve in _curves(summary)
        ],
    }


def _curves(summary: Summary) -> list[Curve]:
    full = [Curve(FULL, {FULL: summary.full})] if summary.full else []
    return [*full, *summary.curves]


def _curve(curve: Curve) -> dict[str, Any]:
    """Return a press's area and its interval, what tells it from the leader, and the budget that is enough."""
    ahead = curve.ahead
    return {
        "press": curve.press,
        "auc": _estimate(curve.area),
        "ahead": [*_estimate(ahead), _rounded(ahead.adjusted_p)] if ahead else None,
        "tied": curve.tied,
        "incomparable": curve.incomparable,
        "enough": [_rounded(curve.enough.tokens), curve.enough.relation] if curve.enough else None,
    }


def _samples(rows: pd.DataFrame, subtask: str | None) -> dict[str, int]:
    """Return by budget how many samples of a subtask were run; without a subtask, of the largest."""
    if subtask is not None:
        rows = rows[rows["subtask"] == subtask]
    counts = rows.groupby(["budget", "subtask"], observed=True)["sample"].nunique()
    return {str(label): int(count) for label, count in counts.groupby(level="budget", observed=True).max().items()}


def _cell(cell: Cell, samples: int) -> list[float | int | None]:
    """Return mean, low, high, n, failed, whole and samples, in this order."""
    return [*_estimate(cell.score), cell.n, cell.failed, cell.whole, samples]


def _estimate(estimate: Estimate) -> list[float | None]:
    return [_rounded(estimate.mean), _rounded(estimate.low), _rounded(estimate.high)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def _options(protocol: Protocol) -> str:
    """Return the options of `kvbench run` that repeat a protocol, model and task apart."""
    options = ["--question", protocol.question, "--schedule", protocol.schedule]
    if protocol.chunk is not None:
        options += ["--chunk", str(protocol.chunk)]
    options += ["--protect", f"{protocol.protect_first},{protocol.protect_last}", "--seed", str(protocol.seed)]
    options += ["--dtype", protocol.dtype, "--device", protocol.device, "--attention", protocol.attention]
    return shlex.join(options)
