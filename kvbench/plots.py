"""Figures of results: score over cache size, one figure per protocol, the same bytes from the same results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from kvbench.captions import conditions_of, metric_of, missing_subtasks, title_of
from kvbench.errors import KvbenchError, UsageError, unknown
from kvbench.mean_interval import Estimate
from kvbench.measure import Measure
from kvbench.plot_style import DASHED, INK, MUTED, STYLE, Look, looks_of
from kvbench.record_table import reason
from kvbench.records import Protocol
from kvbench.statistics import Budget, Curve, Summary, summarise
from kvbench.store import Results, file_stem
from kvbench.table import noise_in_words

FORMATS = ("png", "svg", "pdf")

_WIDTH, _HEIGHT = 7.0, 4.4  # inches
_DPI = 200
_LABEL = 7.5  # points
_DODGE = 0.7  # points between the bars of two presses
_METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}


def plot_results(
    results: Results, out: Path, formats: Sequence[str], attention_reading: Callable[[str], bool]
) -> list[Path]:
    """Draw one figure per protocol that has a press beside the full cache, and write it in each format.

    Args:
        results: What to draw.
        out: The folder of the figures; made if it is not there.
        formats: Of `png`, `svg` and `pdf`.
        attention_reading: Whether the press with a given label reads attention; its line is dashed.

    Returns:
        The files written. The same results give the same bytes.

    Raises:
        UsageError: There is no such format, or nothing but the full cache to draw.
        KvbenchError: A file cannot be written.
    """
    for name in formats:
        if name not in FORMATS:
            raise unknown("figure format", name, FORMATS)
    summaries = {
        protocol: summarise(results.rows(protocol), measure=Measure.of(protocol))
        for protocol in results.protocols.values()
    }
    summaries = {protocol: summary for protocol, summary in summaries.items() if summary.curves}
    if not summaries:
        raise UsageError("there is no curve to draw: the results hold nothing but the full cache")
    presses = {curve.press for summary in summaries.values() for curve in summary.curves}
    looks = looks_of(presses, attention_reading)
    written = []
    for protocol, summary in summaries.items():
        missing = missing_subtasks(protocol, set(results.rows(protocol)["subtask"]))
        figure = draw(protocol, summary, looks, missing)
        written += [_save(figure, out / f"{file_stem(protocol)}.{name}") for name in formats]
    return written


def draw(protocol: Protocol, summary: Summary, looks: dict[str, Look], missing: Sequence[str] = ()) -> Figure:
    """Draw one figure, whatever the user's own matplotlib settings; `missing` subtasks are named in it."""
    with _style():
        return _draw(protocol, summary, looks, missing)


def _style() -> AbstractContextManager[None]:
    return matplotlib.style.context([STYLE], after_reset=True)


def _draw(protocol: Protocol, summary: Summary, looks: dict[str, Look], missing: Sequence[str]) -> Figure:
    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.08, 0.19, 0.9, 0.68))
    budgets = sorted(summary.budgets, key=lambda budget: budget.tokens)
    ends = [_draw_full(axes, summary.full.score)] if summary.full else []
    for index, curve in enumerate(reversed(summary.curves)):  # the best on top
        shift = _DODGE * (index - (len(summary.curves) - 1) / 2)
        ends.append(_draw_curve(axes, curve, budgets, looks[curve.press], shift))
    _scale(axes, protocol, summary, budgets)
    _write_texts(figure, protocol, summary, looks, missing)
    _label_ends(figure, axes, [end for end in ends if end])
    return figure


@dataclass(frozen=True)
class _End:
    """The last point of a line, and what is written beside it."""

    text: str
    y: float
    look: Look
    x: float | None = None
    """In tokens; None for the right edge."""
    shift: float = 0.0


def _draw_full(axes: Axes, score: Estimate) -> _End | None:
    if score.mean is None:
        return None
    axes.axhline(score.mean, color=INK, linewidth=1.0, zorder=1.5)
    if score.low is not None and score.high is not None:
        axes.axhspan(score.low, score.high, color=INK, alpha=0.06, linewidth=0, zorder=0.5)
    return _End("full cache", score.mean, Look(INK, "", dashed=False))


