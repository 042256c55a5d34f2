"""The figures of cost reports and of objectives show their numbers."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from command_line import kvbench
from kvbench.cost_plots import draw_evicted, draw_heads
from kvbench.cost_report import CostProtocol, CostReport, CostSample, PressCost, add_to, summarise
from kvbench.objective_plots import Objectives, draw_objectives
from kvbench.plot_style import looks_of
from simulated import make_environment

BUDGETS = ("25%", "4", "8", "400")
LAYERS, HEADS, SAMPLES = (1, 3, 5, 7), 2, 5
MEANS = {"oracle": 1.0, "kvp": 1.5, "snapkv": 3.0, "random": 20.0}


def make_report() -> CostReport:
    random = np.random.default_rng(0)
    presses = {}
    for press, mean in MEANS.items():
        normalised = 1 + (mean - 1) * random.uniform(0.5, 1.5, (SAMPLES, len(LAYERS), HEADS))
        shares = np.array([0.02, 0.04, 0.03, 0.0]) * mean * random.uniform(0.9, 1.1, (SAMPLES, 4))
        presses[press] = PressCost(
            identity=press,
            reads=(),
            normalised=normalised.tolist(),
            evicted=shares.tolist(),
            evicted_by_head=np.broadcast_to(shares.mean(axis=0), (len(LAYERS), HEADS, 4)).tolist(),
            ranking_seconds=[1.0] * SAMPLES,
        )
    samples = [
        CostSample(
            sample=f"vt/{number}",
            sample_hash=f"{number}",
            subtask="vt",
            source=f"{number}",
            data="words",
            tokens=100,
            future_tokens=9,
        )
        for number in range(SAMPLES)
    ]
    protocol = CostProtocol(
        model="smollm2-135m",
        weights="sha256:0123",
        task="ruler-4k",
        origin="model",
        seed=42,
        rollout=64,
        protect_first=0,
        protect_last=0,
        dtype="float32",
        attention="sdpa",
        device="cpu",
        budgets=BUDGETS,
        layers=LAYERS,
        kv_heads=HEADS,
    )
    return CostReport(protocol=protocol, samples=samples, environment=make_environment(), presses=presses)


@pytest.fixture(scope="module")
def objectives() -> ModuleType:
    """`benchmarks/objectives.py`, which writes what is drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        return importlib.import_module("objectives")


def content_of(objectives: ModuleType) -> dict[str, object]:
    curves = {
        name: [
            {"step": 10 * n, "seconds": pace * n, "cost": 1 + 4 / (1 + n * gain), "median": 1.0, "by_task": {"vt": 2.0}}
            for n in range(6)
        ]
        for name, gain, pace in (("exact", 4, 1.0), ("rloo", 2, 2.0), ("pointwise", 0.5, 0.5))
    }
    return {
        "settings": {},
        "identity": "0123",
        "model": "smollm2-135m",
        "layers": [1, 3],
        "agents": 4,
        "parameters": 1234,
        "learned_from": 9,
        "held_out": 3,
        "environment": make_environment().model_dump(mode="json"),
        "curves": curves,
        "exact_to_rloo": objectives.ratio(curves),
    }


def words(figure: Figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def test_lines_show_the_mean_share_evicted_at_each_budget_and_end_where_nothing_is() -> None:
    report = make_report()
    figure = draw_evicted(report, looks_of(report.presses, lambda press: press == "snapkv"))
    axes = figure.axes[0]
    drawn = [(line.get_xdata(), line.get_ydata()) for line in axes.lines]
    for cost in report.presses.values():
        means = np.asarray(cost.evicted).mean(axis=0)
        expected = [means[1], means[2], means[0], np.nan]  # 4, 8, 25 % of 100, more than the context
        assert any(np.allclose(y, expected, equal_nan=True) and list(x) == [4, 8, 25, 400] for x, y in drawn)
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[0] > 0
    assert set(MEANS) <= {text.get_text() for text in figure.texts}


def test_the_grid_shows_every_heads_mean_the_best_press_first() -> None:
    report = make_report()
    figure = draw_heads(report, ["random", "snapkv", "kvp"])
    strips = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left").split()[0] for axes in strips] == ["kvp", "snapkv", "random"]
    for axes, summary in zip(strips, summarise(report)[1:], strict=True):
        [mesh] = [artist for artist in axes.collections if isinstance(artist, QuadMesh)]
        assert np.allclose(np.asarray(mesh.get_array()), report.presses[summary.press].heads.T)
        assert axes.get_title(loc="left").split()[1] == f"{summary.mean.mean:.3g}"
    assert [label.get_text() for label in strips[-1].get_xticklabels()] == ["1", "3", "5", "7"]


def test_objectives_stand_side_by_side_over_steps_and_seconds(objectives: ModuleType) -> None:
    content = content_of(objectives)
    found = Objectives.model_validate(content)
    figure = draw_objectives(found)
    for axes, unit in zip(figure.axes, ("step", "seconds"), strict=True):
        lines = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines]
        expected = [[(getattr(point, unit), point.cost) for point in points] for points in found.curves.values()]
        assert sorted(lines) == sorted(expected)
    key = [text.get_text().split()[0] for text in figure.legends[0].get_texts()]
    assert key == ["exact", "rloo", "pointwise"]
    assert "exact reaches RLOO's best, 1.36, in 60 % of its steps and 30 % of its seconds" in words(figure)


def test_the_command_draws_costs_and_objectives_without_any_record(objectives: ModuleType, tmp_path: Path) -> None:
    report = make_report()
    add_to(tmp_path / "cost", report)
    (tmp_path / "training").mkdir()
    file = tmp_path / "training" / "objectives.json"
    file.write_text(json.dumps(content_of(objectives)))
    names = {f"{report.file(tmp_path).stem}_evicted.png", f"{report.file(tmp_path).stem}_heads.png", "objectives.png"}
    written = []
    for folder in ("one", "two"):
        done = kvbench("plot", str(tmp_path), "--out", str(tmp_path / folder))
        assert done.returncode == 0, done.stderr
        written.append({figure.name: figure.read_bytes() for figure in (tmp_path / folder).iterdir()})
    assert written[0] == written[1]
    assert set(written[0]) == names
    file.write_text('{"curves": {}}')
    done = kvbench("plot", str(tmp_path))
    assert done.returncode == 2
    assert f"{file} is not what benchmarks/objectives.py writes: model: field required" in done.stderr.replace("\n", "")
