import os
import subprocess
import sys
from dataclasses import astuple, replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from kvbench.area_plots import draw_areas, draw_ranking_shares, ranking_shares
from kvbench.curve_plots import draw_bytes, draw_curves, measured_sizes
from kvbench.errors import UsageError
from kvbench.mean_interval import Estimate
from kvbench.plot_style import Look, looks_of
from kvbench.plots import plot_results
from kvbench.records import FULL
from kvbench.statistics import Budget, Cell, Curve, Summary, summarise
from kvbench.store import Results, ResultsFolder, file_stem, load
from kvbench.subtask_plots import draw_subtasks
from kvbench.table import Table, make_tables
from simulated import PRESSES, make_protocol, make_record, simulate

FORMATS = ("png", "svg", "pdf")
FIGURES = ("", "_subtasks", "_auc", "_bytes", "_ranking")
MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def reads_attention(press: str) -> bool:
    return press.partition(":")[0] in {"oracle", "tova", "snapkv", "h2o", "keyformer"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    simulate(folder)
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return load(folder)


def figure_of(summary: Summary) -> Figure:
    looks = looks_of([curve.press for curve in summary.curves], reads_attention)
    return draw_curves(Table(make_protocol(), None, summary), looks)


def texts_of(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def summary_of(ends: dict[str, float]) -> Summary:
    """Two budgets, and for each press the score at the larger one."""
    budgets = (Budget("64", 64), Budget("256", 256))

    def cell(mean: float) -> Cell:
        return Cell(Estimate(mean, mean - 0.02, mean + 0.02), n=10, failed=0, whole=0)

    curves = [Curve(press, {"64": cell(0.1), "256": cell(end)}, 0.5) for press, end in ends.items()]
    return Summary(budgets, cell(0.8), tuple(curves))


def looks() -> dict[str, Look]:
    return looks_of(PRESSES, reads_attention)


def test_all_figures_of_each_protocol_are_written_in_each_format(tmp_path: Path) -> None:
    protocols = [make_protocol(dtype=dtype) for dtype in ("float32", "bfloat16")]
    for protocol in protocols:
        simulate(tmp_path / "results", protocol, {"kvp": 5.0}, ["64", "128"], samples=2)
    files = plot_results(load(tmp_path / "results"), tmp_path / "figures", FORMATS, reads_attention)
    stems = [f"{file_stem(protocol)}{figure}" for protocol in protocols for figure in FIGURES]
    names = {f"{stem}.{name}" for stem in stems for name in FORMATS}
    assert {file.name for file in files} == names
    assert set((tmp_path / "figures").iterdir()) == set(files)
    assert all(file.read_bytes().startswith(MAGIC[file.suffix[1:]]) for file in files)


def test_the_same_results_give_the_same_bytes(folder: Path, results: Results, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from kvbench.plots import plot_results; from kvbench.store import load;"
        "from test_plots import reads_attention;"
        "plot_results(load(Path(sys.argv[1])), Path(sys.argv[2]), ('png', 'svg', 'pdf'), reads_attention)"
    )
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nsavefig.dpi: 50\naxes.grid: False\nsvg.fonttype: none\n")
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}:{here.parent}", "MATPLOTLIBRC": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, folder, tmp_path / "there"], env=environment, check=True)
    for file in plot_results(results, tmp_path / "here", FORMATS, reads_attention):
        assert file.read_bytes() == (tmp_path / "there" / file.name).read_bytes()


def test_the_line_shows_the_means_at_their_budgets(results: Results) -> None:
    summary = summarise(results.frame)
    lines = {tuple(line.get_ydata()): line for line in figure_of(summary).axes[0].lines}
    for curve in summary.curves:
        means = tuple(curve.cells[budget.label].score.mean for budget in summary.budgets)
        line = lines[means]
        assert list(line.get_xdata()) == [64, 128, 256, 512, 1024, 2048]
        assert line.is_dashed() == reads_attention(curve.press)
    assert summary.full is not None
    assert (summary.full.score.mean,) * 2 in lines


def test_the_axis_is_logarithmic_with_plain_numbers(results: Results) -> None:
    axes = figure_of(summarise(results.frame)).axes[0]
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "128", "256", "512", "1024", "2048"]
    assert axes.get_ylabel() == "recall"


def test_the_texts_name_the_protocol_and_the_number_of_answers(results: Results) -> None:
    text = " ".join(text.get_text() for text in texts_of(figure_of(summarise(results.frame))))
    for part in ("smollm2-135m · ruler-4k", "question inside", "seed 42", "24 answers", "dashed: reads attention"):
        assert part in text


@settings(max_examples=30, deadline=None)
@given(ends=st.dictionaries(st.text("abcde_:=,1$^", min_size=1, max_size=60), st.floats(0, 1), min_size=1, max_size=14))
def test_labels_stand_in_the_order_of_the_ends_inside_the_figure_and_apart(ends: dict[str, float]) -> None:
    figure = figure_of(summary_of(ends))
    FigureCanvasAgg(figure).draw()
    labels = {text.get_text(): text.get_window_extent() for text in texts_of(figure) if text.get_text() in ends}
    assert labels.keys() == ends.keys()
    assert all(box.x1 <= figure.bbox.x1 and box.y0 > 0 and box.y1 < figure.bbox.y1 for box in labels.values())
    ordered = sorted(ends, key=ends.__getitem__)
    middles = [labels[press].y0 + labels[press].y1 for press in ordered]
    assert middles == sorted(middles) or len(set(ends.values())) < len(ends)
    for one, other in combinations(labels.values(), 2):
        assert not one.overlaps(other)


