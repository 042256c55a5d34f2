import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len
from rich.console import Console
from statsmodels.stats.multitest import multipletests

from kvbench.comparison import Comparison, compare, show_comparisons, to_json
from kvbench.comparison_with_all import compare_with_all, show_standings
from kvbench.errors import UsageError
from kvbench.records import FULL, Record
from kvbench.statistics import Curve, summarise
from kvbench.store import Results, load
from simulated import make_protocol, make_record, simulate

BUDGETS = ("64", "128", "256")


def results_of(*records: Record) -> Results:
    protocol = make_protocol()
    frame = pd.DataFrame([record.model_dump() for record in records]).assign(protocol=protocol.hash)
    return Results(frame, {protocol.hash: protocol})


def constant(scores: dict[str, tuple[float, ...]], n: int = 8, budgets: tuple[str, ...] = BUDGETS) -> list[Record]:
    """Every sample scores the same, and the full cache 1."""
    return [
        record
        for sample in (f"vt/{index}" for index in range(n))
        for record in [
            make_record(FULL, FULL, sample),
            *(make_record(p, b, sample, s) for p, row in scores.items() for b, s in zip(budgets, row, strict=True)),
        ]
    ]


def printed(comparisons: list[Comparison], style: str = "rich") -> str:
    console = Console(file=io.StringIO(), width=80)
    show_comparisons(comparisons, style, console)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Eleven presses on one task, two of them on another with fewer budgets."""
    folder = tmp_path_factory.mktemp("results")
    simulate(folder)
    simulate(folder, make_protocol(task="ruler-8k"), {"kvp": 5.0, "tova": 6.8}, ("128", "512"), failing=0.1)
    return load(folder)


def curve(results: Results, press: str) -> Curve:
    summary = summarise(results.rows(next(iter(results.protocols.values()))))
    return next(curve for curve in summary.curves if curve.press == press)


def test_a_comparison_agrees_with_the_table(results: Results) -> None:
    comparison = compare(results, "tova", "kvp")[0]
    tova, kvp = curve(results, "tova"), curve(results, "kvp")
    assert comparison.area.difference.mean == pytest.approx(tova.auc - kvp.auc)
    for budget, outcome in comparison.budgets.items():
        expected = tova.cells[budget].score.mean - kvp.cells[budget].score.mean
        assert outcome.difference.mean == pytest.approx(expected)
    adjusted = multipletests([outcome.difference.p for outcome in comparison.budgets.values()], method="holm")[1]
    assert [o.difference.adjusted_p for o in comparison.budgets.values()] == pytest.approx(list(adjusted))


def test_the_other_way_round_is_the_same_with_the_other_sign(results: Results) -> None:
    for one, other in zip(compare(results, "kvp", "tova"), compare(results, "tova", "kvp"), strict=True):
        assert one.area.difference.mean == pytest.approx(-other.area.difference.mean)
        assert one.area.difference.low == pytest.approx(-other.area.difference.high)
        assert one.area.difference.p == pytest.approx(other.area.difference.p)
        assert (one.area.wins, one.area.ties) == (other.area.losses, other.area.ties)
        assert one.conclusion == other.conclusion


def test_wins_and_losses_are_counted_answer_by_answer(results: Results) -> None:
    protocol = next(iter(results.protocols.values()))
    rows = results.rows(protocol)
    comparison = compare(results, "h2o", "keyformer")[0]
    for budget, outcome in comparison.budgets.items():
        scores = rows[rows.budget == budget].pivot(index="sample", columns="press", values="score")
        ahead = np.sign(scores["h2o"] - scores["keyformer"])
        counts = [int((ahead == sign).sum()) for sign in (1, 0, -1)]
        assert [outcome.wins, outcome.ties, outcome.losses] == counts
        assert sum(counts) == outcome.difference.n == 24


def test_every_protocol_that_has_both_is_compared_by_itself(results: Results) -> None:
    assert [c.protocol.task for c in compare(results, "kvp", "tova")] == ["ruler-4k", "ruler-8k"]
    assert [c.protocol.task for c in compare(results, "kvp", "snapkv")] == ["ruler-4k"]


def test_only_answers_that_both_have_count() -> None:
    records = constant({"kvp": (0.5, 0.5, 0.5), "tova": (0.25, 0.5, 0.75)}, n=10)
    records += [make_record("kvp", b, "vt/10", 1.0) for b in BUDGETS] + [make_record(FULL, FULL, "vt/10")]
    records += [make_record("tova", b, "vt/10", None if b == "64" else 0.0) for b in BUDGETS]
    [comparison] = compare(results_of(*records), "kvp", "tova")
    assert [o.difference.n for o in comparison.budgets.values()] == [10, 11, 11]
    assert [o.wins for o in comparison.budgets.values()] == [10, 1, 1]
    assert comparison.area.difference.n == 10
    assert comparison.area.difference.mean == pytest.approx(0)
    assert (comparison.area.wins, comparison.area.ties, comparison.area.losses) == (0, 10, 0)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        pytest.param((0.5,) * 3, (0.25,) * 3, "kvp is better by 0.25 in AUC", id="always better"),
        pytest.param((0.25,) * 3, (0.5,) * 3, "tova is better by 0.25 in AUC", id="always worse"),
        pytest.param((0.5,) * 3, (0.5,) * 3, "no difference in AUC can be told at this n (8 answers)", id="the same"),
    ],
)
def test_the_conclusion_says_who_is_better(first: tuple[float, ...], second: tuple[float, ...], words: str) -> None:
    [comparison] = compare(results_of(*constant({"kvp": first, "tova": second})), "kvp", "tova")
    assert comparison.conclusion == words


def test_the_conclusion_has_the_interval_with_the_winners_sign(results: Results) -> None:
    comparison = compare(results, "tova", "kvp")[0]
    area = comparison.area.difference
    assert area.high < 0
    assert comparison.conclusion == f"kvp is better by {-area.mean:.2f} [{-area.high:.2f}, {-area.low:.2f}] in AUC"


def test_few_answers_tell_no_difference() -> None:
    [comparison] = compare(results_of(*constant({"kvp": (1.0,) * 3, "tova": (0.0,) * 3}, n=4)), "kvp", "tova")
    assert comparison.conclusion == "no difference in AUC can be told at this n (4 answers)"


def test_a_single_budget_is_compared_by_its_scores() -> None:
    records = constant({"kvp": (0.75,), "tova": (0.5,)}, budgets=("64",))
    [comparison] = compare(results_of(*records), "kvp", "tova")
    assert comparison.conclusion == "kvp is better by 0.25 in recall at 64"
    assert "AUC  " not in printed([comparison])


def test_without_a_full_cache_areas_are_not_compared_but_scores_are() -> None:
    records = [r for r in constant({"kvp": (0.75,) * 3, "tova": (0.5,) * 3}) if r.press != FULL]
    [comparison] = compare(results_of(*records), "kvp", "tova")
    assert comparison.area.difference.mean is None
    assert comparison.conclusion.startswith("AUC cannot be compared")
    assert [o.difference.mean for o in comparison.budgets.values()] == [0.25] * 3


def test_a_budget_that_only_one_press_has_is_left_out_and_one_where_it_failed_is_not() -> None:
    records = constant({"kvp": (0.75,) * 3, "tova": (0.5,) * 3})
    partial = [r for r in records if (r.press, r.budget) != ("tova", "64")]
    [comparison] = compare(results_of(*partial), "kvp", "tova")
    assert list(comparison.budgets) == ["128", "256"]
    assert comparison.area.difference.mean == pytest.approx(0.25)
    failed = [make_record("tova", "64", f"vt/{index}", None) for index in range(8)]
    [comparison] = compare(results_of(*partial, *failed), "kvp", "tova")
    assert list(comparison.budgets) == list(BUDGETS)
    assert comparison.budgets["64"].difference.mean is None
    assert comparison.area.difference.mean is None


def test_the_full_cache_can_be_compared_with() -> None:
    [comparison] = compare(results_of(*constant({"kvp": (0.25, 0.5, 0.75)})), FULL, "kvp")
    assert [o.difference.mean for o in comparison.budgets.values()] == pytest.approx([0.75, 0.5, 0.25])
    assert comparison.area.difference.mean == pytest.approx(0.5)


def test_the_printed_comparison_fits_80_columns_and_ends_with_its_conclusion(results: Results) -> None:
    [comparison] = compare(results, "streaming_llm", "keyformer")
    text = printed([comparison])
    assert max(map(cell_len, text.splitlines())) <= 80
    assert text.rstrip().endswith(comparison.conclusion)
    assert "streaming_llm − keyformer · smollm2-135m · ruler-4k · recall" in text
    assert [line.split()[0] for line in text.splitlines() if line[:3] in ("64 ", "204", "AUC")] == ["64", "2048", "AUC"]


def test_json_is_not_rounded(results: Results) -> None:
    comparisons = compare(results, "kvp", "tova")
    content = json.loads(to_json(comparisons))
    assert printed(comparisons, "json") == to_json(comparisons)
    for found, comparison in zip(content, comparisons, strict=True):
        assert found["protocol"] == comparison.protocol.model_dump(mode="json")
        assert found["area"]["difference"]["low"] == comparison.area.difference.low
        assert found["budgets"]["512"]["wins"] == comparison.budgets["512"].wins
        assert found["conclusion"] == comparison.conclusion


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("kvq", "tova", "unknown press 'kvq': did you mean 'kvp'"),
        ("kvp", "tovq", "unknown press 'tovq': did you mean 'tova'"),
        ("kvp", "kvp", "'kvp' cannot be compared with itself"),
    ],
)
def test_what_cannot_be_compared_is_refused(results: Results, first: str, second: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare(results, first, second)


def test_presses_of_different_protocols_are_refused(tmp_path: Path) -> None:
    simulate(tmp_path, make_protocol(), {"kvp": 5.0}, BUDGETS, samples=2)
    simulate(tmp_path, make_protocol(dtype="bfloat16"), {"tova": 5.0}, BUDGETS, samples=2)
    with pytest.raises(UsageError, match="'kvp' and 'tova' have no protocol and budget in common"):
        compare(load(tmp_path), "kvp", "tova")


def test_an_unknown_format_is_refused(results: Results) -> None:
    with pytest.raises(UsageError, match="unknown table format 'jsn': did you mean 'json'"):
        printed(compare(results, "kvp", "tova"), "jsn")


def test_a_press_is_compared_with_every_other_as_with_each_alone(results: Results) -> None:
    four, eight = compare_with_all(results, "kvp")
    assert (four.protocol.task, eight.protocol.task) == ("ruler-4k", "ruler-8k")
    assert len(four.others) == 10
    assert list(eight.others) == ["tova"]
    for press, outcome in four.others.items():
        alone = compare(results, "kvp", press)[0].area
        assert outcome.difference.low == alone.difference.low
        assert (outcome.wins, outcome.ties, outcome.losses) == (alone.wins, alone.ties, alone.losses)
    differences = [outcome.difference for outcome in four.others.values()]
    assert [d.mean for d in differences] == sorted(d.mean for d in differences)
    adjusted = multipletests([d.p for d in differences], method="holm")[1]
    assert [d.adjusted_p for d in differences] == pytest.approx(list(adjusted))


def test_the_standings_fit_80_columns(results: Results) -> None:
    console = Console(file=io.StringIO(), width=80)
    show_standings(compare_with_all(results, "kvp"), "rich", console)
    text = console.file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "kvp − others · AUC · smollm2-135m · ruler-4k · recall" in text


def test_standings_as_json_are_not_rounded(results: Results) -> None:
    console = Console(file=io.StringIO(), width=80)
    standings = compare_with_all(results, "kvp")
    show_standings(standings, "json", console)
    for found, standing in zip(json.loads(console.file.getvalue()), standings, strict=True):
        assert found["others"]["tova"]["difference"]["low"] == standing.others["tova"].difference.low


def test_a_press_without_records_is_compared_with_nothing(results: Results) -> None:
    with pytest.raises(UsageError, match="unknown press 'kvq': did you mean 'kvp'"):
        compare_with_all(results, "kvq")
