"""Figures with a line per press: score over cache size, and over measured bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from matplotlib.transforms import ScaledTranslation
from scipy.optimize import isotonic_regression

from kvbench.captions import conditions_of, interval_in_words, one_document_in_words
from kvbench.mean_interval import Estimate
from kvbench.measure import Measure
from kvbench.plot_frame import add_axes, new_figure, padded, scale_scores, styled, write_texts
from kvbench.plot_style import DASHED, INK, Look
from kvbench.records import FULL
from kvbench.score_grid import press_names
from kvbench.statistics import Budget, Curve, Summary
from kvbench.table import Table, noise_in_words

Sizes = Mapping[tuple[str, str], float]
"""Measured bytes of the compressed cache by press and budget label, mean over the answers."""

_LABEL = 7.5  # points
_DODGE = 0.7  # points between the bars of two presses
_MIB = 2.0**20


@styled
def draw_curves(table: Table, looks: Mapping[str, Look]) -> Figure:
    """Draw score over cache size, a line per press."""
    figure = new_figure()
    axes = add_axes(figure, 0.56, 0.14)
    budgets = axis_budgets(table.summary)
    tokens = [budget.tokens for budget in budgets]
    ends = _draw_lines(axes, table, looks, {curve.press: tokens for curve in table.summary.curves})
    scale_budgets(axes, budgets)
    write_texts(figure, table.title, conditions_of(table.protocol), _notes(table, looks))
    label_ends(figure, axes, ends)
    return figure


@styled
def draw_bytes(table: Table, looks: Mapping[str, Look], sizes: Sizes) -> Figure:
    """Draw score over the measured size of the cache, a line per press."""
    figure = new_figure()
    axes = add_axes(figure, 0.56, 0.14)
    labels = [budget.label for budget in axis_budgets(table.summary)]
    places = {
        curve.press: [sizes.get((curve.press, label), np.nan) / _MIB for label in labels]
        for curve in table.summary.curves
    }
    ends = _draw_lines(axes, table, looks, places)
    full = sizes.get((FULL, FULL), np.nan) / _MIB
    notes = [*_notes(table, looks), "bytes: measured after eviction, all layers, mean over the answers"]
    if table.summary.full and table.summary.full.score.mean is not None and np.isfinite(full):
        axes.plot(full, table.summary.full.score.mean, color=INK, marker="*", markersize=8, linestyle="", zorder=4)
        notes.append("star: the full cache at its own size")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("size of the cache per answer, MiB")
    known = np.array([*(size for row in places.values() for size in row), full])
    known = np.log2(known[np.isfinite(known)])
    axes.set_xlim(*2.0 ** padded(known.min(), known.max()))
    write_texts(figure, table.title, conditions_of(table.protocol), notes)
    label_ends(figure, axes, ends)
    return figure


def measured_sizes(frame: pd.DataFrame) -> Sizes:
    """Return the mean bytes of each press's cache at each budget; without those that nobody measured."""
    sizes = frame.groupby([press_names(frame), frame["budget"]], observed=True)["kept_bytes"].mean().dropna()
    cells = zip(sizes.index.to_flat_index(), sizes, strict=True)
    return {(str(press), str(budget)): float(size) for (press, budget), size in cells}


def axis_budgets(summary: Summary) -> list[Budget]:
    """Return the budgets of an axis, ascending in tokens."""
    return sorted(summary.budgets, key=lambda budget: budget.tokens)


def scores_of(curve: Curve, budgets: Sequence[Budget]) -> list[Estimate]:
    """Return a press's scores at the budgets, an unknown one where it was not run."""
    return [curve.cells[budget.label].score if budget.label in curve.cells else Estimate() for budget in budgets]


def full_score(table: Table) -> list[Estimate]:
    """Return the full cache's score if there is one; without its interval where those of presses are beside it."""
    if table.summary.full is None:
        return []
    score = table.summary.full.score
    return [Estimate(score.mean) if Measure.of(table.protocol).exponential else score]


@dataclass(frozen=True)
class End:
    """The last point of a line, and what is written beside it."""

    text: str
    y: float
    look: Look
    x: float | None = None
    """In the axis's unit; None for the right edge."""
    shift: float = 0.0


def draw_line(
    axes: Axes,
    press: str,
    places: Sequence[float],
    scores: Sequence[Estimate],
    look: Look,
    shift: float = 0.0,
    scale: float = 1.0,
) -> End | None:
    """Draw one press with its intervals as bars, `shift` points to the right so that those of several can be told.

    Args:
        axes: Where.
        press: Its name.
        places: On the x axis; NaN where a score has none.
        scores: One for each place.
        look: Of the press.
        shift: In points.
        scale: Of the line's width and its markers.
    """
    x = np.array(places)
    mean, low, high = (
        np.array([np.nan if value is None else value for value in values])
        for values in zip(*((score.mean, score.low, score.high) for score in scores), strict=True)
    )
    aside = axes.transData + ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)
    axes.plot(
        x,
        mean,
        color=look.colour,
        linestyle=DASHED if look.dashed else "solid",
        linewidth=1.2 * scale,
        marker=look.marker,
        markersize=4.4 * scale,
        markeredgecolor="white",
        markeredgewidth=0.5 * scale,
        zorder=3,
        transform=aside,
    )
    axes.vlines(x, low, high, color=look.colour, alpha=0.5 * scale, linewidth=0.8 * scale, zorder=2, transform=aside)
    known = np.flatnonzero(~np.isnan(mean) & ~np.isnan(x))
    return End(press, mean[known[-1]], look, x[known[-1]], shift) if len(known) else None