def test_a_registered_press_looks_the_same_in_every_figure() -> None:
    everything = looks_of([*PRESSES, "snapkv:window=32", "elsewhere"], reads_attention)
    for left, right in pairwise(sorted(PRESSES)):
        some = looks_of([right, left], reads_attention)
        assert some == {press: everything[press] for press in (left, right)}


def test_twenty_four_presses_can_be_told_apart() -> None:
    looks = looks_of([*PRESSES, *(f"snapkv:window={width}" for width in range(13))], reads_attention)
    assert len({(look.colour, look.marker) for look in looks.values()}) == 24
    assert len({looks[press].colour for press in PRESSES}) == len(PRESSES)


def test_a_gap_is_left_where_nothing_is_known() -> None:
    summary = summary_of({"kvp": 0.5, "tova": 0.6})
    broken = Curve("kvp", {"64": Cell(Estimate(), 0, 3, 0), "256": summary.curves[0].cells["256"]}, None)
    figure = figure_of(Summary(summary.budgets, None, (broken, Curve("tova", {}, None))))
    labels = [text.get_text() for text in texts_of(figure)]
    assert "kvp" in labels
    assert "tova" not in labels
    assert any("3 answers failed" in label for label in labels)


def test_a_figure_of_what_nobody_measured_is_left_out(tmp_path: Path) -> None:
    with ResultsFolder(tmp_path / "results").writer() as writer:
        unmeasured = {"kept_bytes": None, "ranking_seconds": None}
        records = [make_record(sample=f"vt/{place}", **unmeasured) for place in range(3)]
        records += [make_record(FULL, FULL, f"vt/{place}", **unmeasured) for place in range(3)]
        writer.append(make_protocol(), records)
    [file] = plot_results(load(tmp_path / "results"), tmp_path, ["svg"], reads_attention)
    assert file.name == f"{file_stem(make_protocol())}.svg"


def test_each_subtask_has_a_panel_with_its_own_means(results: Results) -> None:
    whole, *parts = make_tables(results, subtasks=True)
    figure = draw_subtasks(whole, parts, looks())
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == [part.subtask for part in parts] != []
    assert len({(axes.get_xlim(), axes.get_ylim(), axes.get_xscale()) for axes in panels}) == 1
    for axes, part in zip(panels, parts, strict=True):
        drawn = {tuple(line.get_ydata()) for line in axes.lines}
        for curve in part.summary.curves:
            assert tuple(curve.cells[budget.label].score.mean for budget in part.summary.budgets) in drawn
    [key] = figure.legends
    assert [text.get_text() for text in key.get_texts()] == [*(c.press for c in whole.summary.curves), "full cache"]


def lower(part: Table, times: float) -> Table:
    """Return a table of scores that are so many times lower."""

    def lowered(cell: Cell) -> Cell:
        score = cell.score
        return replace(cell, score=Estimate(*(None if x is None else x / times for x in astuple(score))))

    summary = part.summary
    assert summary.full is not None
    curves = [replace(c, cells={label: lowered(cell) for label, cell in c.cells.items()}) for c in summary.curves]
    return replace(part, summary=replace(summary, full=lowered(summary.full), curves=tuple(curves)))


def test_panels_of_other_scales_have_y_axes_of_their_own(results: Results) -> None:
    whole, *parts = make_tables(results, subtasks=True)
    figure = draw_subtasks(whole, [parts[0], *(lower(part, 5.0) for part in parts[1:])], looks())
    panels = [axes for axes in figure.axes if axes.get_visible()]
    high, *low = [axes.get_ylim()[1] for axes in panels]
    assert all(high > 3 * top for top in low)
    assert all(axes.yaxis.get_tick_params()["labelleft"] for axes in panels)
    assert any("a y axis of its own" in text.get_text() for text in texts_of(figure))


@pytest.mark.parametrize(("count", "times"), [(2, 1.0), (5, 70.0), (13, 1.0), (21, 70.0)])
def test_the_panels_and_the_key_do_not_touch(results: Results, count: int, times: float) -> None:
    whole, *parts = make_tables(results, subtasks=True)
    parts = [parts[place % len(parts)] for place in range(count)]
    figure = draw_subtasks(whole, [parts[0], *(lower(part, times) for part in parts[1:])], looks())
    FigureCanvasAgg(figure).draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes if axes.get_visible()]
    boxes += [figure.legends[0].get_window_extent(), *(text.get_window_extent() for text in figure.texts)]
    assert len(boxes) >= count + 4
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in boxes)
    for one, other in combinations(boxes, 2):
        assert not one.padded(-1).overlaps(other.padded(-1))


