"""Figures of a cost report: the future attention that presses evict, over budgets and head by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, StrMethodFormatter

from kvbench.budgets import parse_budgets
from kvbench.cost_report import CostReport, CostSummary, summarise
from kvbench.curve_plots import draw_line, label_ends, scale_budgets, shifts_of
from kvbench.mean_interval import Estimate, mean_intervals
from kvbench.plot_frame import BOTTOM, TOP, WIDTH, add_axes, new_figure, padded, styled, write_texts
from kvbench.plot_style import INK, Look
from kvbench.statistics import Budget

_COLOURS = "cividis_r"
_LEFT, _RIGHT = 0.56, 0.95  # inches beside the strips
_TITLE, _GAP, _HEAD = 0.17, 0.06, 0.11  # inches of a strip's title, below a strip, and of a KV head
_LEAST_STRIP = 0.25  # inches
_MOST_LAYER_TICKS = 16


@styled
def draw_evicted(report: CostReport, looks: Mapping[str, Look]) -> Figure:
    """Draw the share of future attention that is evicted over cache size, a line per press, both axes logarithmic."""
    figure = new_figure()
    axes = add_axes(figure, 0.7, 0.14)
    budgets = _budgets(report)
    labels, tokens = [budget.label for budget in budgets], [budget.tokens for budget in budgets]
    scores = {press: _evicted(report, press, labels) for press in report.presses}
    best_last = [summary.press for summary in reversed(summarise(report))]
    ends = [
        draw_line(axes, press, tokens, scores[press], looks[press], shift)
        for press, shift in zip(best_last, shifts_of(len(best_last)), strict=True)
    ]
    scale_budgets(axes, budgets)
    _scale_shares(axes, [score for row in scores.values() for score in row])
    notes = [f"Mean over {_heads(report)}; bars: 95 % intervals over {len(report.samples)} samples"]
    if len(best_last) > 1:
        notes.append("lines are set apart sideways")
    if any(looks[press].dashed for press in best_last):
        notes.append("dashed: reads attention")
    write_texts(figure, _title(report), _conditions(report), notes)
    label_ends(figure, axes, [end for end in ends if end])
    return figure


@styled
def draw_heads(report: CostReport, presses: Sequence[str]) -> Figure:
    """Draw the normalised cost of every KV head of every layer, a strip per press, the best first.

    Args:
        report: The costs.
        presses: Which of its presses.
    """
    shown = [summary for summary in summarise(report) if summary.press in presses]
    costs = {summary.press: report.presses[summary.press].heads for summary in shown}  # [layers, kv_heads]
    strip = max(_LEAST_STRIP, _HEAD * report.protocol.kv_heads)
    figure = new_figure(TOP + len(shown) * (_TITLE + strip + _GAP) + BOTTOM)
    norm = LogNorm(1, max(1.5, *(float(heads.max()) for heads in costs.values())))
    height = figure.get_figheight()
    for place, summary in enumerate(shown):
        bottom = height - TOP - (place + 1) * (_TITLE + strip) - place * _GAP
        axes = figure.add_axes((_LEFT / WIDTH, bottom / height, 1 - (_LEFT + _RIGHT) / WIDTH, strip / height))
        edges = [np.arange(size + 1) - 0.5 for size in costs[summary.press].shape]
        axes.pcolormesh(*edges, costs[summary.press].T, norm=norm, cmap=_COLOURS, edgecolor="white", linewidth=0.3)
        _scale_strip(axes, report, lowest=place == len(shown) - 1)
        axes.set_title(_strip_title(summary), size=7.5, color=INK, loc="left", pad=2.5)
    figure.supylabel("KV head", size=8, color=INK, x=0.01, y=1 - (TOP + (height - TOP - BOTTOM) / 2) / height)
    _add_colour_bar(figure, norm)
    notes = [
        "Σ over all budgets of the future attention that a ranking evicts, as a multiple of the least possible (1)",
        f"each cell the mean over {len(report.samples)} samples",
        "beside a name: mean over all heads [95 % interval]",
    ]
    write_texts(figure, f"{_title(report)} by head", _conditions(report), notes)
    return figure


def _title(report: CostReport) -> str:
    return f"{report.protocol.model} · {report.protocol.task} · future attention evicted"


def _conditions(report: CostReport) -> str:
    protocol = report.protocol
    return ", ".join(
        [
            f"futures of up to {protocol.rollout} generated tokens",
            f"first {protocol.protect_first} and last {protocol.protect_last} tokens protected",
            *(["ranked from stored traces"] if protocol.origin == "traces" else []),
            protocol.dtype,
            f"{protocol.attention} on {protocol.device}",
            f"seed {protocol.seed}",
        ]
    )


def _heads(report: CostReport) -> str:
    return f"{len(report.protocol.layers)} layers × {report.protocol.kv_heads} KV heads"


def _strip_title(summary: CostSummary) -> str:
    mean = summary.mean
    interval = "" if mean.low is None or mean.high is None else f" [{mean.low:.3g}, {mean.high:.3g}]"
    return f"{summary.press}   {mean.mean:.3g}{interval}"


def _budgets(report: CostReport) -> list[Budget]:
    """Return the report's budgets, ascending in tokens; of a share, the mean over the samples."""
    asked = parse_budgets(",".join(report.protocol.budgets))
    sizes = [
        float(np.mean([budget.resolve(sample.tokens) for sample in report.samples])) if budget.share else budget.tokens
        for budget in asked
    ]
    budgets = [Budget(budget.label, float(size or 0)) for budget, size in zip(asked, sizes, strict=True)]
    return sorted(budgets, key=lambda budget: budget.tokens)


