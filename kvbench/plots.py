"""Figures of results, several per protocol or cost report, the same bytes from the same results.

<model>_<task>_<protocol>            score over cache size
<model>_<task>_<protocol>_subtasks   the same in each subtask
<model>_<task>_<protocol>_auc        the areas under the curves
<model>_<task>_<protocol>_bytes      score over measured bytes
<model>_<task>_<protocol>_ranking    time of the ranking as a share of the prefill
<model>_<task>_<report>_evicted      future attention evicted over cache size
<model>_<task>_<report>_heads        cost of each press by layer and KV head
objectives                           cost over training, an objective beside the other
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from matplotlib.figure import Figure

from kvbench.area_plots import draw_areas, draw_ranking_shares, ranking_shares
from kvbench.cost_plots import draw_evicted, draw_heads
from kvbench.cost_report import CostReport
from kvbench.curve_plots import draw_bytes, draw_curves, measured_sizes
from kvbench.errors import UsageError, unknown
from kvbench.objective_plots import Objectives, draw_objectives
from kvbench.plot_frame import FORMATS, save
from kvbench.plot_style import Look, looks_of
from kvbench.records import FULL
from kvbench.store import Results, file_stem
from kvbench.subtask_plots import draw_subtasks
from kvbench.table import Table, make_tables


def plot_results(
    results: Results,
    out: Path,
    formats: Sequence[str],
    attention_reading: Callable[[str], bool],
    is_bound: Callable[[str], bool] = lambda _: False,
) -> list[Path]:
    """Draw the figures of each protocol that has a press beside the full cache, and write them in each format.

    A figure is left out where nothing is known that it would show: a single subtask, no area, bytes or time.

    Args:
        results: What to draw.
        out: The folder of the figures; made if it is not there.
        formats: Of `png`, `svg` and `pdf`.
        attention_reading: Whether the press with a given label reads attention; its line is dashed.
        is_bound: Whether a press, by its label, is a bound and no contender, see `kvbench.statistics.summarise`.

    Returns:
        The files written. The same results give the same bytes.

    Raises:
        UsageError: There is no such format, or nothing but the full cache to draw.
        KvbenchError: A file cannot be written.
    """
    _require_formats(formats)
    tables = [table for table in make_tables(results, subtasks=True, is_bound=is_bound) if table.summary.curves]
    if not tables:
        raise UsageError("there is no curve to draw: the results hold nothing but the full cache")
    looks = looks_of({curve.press for table in tables for curve in table.summary.curves}, attention_reading)
    written = []
    for protocol, group in groupby(tables, key=lambda table: table.protocol):
        for suffix, figure in _figures(results, list(group), looks):
            written += [save(figure, out / f"{file_stem(protocol)}{suffix}.{name}") for name in formats]
    return written


def plot_costs(
    reports: Sequence[CostReport],
    out: Path,
    formats: Sequence[str],
    attention_reading: Callable[[str], bool],
    is_bound: Callable[[str], bool],
) -> list[Path]:
    """Draw the figures of cost reports; see `plot_results`. A bound is a line, but costs the least in every head.

    Raises:
        UsageError: There is no such format.
        KvbenchError: A file cannot be written.
    """
    _require_formats(formats)
    looks = looks_of({press for report in reports for press in report.presses}, attention_reading)
    written = []
    for report in reports:
        figures = {"evicted": draw_evicted(report, looks)}
        if contenders := [press for press in report.presses if not is_bound(press)]:
            figures["heads"] = draw_heads(report, contenders)
        for end, figure in figures.items():
            stem = report.file(out).stem
            written += [save(figure, out / f"{stem}_{end}.{name}") for name in formats]
    return written


def plot_objectives(objectives: Objectives, out: Path, formats: Sequence[str]) -> list[Path]:
    """Draw objectives side by side; see `plot_results`.

    Raises:
        UsageError: There is no such format.
        KvbenchError: The file cannot be written.
    """
    _require_formats(formats)
    figure = draw_objectives(objectives)
    return [save(figure, out / f"objectives.{name}") for name in formats]


def _require_formats(formats: Sequence[str]) -> None:
    for name in formats:
        if name not in FORMATS:
            raise unknown("figure format", name, FORMATS)


def _figures(results: Results, tables: Sequence[Table], looks: dict[str, Look]) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of one protocol, each with the end of its name.

    Args:
        results: What to draw.
        tables: Of the whole task, then of its subtasks.
        looks: By press.
    """
    whole, *parts = tables
    rows = results.rows(whole.protocol)
    yield "", draw_curves(whole, looks)
    if len(parts) > 1:
        yield "_subtasks", draw_subtasks(whole, parts, looks)
    if any(curve.auc is not None for curve in whole.summary.curves):
        yield "_auc", draw_areas(whole, looks)
    sizes = measured_sizes(rows)
    if any(press != FULL for press, _ in sizes):
        yield "_bytes", draw_bytes(whole, looks, sizes)
    if shares := ranking_shares(rows):
        yield "_ranking", draw_ranking_shares(whole, looks, shares)
