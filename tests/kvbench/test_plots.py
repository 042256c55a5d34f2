import os
import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from kvbench.errors import UsageError
from kvbench.mean_interval import Estimate
from kvbench.plot_style import looks_of
from kvbench.plots import draw, plot_results
from kvbench.records import FULL
from kvbench.statistics import Budget, Cell, Curve, Summary, summarise
from kvbench.store import Results, ResultsFolder, file_stem, load
from simulated import PRESSES, make_protocol, make_record, simulate

FORMATS = ("png", "svg", "pdf")
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
    return draw(make_protocol(), summary, looks)


def texts_of(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def summary_of(ends: dict[str, float]) -> Summary:
    """Two budgets, and for each press the score at the larger one."""
    budgets = (Budget("64", 64), Budget("256", 256))

    def cell(mean: float) -> Cell:
        return Cell(Estimate(mean, mean - 0.02, mean + 0.02), n=10, failed=0, whole=0)

    curves = [Curve(press, {"64": cell(0.1), "256": cell(end)}, 0.5) for press, end in ends.items()]
    return Summary(budgets, cell(0.8), tuple(curves))


def test_there_is_one_figure_per_protocol_and_format(tmp_path: Path) -> None:
    protocols = [make_protocol(dtype=dtype) for dtype in ("float32", "bfloat16")]
    for protocol in protocols:
        simulate(tmp_path / "results", protocol, {"kvp": 5.0}, ["64", "128"], samples=2)
    files = plot_results(load(tmp_path / "results"), tmp_path / "figures", FORMATS, reads_attention)
    names = {f"{file_stem(protocol)}.{name}" for protocol in protocols for name in FORMATS}
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


def test_the_full_cache_alone_has_no_curve(tmp_path: Path) -> None:
    with ResultsFolder(tmp_path).writer() as writer:
        writer.append(make_protocol(), [make_record(FULL, FULL)])
    with pytest.raises(UsageError, match="no curve to draw"):
        plot_results(load(tmp_path), tmp_path, ["png"], reads_attention)


def test_an_unknown_format_is_refused_before_anything_is_written(results: Results, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown figure format 'pgn': did you mean 'png'"):
        plot_results(results, tmp_path, ["svg", "pgn"], reads_attention)
    assert list(tmp_path.iterdir()) == []