def _evicted(report: CostReport, press: str, labels: Sequence[str]) -> list[Estimate]:
    """Return the mean share that a press evicts at each budget; nothing where all budgets hold the whole context."""
    order = [report.protocol.budgets.index(label) for label in labels]
    shares = np.asarray(report.presses[press].evicted)[:, order]  # [samples, budgets]
    sources = np.unique([sample.source for sample in report.samples], return_inverse=True)[1]
    same, ones = np.zeros(len(shares), dtype=np.int64), np.ones(len(shares))
    return [found if found.mean else Estimate() for found in mean_intervals(shares, same, sources, ones, bounded=True)]


def _scale_shares(axes: Axes, scores: Sequence[Estimate]) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("future attention evicted (lower is better)")
    means = [score.mean for score in scores if score.mean]
    bounds = [bound for score in scores for bound in (score.low, score.high) if bound]
    if means:
        axes.set_ylim(*np.exp(padded(*np.log([min(means + bounds), max(means + bounds)]))))


def _scale_strip(axes: Axes, report: CostReport, lowest: bool) -> None:
    layers, heads = report.protocol.layers, report.protocol.kv_heads
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if len(layers) / step <= _MOST_LAYER_TICKS)
    axes.set_xticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]])
    axes.set_yticks([0, heads - 1] if heads > 1 else [0])
    axes.set_ylim(heads - 0.5, -0.5)
    axes.grid(visible=False)
    axes.tick_params(length=0, labelsize=6.5, labelbottom=lowest)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    if lowest:
        axes.set_xlabel("layer", labelpad=2)


def _add_colour_bar(figure: Figure, norm: LogNorm) -> None:
    height = figure.get_figheight()
    most = min(height - TOP - _TITLE - BOTTOM, 3.0)
    box = (1 - 0.78 / WIDTH, 1 - (TOP + _TITLE + most) / height, 0.12 / WIDTH, most / height)
    bar = figure.colorbar(ScalarMappable(norm, _COLOURS), cax=figure.add_axes(box))
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.grid(visible=False)
    bar.ax.tick_params(labelsize=6.5)
    bar.outline.set_linewidth(0.3)
    bar.set_label("cost, as a multiple of the least", size=7)
