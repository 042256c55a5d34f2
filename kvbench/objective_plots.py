"""The figure of what `benchmarks/objectives.py` measures: held-out cost over steps and over seconds of training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from pydantic import BaseModel, Field, ValidationError

from kvbench.errors import UsageError
from kvbench.plot_frame import BOTTOM, TOP, WIDTH, add_key, key_height, marker_of, new_figure, styled, write_texts
from kvbench.plot_style import Look, looks_in_order
from kvbench.record_table import reason
from kvbench.records import Environment

_PANEL = 2.8  # inches
_LEFT = 0.62  # inches


class Point(BaseModel):
    """One evaluation of a training."""

    step: int
    seconds: float
    cost: float = Field(gt=0)


class Reached(BaseModel):
    """How far exact had to go for the best cost of RLOO, as a part of RLOO's steps and seconds."""

    cost: float
    steps_ratio: float
    seconds_ratio: float


class Objectives(BaseModel):
    """The part of the file that is drawn."""

    model: str
    agents: int
    parameters: int
    learned_from: int
    held_out: int
    environment: Environment
    curves: dict[str, list[Point]] = Field(min_length=1)
    exact_to_rloo: Reached | None = None


def read_objectives(file: Path) -> Objectives:
    """Read what `benchmarks/objectives.py` has written.

    Raises:
        UsageError: The file cannot be read, or holds something else.
    """
    try:
        return Objectives.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UsageError(f"the objectives {file} cannot be read: {reason(error)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise UsageError(
            f"{file} is not what benchmarks/objectives.py writes: {where}: {first['msg'].lower()}"
        ) from None


@styled
def draw_objectives(objectives: Objectives) -> Figure:
    """Draw a line per objective in two panels, the cost over steps and over seconds; the key has the best first."""
    curves = {name: points for name, points in objectives.curves.items() if points}
    best_first = sorted(curves, key=lambda name: (min(point.cost for point in curves[name]), name))
    looks = looks_in_order(list(curves))
    names = [f"{name} {min(point.cost for point in curves[name]):.2f}" for name in best_first]
    key = key_height(names)
    figure = new_figure(TOP + key + _PANEL + BOTTOM)
    add_key(figure, names, [marker_of(looks[name]) for name in best_first])
    height = figure.get_figheight()
    panels = figure.subplots(1, 2, sharey=True)
    figure.subplots_adjust(
        left=_LEFT / WIDTH,
        right=1 - 0.12 / WIDTH,
        bottom=BOTTOM / height,
        top=1 - (TOP + key) / height,
        wspace=0.08,
    )
    for axes, unit in zip(panels, ("step", "seconds"), strict=True):
        _draw_panel(axes, unit, {name: curves[name] for name in reversed(best_first)}, looks)
    panels[0].set_ylabel("normalised cost, held out (lower is better)")
    write_texts(figure, f"{objectives.model} · KVP's agents by objective", _conditions(objectives), _notes(objectives))
    return figure


def _draw_panel(axes: Axes, unit: str, curves: Mapping[str, list[Point]], looks: Mapping[str, Look]) -> None:
    for name, points in curves.items():
        axes.plot(
            [getattr(point, unit) for point in points],
            [point.cost for point in points],
            color=looks[name].colour,
            marker=looks[name].marker,
            linewidth=1.2,
            markersize=3.4,
            markeredgecolor="white",
            markeredgewidth=0.4,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlim(left=0)
    axes.set_xlabel({"step": "steps", "seconds": "seconds of training"}[unit])


def _conditions(objectives: Objectives) -> str:
    return ", ".join(
        [
            f"{objectives.agents} agents of {objectives.parameters:,} parameters",
            f"{objectives.learned_from} sequences learned from",
            f"{objectives.held_out} held out",
            objectives.environment.processor,
            f"threads: {objectives.environment.threads}",
        ]
    )


def _notes(objectives: Objectives) -> list[str]:
    notes = [
        "Cost over all budgets as a multiple of the least possible, mean over heads and held-out sequences",
        "in the key: the least that was reached",
        "all else is the same for all objectives",
    ]
    if found := objectives.exact_to_rloo:
        notes.append(
            f"exact reaches RLOO's best, {found.cost:.2f}, in {100 * found.steps_ratio:.3g} % of its steps and "
            f"{100 * found.seconds_ratio:.3g} % of its seconds"
        )
    return notes
