"""What all figures have in common: their size, title, conditions and notes, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from textwrap import wrap

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from numpy.typing import NDArray

from kvbench.captions import metric_of
from kvbench.errors import KvbenchError
from kvbench.mean_interval import Estimate
from kvbench.plot_style import DASHED, INK, MUTED, STYLE, Look
from kvbench.record_table import reason
from kvbench.records import Protocol

FORMATS = ("png", "svg", "pdf")
WIDTH, HEIGHT = 7.0, 4.4  # inches
TOP, BOTTOM = 0.57, 0.84  # inches of the title, and of the notes with an axis above them

styled = matplotlib.style.context([STYLE], after_reset=True)
"""Decorates what draws or writes a figure: whatever the user's own matplotlib settings, it looks the same."""

_DPI = 200
_KEY_LINE = 0.16  # inches
_METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}


def new_figure(height: float = HEIGHT) -> Figure:
    """Return an empty figure, `height` inches high."""
    figure = Figure(figsize=(WIDTH, height), dpi=_DPI)
    FigureCanvasAgg(figure)
    return figure


def add_axes(figure: Figure, left: float, right: float, bottom: float = BOTTOM, top: float = TOP) -> Axes:
    """Return axes that leave the given inches free on every side."""
    height = figure.get_figheight()
    inside = (1 - (left + right) / WIDTH, 1 - (bottom + top) / height)
    return figure.add_axes((left / WIDTH, bottom / height, *inside))


def write_texts(figure: Figure, title: str, conditions: str, notes: Sequence[str]) -> None:
    """Write what was measured, and how, above a figure, and notes below it."""
    height = figure.get_figheight()
    for text, inches, size, colour, weight in (
        (title, 0.12, 9.5, INK, "bold"),
        (conditions, 0.32, 7.0, MUTED, "normal"),
    ):
        line = figure.text(0.012, 1 - inches / height, text, size=size, color=colour, weight=weight, va="top")
        line.set_fontsize(size * min(1, 0.97 * figure.bbox.width / line.get_window_extent().width))
    lines = "\n".join(wrap(f"{'; '.join(notes)}.", 140))
    figure.text(0.012, 0.1 / height, lines, size=6.5, color=MUTED, va="bottom")


def marker_of(look: Look) -> Line2D:
    """Return a piece of a press's line, for a key."""
    line = Line2D((), (), color=look.colour, linewidth=1.2, marker=look.marker, markersize=4.4)
    line.set_linestyle(DASHED if look.dashed else "solid")
    return line


def key_height(names: Sequence[str]) -> float:
    """Return the inches that a key of these names takes below a figure's title."""
    return _KEY_LINE * ceil(len(names) / _names_per_line(names)) + 0.08


def add_key(figure: Figure, names: Sequence[str], lines: Sequence[Line2D]) -> None:
    """Write the names, each with its line, below a figure's title."""
    figure.legend(
        lines,
        names,
        loc="upper left",
        bbox_to_anchor=(0, 1 - (TOP - 0.06) / figure.get_figheight()),
        ncols=_names_per_line(names),
        fontsize=7,
        frameon=False,
        handlelength=2.2,
        columnspacing=1.2,
        labelspacing=0.35,
    )


def _names_per_line(names: Sequence[str]) -> int:
    return max(1, int((WIDTH - 0.2) / (0.45 + 0.062 * max(map(len, names)))))


def scale_scores(axes: Axes, protocol: Protocol, scores: Sequence[Estimate]) -> None:
    """Give the axes a y axis for scores: from 0 or from where they begin; logarithmic for a perplexity."""
    axes.set_ylabel(metric_of(protocol))
    means = [score.mean for score in scores if score.mean is not None]
    bounds = [bound for score in scores for bound in (score.low, score.high) if bound is not None]
    if not means:
        return
    if protocol.shown_as == "exp":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(*np.exp(padded(*np.log([min(means + bounds), max(means + bounds)]))))
    else:
        bottom, top = padded(min(means + bounds), max(means + bounds))
        # A score that is never negative needs no room for the lower half of an interval around 0.
        axes.set_ylim(max(bottom, -0.03 * top) if min(means) >= 0 else bottom, top)


def padded(low: float, high: float) -> NDArray[np.float64]:
    """Return the ends of an axis on which the given values have some room beside them."""
    pad = 0.04 * (high - low) or 0.5
    return np.array([low - pad, high + pad])


@styled
def save(figure: Figure, file: Path) -> Path:
    """Write a figure in the format of the file's name; the same figure gives the same bytes.

    Raises:
        KvbenchError: The file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata=_METADATA[file.suffix[1:]])
    except OSError as error:
        raise KvbenchError(f"cannot write to {file}: {reason(error)}") from error
    return file
