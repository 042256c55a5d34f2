"""Figures with a row per press: the area under its curve, and what its ranking takes beside the prefill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from kvbench.captions import area_in_words, conditions_of, one_document_in_words
from kvbench.curve_plots import darker
from kvbench.plot_frame import BOTTOM, TOP, WIDTH, add_axes, new_figure, padded, styled, write_texts
from kvbench.plot_style import INK, MUTED, Look
from kvbench.records import FULL
from kvbench.score_grid import press_names
from kvbench.table import Table, areas, marks_in_words

_ROW = 0.22  # inches
_LABEL = 7.5  # points


@styled
def draw_areas(table: Table, looks: Mapping[str, Look]) -> Figure:
    """Draw the areas with their intervals as bars, which begin at 0, or at the full cache where less is better."""
    curves = table.summary.curves
    known = [curve for curve in curves if curve.auc is not None]
    texts = dict(zip((c.press for c in curves), areas(table), strict=True))
    base = 1.0 if table.protocol.lower_is_better else 0.0
    figure, axes = _rows([curve.press for curve in known], looks)
    ends = [[base, 1.0]]
    for place, curve in enumerate(known):
        assert curve.auc is not None
        colour = looks[curve.press].colour
        axes.barh(place, curve.auc - base, left=base, height=0.62, color=colour, alpha=0.55, zorder=2)
        if curve.auc_low is not None and curve.auc_high is not None:
            axes.hlines(place, curve.auc_low, curve.auc_high, color=darker(colour), linewidth=1.4, zorder=3)
        ends.append([value for value in (curve.auc, curve.auc_low, curve.auc_high) if value is not None])
    axes.axvline(1, color=INK, linewidth=1.0, zorder=1.5)
    axes.text(1, 1.01, "full cache", transform=axes.get_xaxis_transform(), size=7, color=INK, ha="center", va="bottom")
    low, high = padded(min(map(min, ends)), max(map(max, ends)))
    axes.set_xlim(base if low <= base <= min(map(min, ends)) else low, high)
    axes.set_xlabel("AUC, as a multiple of the full cache's" if base else "AUC, as a share of the full cache's")
    _write_values(axes, [texts[curve.press] for curve in known])
    notes = [
        f"Bars: {area_in_words(table.protocol)}",
        "lines: 95 % intervals",
        *one_document_in_words(table.summary.one_document),
    ]
    if table.missing:
        notes.insert(0, f"Missing: {', '.join(table.missing)}")
    if any(curve.ahead for curve in curves):
        notes.append(marks_in_words([table.summary]))
    if table.summary.bounds:
        notes.append(f"not compared, a bound: {', '.join(table.summary.bounds)}")
    if unknown := [curve.press for curve in curves if curve.auc is None]:
        notes.append(f"without an area, as some budget has no score: {', '.join(unknown)}")
    write_texts(figure, table.title, conditions_of(table.protocol), notes)
    return figure


@dataclass(frozen=True)
class RankingShare:
    """The time of a press's ranking as a share of the prefill's, over samples: its median and its quartiles."""

    press: str
    median: float
    low: float
    high: float
    samples: int


def ranking_shares(frame: pd.DataFrame) -> list[RankingShare]:
    """Return how long each press ranked beside the prefill, the quickest first; those without times are left out.

    A press ranks a sample once for all its budgets: a sample's share is the median over its records.
    """
    ranked = frame[frame["press"].ne(FULL) & frame["ranking_seconds"].gt(0) & frame["prefill_seconds"].gt(0)]
    shares = ranked["ranking_seconds"] / ranked["prefill_seconds"]
    by_sample = shares.groupby([press_names(ranked).astype(str), ranked["sample"].astype(str)]).median()
    found = []
    for press, values in by_sample.groupby(level=0):
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
        found.append(RankingShare(str(press), median, low, high, samples=len(values)))
    return sorted(found, key=lambda share: (share.median, share.press))


@styled
def draw_ranking_shares(table: Table, looks: Mapping[str, Look], shares: Sequence[RankingShare]) -> Figure:
    """Draw the medians on a logarithmic axis, their quartiles as lines."""
    figure, axes = _rows([share.press for share in shares], looks)
    for place, share in enumerate(shares):
        look = looks[share.press]
        axes.hlines(place, share.low, share.high, color=look.colour, linewidth=1.4, zorder=2)
        axes.plot(share.median, place, color=look.colour, marker=look.marker, markersize=5.5, zorder=3)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    low, high = min(share.low for share in shares), max(share.high for share in shares)
    axes.set_xlim(low / 1.5, high * 1.5)
    axes.set_xlabel("time of the ranking, as a share of the prefill's")
    _write_values(axes, [f"{100 * share.median:.2g} %" for share in shares])
    counts = sorted({share.samples for share in shares})
    samples = "-".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    notes = [f"Median over {samples} samples, lines: from the lower to the upper quartile"]
    notes.append("one ranking serves all budgets; what a press makes the prefill itself take longer is not in it")
    write_texts(figure, table.title, conditions_of(table.protocol), notes)
    return figure


def _rows(presses: Sequence[str], looks: Mapping[str, Look]) -> tuple[Figure, Axes]:
    """Return axes with a row per press, the first at the top, their names written at the left."""
    figure = new_figure(TOP + 0.2 + _ROW * len(presses) + BOTTOM)
    size = _LABEL * min(1, 40 / max(map(len, presses)))
    axes = add_axes(figure, 0.25 + 0.0088 * size * max(map(len, presses)), 0.85, top=TOP + 0.2)
    axes.set_yticks(range(len(presses)), presses)
    axes.set_ylim(len(presses) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    for label, press in zip(axes.get_yticklabels(), presses, strict=True):
        label.set(size=size, color=darker(looks[press].colour))
    return figure, axes


def _write_values(axes: Axes, texts: Sequence[str]) -> None:
    """Write a number at the right of each row."""
    for place, text in enumerate(texts):
        axes.text(
            1 + 0.08 / (WIDTH * axes.get_position().width),
            place,
            text,
            transform=axes.get_yaxis_transform(),
            size=_LABEL,
            color=MUTED,
            va="center",
        )
