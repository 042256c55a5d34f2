"""Figures of a task's subtasks as small multiples: score over cache size in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kvbench.captions import conditions_of, interval_in_words, metric_of, one_document_in_words
from kvbench.curve_plots import axis_budgets, draw_full, draw_line, full_score, scale_budgets, scores_of, shifts_of
from kvbench.mean_interval import Estimate
from kvbench.plot_frame import (
    BOTTOM,
    TOP,
    WIDTH,
    add_key,
    key_height,
    marker_of,
    new_figure,
    scale_scores,
    styled,
    write_texts,
)
from kvbench.plot_style import INK, Look
from kvbench.table import Table

_PANEL = 1.35  # inches, with its title
_SCALE = 0.7  # of lines and markers, beside those of a figure with one panel


@styled
def draw_subtasks(whole: Table, parts: Sequence[Table], looks: Mapping[str, Look]) -> Figure:
    """Draw a panel per subtask, all with the same axes, and one key for all.

    Args:
        whole: The table of the task, whose order of presses the key has.
        parts: The tables of its subtasks.
        looks: By press.
    """
    same = _are_of_one_scale(parts)
    columns = _columns(len(parts)) if same else min(len(parts), 3)
    rows = ceil(len(parts) / columns)
    names = [curve.press for curve in whole.summary.curves]
    in_key = [*names, "full cache"]
    key = key_height(in_key)
    figure = new_figure(TOP + key + rows * _PANEL + BOTTOM)
    height = figure.get_figheight()
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=same, squeeze=False).flat)
    figure.subplots_adjust(
        left=(0.5 if same else 0.62) / WIDTH,
        right=1 - 0.1 / WIDTH,
        bottom=BOTTOM / height,
        top=1 - (TOP + key + 0.2) / height,
        wspace=0.08 if same else 0.22,
        hspace=0.3,
    )
    for axes, part in zip(panels, parts, strict=False):
        _draw_panel(axes, part, looks)
    for spare in panels[len(parts) :]:
        spare.set_visible(False)
    _scale(panels, whole, parts, columns, same)
    add_key(figure, in_key, [*(marker_of(looks[name]) for name in names), Line2D((), (), color=INK, linewidth=1.0)])
    write_texts(figure, whole.title, conditions_of(whole.protocol), _notes(whole, parts, looks, same))
    return figure


def _are_of_one_scale(parts: Sequence[Table]) -> bool:
    """Say whether half of the panels reach half of what the highest reaches, so that one y axis serves all."""
    tops = [max((s.mean for s in _scores(part) if s.mean is not None), default=0.0) for part in parts]
    return median(tops) >= max(tops) / 2


def _scores(part: Table) -> list[Estimate]:
    return [*full_score(part), *(cell.score for curve in part.summary.curves for cell in curve.cells.values())]


def _columns(panels: int) -> int:
    """Return how many panels stand side by side: as many of 3 to 5 as leave the fewest places empty."""
    return min(panels, 3) if panels <= 3 else min((5, 4, 3), key=lambda columns: -panels % columns)


def _draw_panel(axes: Axes, part: Table, looks: Mapping[str, Look]) -> None:
    budgets = axis_budgets(part.summary)
    for score in full_score(part):
        draw_full(axes, score)
    tokens = [budget.tokens for budget in budgets]
    for curve, shift in zip(reversed(part.summary.curves), shifts_of(len(part.summary.curves)), strict=True):
        scores = scores_of(curve, budgets)
        draw_line(axes, curve.press, tokens, scores, looks[curve.press], 0.5 * shift, _SCALE)
    axes.set_title(part.subtask or "", size=7.5, color=INK, loc="left", pad=3)


def _scale(panels: Sequence[Axes], whole: Table, parts: Sequence[Table], columns: int, same: bool) -> None:
    """Give all panels the same x axis and, where it is the `same` for all, y axis, written on the outermost."""
    everything = [score for part in parts for score in _scores(part)]
    budgets = axis_budgets(whole.summary)
    for place, (axes, part) in enumerate(zip(panels, parts, strict=False)):
        scale_budgets(axes, budgets)
        scale_scores(axes, whole.protocol, everything if same else _scores(part))
        if not same and whole.protocol.shown_as == "mean":
            axes.yaxis.set_major_locator(MaxNLocator(3))
        lowest = place + columns >= len(parts)
        axes.tick_params(labelsize=6.5, labelbottom=lowest, labelleft=not same or place % columns == 0)
        axes.tick_params(axis="x", labelrotation=90 if len(budgets) > 5 else 0)
        axes.set_xlabel("")
        axes.set_ylabel("")
    figure = panels[0].get_figure()
    assert isinstance(figure, Figure)
    figure.supxlabel("cache size, tokens per KV head", size=8, color=INK, y=0.36 / figure.get_figheight())
    figure.supylabel(metric_of(whole.protocol), size=8, color=INK, x=0.01)


def _notes(whole: Table, parts: Sequence[Table], looks: Mapping[str, Look], same: bool) -> list[str]:
    counts = [c.n for part in parts for curve in part.summary.curves for c in curve.cells.values()]
    notes = [f"Missing: {', '.join(whole.missing)}"] if whole.missing else []
    answers = "-".join(map(str, sorted({min(counts), max(counts)})))
    notes.append(f"Bars: {interval_in_words(whole.protocol)}, {answers} answers each")
    notes += one_document_in_words(whole.summary.one_document)
    notes.append("all panels have the same axes" if same else "each panel has a y axis of its own")
    if any(looks[curve.press].dashed for curve in whole.summary.curves):
        notes.append("dashed: reads attention")
    if failed := sum(c.failed for part in parts for curve in part.summary.curves for c in curve.cells.values()):
        notes.append(f"{failed} answers failed and are in no mean")
    return notes