def _draw_curve(axes: Axes, curve: Curve, budgets: Sequence[Budget], look: Look, shift: float) -> _End | None:
    """Draw one press, `shift` points to the right so that the bars of several can be told apart."""
    scores = [curve.cells[budget.label].score if budget.label in curve.cells else Estimate() for budget in budgets]
    tokens = np.array([budget.tokens for budget in budgets])
    mean, low, high = (
        np.array([np.nan if value is None else value for value in values])
        for values in zip(*((score.mean, score.low, score.high) for score in scores), strict=True)
    )
    aside = axes.transData + ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)
    axes.plot(
        tokens,
        mean,
        color=look.colour,
        linestyle=DASHED if look.dashed else "solid",
        linewidth=1.2,
        marker=look.marker,
        markersize=4.4,
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=3,
        transform=aside,
    )
    axes.vlines(tokens, low, high, color=look.colour, alpha=0.5, linewidth=0.8, zorder=2, transform=aside)
    known = np.flatnonzero(~np.isnan(mean))
    return _End(curve.press, mean[known[-1]], look, tokens[known[-1]], shift) if len(known) else None


def _scale(axes: Axes, protocol: Protocol, summary: Summary, budgets: Sequence[Budget]) -> None:
    shares = [budget.is_share for budget in budgets]
    second_row = "\n" if any(shares) and not all(shares) else ""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(
        [budget.tokens for budget in budgets],
        [f"{second_row}{budget.label}" if budget.is_share else budget.label for budget in budgets],
    )
    axes.set_xlabel(f"cache size, tokens per KV head{' (% of the context)' if any(shares) else ''}")
    axes.set_ylabel(metric_of(protocol))
    axes.grid(axis="x", visible=False)
    positions = np.log2([budget.tokens for budget in budgets])
    if len(positions):
        axes.set_xlim(*2.0 ** _padded(positions.min(), positions.max()))
    cells = [cell for curve in summary.curves for cell in curve.cells.values()]
    scores = [cell.score for cell in ([*cells, summary.full] if summary.full else cells)]
    means = [score.mean for score in scores if score.mean is not None]
    bounds = [bound for score in scores for bound in (score.low, score.high) if bound is not None]
    if means and protocol.shown_as == "exp":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(*np.exp(_padded(*np.log([min(means + bounds), max(means + bounds)]))))
    elif means:
        bottom, top = _padded(min(means + bounds), max(means + bounds))
        # A score that is never negative needs no room for the lower half of an interval around 0.
        axes.set_ylim(max(bottom, -0.03 * top) if min(means) >= 0 else bottom, top)


def _padded(low: float, high: float) -> NDArray[np.float64]:
    pad = 0.04 * (high - low) or 0.5
    return np.array([low - pad, high + pad])


def _write_texts(
    figure: Figure, protocol: Protocol, summary: Summary, looks: dict[str, Look], missing: Sequence[str]
) -> None:
    for text, inches, size, colour, weight in (
        (title_of(protocol, missing=missing), 0.12, 9.5, INK, "bold"),
        (conditions_of(protocol), 0.32, 7.0, MUTED, "normal"),
    ):
        line = figure.text(0.012, 1 - inches / _HEIGHT, text, size=size, color=colour, weight=weight, va="top")
        line.set_fontsize(size * min(1, 0.97 * figure.bbox.width / line.get_window_extent().width))
    absent = f"Missing: {', '.join(missing)}. " if missing else ""
    notes = "\n".join(wrap(f"{absent}{'; '.join(_notes(summary, looks))}.", 140))
    figure.text(0.012, 0.1 / _HEIGHT, notes, size=6.5, color=MUTED, va="bottom")


def _notes(summary: Summary, looks: dict[str, Look]) -> list[str]:
    cells = [cell for curve in summary.curves for cell in curve.cells.values()]
    counts = [cell.n for cell in cells]
    answers = "-".join(map(str, sorted({min(counts), max(counts)})))
    notes = [f"Bars: 95 % intervals over {answers} answers"]
    if len(summary.curves) > 1:
        notes.append("lines are set apart sideways")
    if any(looks[curve.press].dashed for curve in summary.curves):
        notes.append("dashed: reads attention")
    if summary.noise:
        notes.append(noise_in_words(summary.noise, 3))
    if failed := sum(cell.failed for cell in cells):
        notes.append(f"{failed} answers failed and are in no mean")
    return notes


def _label_ends(figure: Figure, axes: Axes, ends: Sequence[_End]) -> None:
    """Write each line's name beside its end, in the order of the ends, never on top of one another."""
    if not ends:
        return
    ends = sorted(ends, key=lambda end: end.y)
    texts = [figure.text(0, 0, end.text, size=_LABEL, color=_darker(end.look.colour), va="center") for end in ends]
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


def _darker(colour: str) -> tuple[float, ...]:
    return tuple(0.75 * channel for channel in to_rgb(colour))


def _save(figure: Figure, file: Path) -> Path:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _style():
            figure.savefig(file, metadata=_METADATA[file.suffix[1:]])
    except OSError as error:
        raise KvbenchError(f"cannot write to {file}: {reason(error)}") from error
    return file