def draw_full(axes: Axes, score: Estimate) -> End | None:
    """Draw the full cache, which has no place on the axis, from edge to edge."""
    if score.mean is None:
        return None
    axes.axhline(score.mean, color=INK, linewidth=1.0, zorder=1.5)
    if score.low is not None and score.high is not None:
        axes.axhspan(score.low, score.high, color=INK, alpha=0.06, linewidth=0, zorder=0.5)
    return End("full cache", score.mean, Look(INK, "", dashed=False))


def scale_budgets(axes: Axes, budgets: Sequence[Budget]) -> None:
    """Give the axes a logarithmic x axis of budgets, those that are shares in a row of their own."""
    shares = [budget.is_share for budget in budgets]
    second_row = "\n" if any(shares) and not all(shares) else ""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(
        [budget.tokens for budget in budgets],
        [f"{second_row}{budget.label}" if budget.is_share else budget.label for budget in budgets],
    )
    axes.set_xlabel(f"cache size, tokens per KV head{' (% of the context)' if any(shares) else ''}")
    axes.grid(axis="x", visible=False)
    positions = np.log2([budget.tokens for budget in budgets])
    if len(positions):
        axes.set_xlim(*2.0 ** padded(positions.min(), positions.max()))


def label_ends(figure: Figure, axes: Axes, ends: Sequence[End]) -> None:
    """Write each line's name beside its end, in the order of the ends, never on top of one another."""
    if not ends:
        return
    ends = sorted(ends, key=lambda end: end.y)
    texts = [figure.text(0, 0, end.text, size=_LABEL, color=darker(end.look.colour), va="center") for end in ends]
    pixels = figure.dpi / 72  # in a point
    widest = max(text.get_window_extent().width for text in texts)
    size = _LABEL * min(1, 0.45 * figure.bbox.width / widest)
    widest *= size / _LABEL
    left = figure.bbox.width - 1.02 * widest - 6 * pixels  # a vector format's glyphs are not hinted
    box = axes.get_position()
    axes.set_position((box.x0, box.y0, (left - 26 * pixels) / figure.bbox.width - box.x0, box.height))

    line = 1.3 * _LABEL * pixels
    stack = line * np.arange(len(ends))
    wanted = axes.transData.transform([(1, end.y) for end in ends])[:, 1]
    placed = isotonic_regression(wanted - stack).x
    placed = np.clip(placed, axes.bbox.ymin, max(axes.bbox.ymin, axes.bbox.ymax - stack[-1])) + stack
    for end, text, y in zip(ends, texts, placed, strict=True):
        text.set_fontsize(size)
        text.set_position((left / figure.bbox.width, y / figure.bbox.height))
        x = axes.bbox.xmax if end.x is None else axes.transData.transform((end.x, 1))[0] + end.shift * pixels
        corners = [(x, axes.transData.transform((1, end.y))[1]), (left - 8 * pixels, y)]
        (x0, y0), (x1, y1) = figure.transFigure.inverted().transform(corners)
        figure.add_artist(Line2D((x0, x1), (y0, y1), color=end.look.colour, linewidth=0.5, alpha=0.7))
        figure.add_artist(Line2D((x1,), (y1,), color=end.look.colour, marker=end.look.marker, markersize=4.4))


def darker(colour: str) -> tuple[float, ...]:
    """Return a press's colour as text has it, which is thinner than a line."""
    return tuple(0.75 * channel for channel in to_rgb(colour))


def shifts_of(count: int) -> list[float]:
    """Return how many points each of some lines is drawn aside."""
    return [_DODGE * (index - (count - 1) / 2) for index in range(count)]


def _draw_lines(
    axes: Axes, table: Table, looks: Mapping[str, Look], places: Mapping[str, Sequence[float]]
) -> list[End]:
    summary = table.summary
    budgets = axis_budgets(summary)
    full = full_score(table)
    ends = [draw_full(axes, score) for score in full]
    for curve, shift in zip(reversed(summary.curves), shifts_of(len(summary.curves)), strict=True):  # the best on top
        scores = scores_of(curve, budgets)
        ends.append(draw_line(axes, curve.press, places[curve.press], scores, looks[curve.press], shift))
    of_curves = [score for curve in summary.curves for score in scores_of(curve, budgets)]
    scale_scores(axes, table.protocol, [*full, *of_curves])
    return [end for end in ends if end]


def _notes(table: Table, looks: Mapping[str, Look]) -> list[str]:
    summary = table.summary
    cells = [cell for curve in summary.curves for cell in curve.cells.values()]
    counts = [cell.n for cell in cells]
    answers = "-".join(map(str, sorted({min(counts), max(counts)})))
    notes = [f"Missing: {', '.join(table.missing)}"] if table.missing else []
    notes.append(f"Bars: {interval_in_words(table.protocol)}, {answers} answers")
    notes += one_document_in_words(summary.one_document)
    if len(summary.curves) > 1:
        notes.append("lines are set apart sideways")
    if any(looks[curve.press].dashed for curve in summary.curves):
        notes.append("dashed: reads attention")
    if summary.noise:
        notes.append(noise_in_words(summary.noise, 3, table.protocol))
    if failed := sum(cell.failed for cell in cells):
        notes.append(f"{failed} answers failed and are in no mean")
    return notes