def test_the_bars_are_the_tables_areas(results: Results) -> None:
    [table] = make_tables(results, is_bound=lambda press: press == "kvp")  # which has the largest area here
    axes = draw_areas(table, looks()).axes[0]
    curves = table.summary.curves
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([curve.auc for curve in curves])
    assert {bar.get_x() for bar in axes.patches} == {0}
    ends = [tuple(lines.get_segments()[0][:, 0]) for lines in axes.collections]
    assert ends == [(curve.auc_low, curve.auc_high) for curve in curves]
    assert [label.get_text() for label in axes.get_yticklabels()] == [curve.press for curve in curves]
    values = [text.get_text() for text in axes.texts if "±" in text.get_text()]
    assert [value.partition("±")[0] for value in values] == [f"{curve.auc:.2f}" for curve in curves]
    [marked] = [value for value in values if value.endswith("*")]
    assert values.index(marked) == [curve.press for curve in curves].index(str(table.summary.leader)) > 0


def test_where_less_is_better_bars_begin_at_the_full_cache(tmp_path: Path) -> None:
    protocol = make_protocol(metric="perplexity", lower_is_better=True, shown_as="exp")
    simulate(tmp_path, protocol, {"kvp": 5.0, "tova": 7.0})
    [table] = make_tables(load(tmp_path))
    axes = draw_areas(table, looks()).axes[0]
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert {bar.get_x() for bar in axes.patches} == {1}
    assert ends == pytest.approx([curve.auc for curve in table.summary.curves])
    assert "multiple of the full cache" in axes.get_xlabel()


def test_a_perplexity_has_a_logarithmic_axis_in_every_figure(tmp_path: Path) -> None:
    protocol = make_protocol(metric="perplexity", lower_is_better=True, shown_as="exp")
    simulate(tmp_path, protocol, {"kvp": 5.0, "tova": 7.0})
    results = load(tmp_path)
    whole, *parts = make_tables(results, subtasks=True)
    figures = [draw_curves(whole, looks()), draw_subtasks(whole, parts, looks())]
    figures.append(draw_bytes(whole, looks(), measured_sizes(results.frame)))
    for figure in figures:
        assert {axes.get_yscale() for axes in figure.axes if axes.get_visible()} == {"log"}
    assert figures[0].axes[0].get_ylabel() == "perplexity (lower is better)"


def test_scores_stand_at_their_measured_bytes(tmp_path: Path) -> None:
    with ResultsFolder(tmp_path).writer() as writer:
        for place in range(3):
            records = [
                make_record("kvp", budget, f"vt/{place}", score, kept_bytes=(size + place) << 20)
                for budget, score, size in (("64", 0.25, 1), ("256", 0.5, 7))
            ]
            records.append(make_record(FULL, FULL, f"vt/{place}", 0.75, kept_bytes=31 << 20))
            writer.append(make_protocol(), records)
    results = load(tmp_path)
    [table] = make_tables(results)
    axes = draw_bytes(table, looks(), measured_sizes(results.frame)).axes[0]
    points = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines]
    assert [(2.0, 0.25), (8.0, 0.5)] in points
    assert [(31.0, 0.75)] in points
    assert axes.get_xscale() == "log"
    assert "MiB" in axes.get_xlabel()


def test_a_rankings_time_is_the_median_share_of_the_prefill_over_samples(tmp_path: Path) -> None:
    seconds = {"kvp": (1.0, 2.0, 6.0), "tova": (0.5, 0.5, 0.5), "h2o": (None, None, None)}
    with ResultsFolder(tmp_path).writer() as writer:
        for place in range(3):
            records = [
                make_record(press, budget, f"vt/{place}", ranking_seconds=times[place], prefill_seconds=10.0)
                for press, times in seconds.items()
                for budget in ("64", "256")
            ]
            writer.append(make_protocol(), [*records, make_record(FULL, FULL, f"vt/{place}", ranking_seconds=0.0)])
    results = load(tmp_path)
    shares = ranking_shares(results.frame)
    assert [(share.press, share.median, share.samples) for share in shares] == [("tova", 0.05, 3), ("kvp", 0.2, 3)]
    assert (shares[1].low, shares[1].high) == pytest.approx((0.15, 0.4))
    [table] = make_tables(results)
    axes = draw_ranking_shares(table, looks(), shares).axes[0]
    assert [line.get_xdata()[0] for line in axes.lines] == [0.05, 0.2]
    assert [text.get_text() for text in axes.texts] == ["5 %", "20 %"]
    assert axes.get_xscale() == "log"


def test_the_full_cache_alone_has_no_curve(tmp_path: Path) -> None:
    with ResultsFolder(tmp_path).writer() as writer:
        writer.append(make_protocol(), [make_record(FULL, FULL)])
    with pytest.raises(UsageError, match="no curve to draw"):
        plot_results(load(tmp_path), tmp_path, ["png"], reads_attention)


def test_an_unknown_format_is_refused_before_anything_is_written(results: Results, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown figure format 'pgn': did you mean 'png'"):
        plot_results(results, tmp_path, ["svg", "pgn"], reads_attention)
    assert list(tmp_path.iterdir()) == []
