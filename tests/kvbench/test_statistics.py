from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from kvbench.bootstrap import ClusterBootstrap, freedom_of
from kvbench.errors import UsageError
from kvbench.mean_interval import Estimate, mean_interval
from kvbench.measure import Measure
from kvbench.records import FULL, REPEAT, Record
from kvbench.statistics import Curve, EnoughBudget, enough_budget, normalised_auc, summarise
from simulated import make_record

T = TypeVar("T")
Sampled = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]


def frame_of(*records: Record) -> pd.DataFrame:
    return pd.DataFrame([record.model_dump() for record in records])


def one_subtask(scores: Any) -> Estimate:
    """The interval of scores that each come from a source of their own."""
    return mean_interval(scores, np.zeros(len(scores), int), np.arange(len(scores)))


def by_matrices(shares: Any) -> float:
    """Bell and McCaffrey's degrees of freedom as they define them: with matrices over all pairs of clusters."""
    residual = np.eye(len(shares)) - np.asarray(shares)[None, :]
    squared = residual.T @ np.diag(np.square(shares)) @ residual
    return float(np.trace(squared) ** 2 / np.trace(squared @ squared))


def limits(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def coverage(draw: Callable[[np.random.Generator], Sampled], truth: float, repeats: int = 1500) -> float:
    """The share of simulated experiments whose interval holds the truth."""
    random = np.random.default_rng(0)
    estimates = [mean_interval(*draw(random)) for _ in range(repeats)]
    return float(np.mean([low <= truth <= high for low, high in map(limits, estimates)]))


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=40).filter(lambda scores: np.std(scores) > 1e-3))
def test_one_score_per_source_gives_the_t_interval(scores: list[float]) -> None:
    assume(min(scores) < 0 or max(scores) > 1)
    expected = stats.t.interval(0.95, len(scores) - 1, np.mean(scores), stats.sem(scores))
    assert limits(one_subtask(scores)) == pytest.approx(expected)


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_zeros_and_ones_give_wilsons_interval(answers: list[bool]) -> None:
    expected = stats.binomtest(sum(answers), len(answers)).proportion_ci(method="wilson")
    assert limits(one_subtask(answers)) == pytest.approx((expected.low, expected.high))


def test_scores_of_one_source_count_as_one_cluster() -> None:
    random = np.random.default_rng(1)
    sources = np.repeat(np.arange(6), [1, 2, 3, 4, 5, 6])
    scores = random.random(len(sources))
    # By hand: the variance of the sources' summed residuals, with the small-sample factor G / (G - 1).
    residuals = [np.sum(scores[sources == source] - scores.mean()) for source in range(6)]
    error = np.sqrt(6 / 5 * np.sum(np.square(residuals))) / len(scores)
    half = stats.t.ppf(0.975, by_matrices(np.arange(1, 7) / 21)) * error
    estimate = mean_interval(scores, np.zeros(len(scores), int), sources, bounded=False)
    assert limits(estimate) == pytest.approx((scores.mean() - half, scores.mean() + half))


def test_the_headline_is_the_mean_of_the_subtasks_means() -> None:
    random = np.random.default_rng(2)
    parts = [random.random(size) for size in (3, 10, 30)]
    subtasks = np.repeat([0, 1, 2], [3, 10, 30])
    estimate = mean_interval(np.concatenate(parts), subtasks, np.arange(43), bounded=False)
    assert estimate.mean == pytest.approx(np.mean([part.mean() for part in parts]))
    # Independent means: their variances add up, with Satterthwaite's degrees of freedom.
    variances = np.array([part.var(ddof=1) / len(part) for part in parts])
    freedom = variances.sum() ** 2 / np.sum(variances**2 / [2, 9, 29])
    half = stats.t.ppf(0.975, freedom) * np.sqrt(variances.sum()) / 3
    assert limits(estimate) == pytest.approx((estimate.mean - half, estimate.mean + half))


@given(st.permutations(range(12)))
def test_order_and_numbering_do_not_matter(order: list[int]) -> None:
    random = np.random.default_rng(3)
    scores, subtasks, sources = random.random(12), np.arange(12) % 2, np.arange(12) // 3
    expected = mean_interval(scores, subtasks, sources)
    shuffled = mean_interval(scores[order], 7 - 3 * subtasks[order], 100 * sources[order] + 5)
    assert (shuffled.mean, *limits(shuffled)) == pytest.approx((expected.mean, *limits(expected)))


@pytest.mark.parametrize("sources", [3, 5, 40])
def test_clustered_intervals_hold_the_truth_95_times_in_100(sources: int) -> None:
    def draw(random: np.random.Generator) -> Sampled:
        source = np.repeat(np.arange(sources), 4)
        scores = random.normal(size=sources)[source] + random.normal(size=len(source))
        return scores, np.zeros_like(source), source

    assert coverage(draw, 0.0) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("samples", [3, 10, 40])
def test_headlines_of_graded_scores_hold_the_truth_95_times_in_100(samples: int) -> None:
    means = np.linspace(0.1, 0.9, 13)

    def draw(random: np.random.Generator) -> Sampled:
        subtask = np.repeat(np.arange(13), samples)
        return random.beta(3 * means[subtask], 3 * (1 - means[subtask])), subtask, np.arange(len(subtask))

    assert coverage(draw, 0.5) == pytest.approx(0.96, abs=0.02)


@pytest.mark.parametrize("chances", [[0.5] * 13, [0.03] * 13, [1.0] * 8 + [0.7, 0.3, 0.9, 0.5, 0.1]])
@pytest.mark.parametrize("samples", [4, 20])
def test_headlines_of_proportions_never_claim_too_much(chances: list[float], samples: int) -> None:
    def draw(random: np.random.Generator) -> Sampled:
        subtask = np.repeat(np.arange(13), samples)
        scores = random.random(len(subtask)) < np.array(chances)[subtask]
        return scores.astype(float), subtask, np.arange(len(subtask))

    assert coverage(draw, float(np.mean(chances))) > 0.92


def test_a_source_shared_by_subtasks_widens_the_interval() -> None:
    def draw(random: np.random.Generator) -> Sampled:
        source, subtask = np.tile(np.arange(10), 4), np.repeat(np.arange(4), 10)
        return random.normal(size=10)[source] + random.normal(size=40), subtask, source

    assert coverage(draw, 0.0) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("scores", "subtasks", "sources", "mean"),
    [
        pytest.param([], [], [], None, id="nothing"),
        pytest.param([0.3], [0], [0], 0.3, id="one score"),
        pytest.param([0.3, 0.5, 0.7], [0, 0, 0], [4, 4, 4], 0.5, id="one source"),
        pytest.param([0.5, 0.5, 0.5], [0, 0, 0], [0, 1, 2], 0.5, id="no spread"),
        pytest.param([0.2, 0.4, 0.7], [0, 0, 1], [0, 1, 2], 0.5, id="a subtask with one source"),
    ],
)
def test_what_the_scores_do_not_determine_is_none(
    scores: list[float], subtasks: list[int], sources: list[int], mean: float | None
) -> None:
    estimate = mean_interval(scores, subtasks, sources)
    assert estimate.mean == (None if mean is None else pytest.approx(mean))
    assert (estimate.low, estimate.high) == (None, None)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=8),
    st.floats(0.1, 1),
    st.integers(2, 40),
)
def test_auc_is_the_area_over_the_log_of_the_budget(means: list[float], full: float, first: int) -> None:
    tokens = [first * 2**step for step in range(len(means))]
    area = sum((left + right) / 2 for left, right in pairwise(means))  # octaves of width 1
    assert normalised_auc(tokens, means, full) == pytest.approx(area / (len(means) - 1) / full)


def test_auc_of_uneven_budgets_matches_fine_integration() -> None:
    tokens, means = [10.0, 50.0, 3000.0], [0.1, 0.7, 0.9]
    fine = np.linspace(np.log2(10), np.log2(3000), 200_001)
    expected = np.mean(np.interp(fine, np.log2(tokens), means)) / 0.8
    assert normalised_auc(tokens, means, 0.8) == pytest.approx(expected, abs=1e-4)
    assert normalised_auc(tokens, [0.8, 0.8, 0.8], 0.8) == pytest.approx(1)


@pytest.mark.parametrize(
    ("tokens", "means", "full"),
    [
        pytest.param([64, 128], [0.5, None], 0.8, id="a missing score"),
        pytest.param([64], [0.5], 0.8, id="one budget"),
        pytest.param([64, 64], [0.5, 0.6], 0.8, id="no range"),
        pytest.param([64, 128], [0.5, 0.6], None, id="no full cache"),
        pytest.param([64, 128], [0.5, 0.6], 0.0, id="a full cache that scores nothing"),
    ],
)
def test_an_area_that_is_not_determined_is_none(
    tokens: list[float], means: list[float | None], full: float | None
) -> None:
    assert normalised_auc(tokens, means, full) is None


def test_failed_answers_are_counted_and_never_averaged() -> None:
    records = [make_record(sample=f"vt/{i}", score=score) for i, score in enumerate([0.2, None, 0.6, None])]
    (curve,) = summarise(frame_of(*records)).curves
    cell = curve.cells["256"]
    assert (cell.score.mean, cell.n, cell.failed) == (pytest.approx(0.4), 2, 2)


def test_a_cell_where_everything_failed_is_none_not_zero() -> None:
    records = [make_record(budget=budget, score=score) for budget, score in (("64", None), ("128", 0.5))]
    (curve,) = summarise(frame_of(make_record(FULL, FULL), *records)).curves
    assert curve.cells["64"].score == Estimate()
    assert curve.auc is None


def test_a_headline_needs_every_subtask() -> None:
    whole = [make_record("kvp", sample=f"{task}/0", score=0.5) for task in ("vt", "qa_1")]
    part = [make_record("tova", sample="vt/0", score=1.0), make_record("tova", sample="qa_1/0", score=None)]
    means = {curve.press: curve.cells["256"].score.mean for curve in summarise(frame_of(*whole, *part)).curves}
    assert means == {"kvp": 0.5, "tova": None}


def test_budgets_ascend_and_a_share_lies_at_its_mean_tokens() -> None:
    records = [
        make_record(budget=budget, sample=f"vt/{context}", context_tokens=context)
        for budget in ("50%", "1024", "25%", "96")
        for context in (1000, 3000)
    ]
    summary = summarise(frame_of(*records))
    assert [(budget.label, budget.tokens) for budget in summary.budgets] == [
        ("96", 96),
        ("1024", 1024),
        ("25%", 500),
        ("50%", 1000),
    ]
    assert summary.curves[0].cells["1024"].whole == 1


def test_presses_come_best_first_and_those_without_an_area_last() -> None:
    scores = {"b": 0.5, "a": 0.5, "best": 0.9}
    records = [make_record(p, b, score=s) for p, s in scores.items() for b in ("64", "128")]
    records += [make_record("partial", "64"), make_record("alone", "128"), make_record(FULL, FULL)]
    summary = summarise(frame_of(*records))
    assert [curve.press for curve in summary.curves] == ["best", "a", "b", "alone", "partial"]
    assert [curve.auc for curve in summary.curves] == [pytest.approx(0.9), 0.5, 0.5, None, None]
    assert summary.full is not None
    assert summary.full.score.mean == 1.0


def test_two_identities_of_one_label_are_not_mixed() -> None:
    old = [make_record("kvp", sample=f"vt/{i}", score=0.0, press_identity="aaaaaaaa") for i in range(2)]
    new = [make_record("kvp", sample=f"vt/{i}", score=1.0, press_identity="bbbbbbbb") for i in range(2)]
    curves = summarise(frame_of(*old, *new, make_record("tova", sample="vt/0"))).curves
    means = {curve.press: curve.cells["256"].score.mean for curve in curves}
    assert means == {"kvp#aaaaaa": 0.0, "kvp#bbbbbb": 1.0, "tova": 1.0}


def sampled(
    chances: dict[str, list[float]], budgets: tuple[str, ...] = ("64", "128", "512"), n: int = 20, seed: int = 0
) -> list[Record]:
    """Scores of presses on samples of which some are harder than others, as the full cache finds them, too."""
    random = np.random.default_rng(seed)
    records = []
    for sample in (f"{subtask}/{index}" for subtask in ("qa_1", "vt") for index in range(n)):
        ease = random.choice([0.2, 1.2])
        records.append(make_record(FULL, FULL, sample, random.binomial(4, 0.8 * ease) / 4))
        records += [
            make_record(press, budget, sample, random.binomial(4, chance * ease) / 4)
            for press, row in chances.items()
            for budget, chance in zip(budgets, row, strict=True)
        ]
    return records


def by_press(records: list[Record], is_bound: Callable[[str], bool] = lambda _: False) -> dict[str, Curve]:
    return {curve.press: curve for curve in summarise(frame_of(*records), is_bound).curves}


def known(value: T | None) -> T:
    assert value is not None
    return value


CHANCES = {"best": [0.5, 0.7, 0.8], "close": [0.48, 0.69, 0.8], "worse": [0.1, 0.2, 0.3]}


def without(records: list[Record], press: str, budget: str, sample: str) -> list[Record]:
    """The records, of which one failed."""
    changes = {"score": None, "status": "failed"}
    return [
        record.model_copy(
            update=changes if (record.press, record.budget, record.sample) == (press, budget, sample) else {}
        )
        for record in records
    ]


def test_an_area_has_the_interval_of_resampled_sources() -> None:
    records = sampled(CHANCES)
    frame = frame_of(*records)
    table = frame[frame.press == "best"].pivot(index="sample", columns="budget", values="score")
    full = frame[frame.press == FULL].set_index("sample")["score"][table.index]
    octaves = np.trapezoid(table[["64", "128", "512"]], np.log2([64, 128, 512]), axis=1) / 3
    bootstrap = ClusterBootstrap(table.index.str.startswith("vt"), np.arange(len(table)))
    expected = bootstrap.intervals(bootstrap.means(octaves[:, None]) / bootstrap.means(full.to_numpy()[:, None]))
    area = by_press(records)["best"].area
    assert limits(area) == pytest.approx((expected.low[0], expected.high[0]), rel=0.05)  # other resamples
    assert area.mean == pytest.approx(np.mean(octaves) / np.mean(full))


def test_an_interval_is_around_the_area_whether_or_not_answers_failed() -> None:
    failing = without(without(sampled(CHANCES), "best", "64", "vt/3"), FULL, FULL, "qa_1/5")
    for records in (sampled(CHANCES), failing):
        for curve in by_press(records).values():
            assert sum(limits(curve.area)) / 2 == pytest.approx(known(curve.auc))


def test_the_others_are_compared_with_the_leader_sample_by_sample() -> None:
    curves = by_press(sampled(CHANCES))
    best, close, worse = (curves[press] for press in CHANCES)
    assert best.ahead is None
    assert known(close.ahead).mean == pytest.approx(known(close.auc) - known(best.auc))
    assert (close.tied, worse.tied, best.tied) == (True, False, False)
    assert known(worse.ahead).n == 40
    # Paired: both find the same samples hard, so that their difference is surer than either.
    unpaired = np.hypot(*(np.ptp(limits(curve.area)) for curve in (best, close)))
    assert np.ptp(limits(known(close.ahead))) < 0.9 * unpaired


def test_p_values_against_the_leader_are_holms() -> None:
    chances = {f"press {place}": [0.5 - 0.05 * place, 0.6 - 0.05 * place, 0.7 - 0.05 * place] for place in range(6)}
    found = [curve.ahead for curve in by_press(sampled(chances)).values() if curve.ahead]
    assert len(found) == 5
    adjusted = multipletests([difference.p for difference in found], method="holm")[1]
    assert [difference.adjusted_p for difference in found] == pytest.approx(list(adjusted))
    assert {difference.told for difference in found} == {True, False}
    assert [difference.told for difference in found] == [known(difference.adjusted_p) < 0.05 for difference in found]


def test_a_difference_is_of_the_samples_that_both_presses_have() -> None:
    records = without(without(sampled(CHANCES), "close", "64", "vt/3"), "best", "128", "qa_1/0")
    kept = [record for record in records if record.sample not in ("vt/3", "qa_1/0")]
    curves, expected = by_press(records), by_press(kept)
    assert known(curves["close"].ahead).n == 38
    assert known(curves["worse"].ahead).n == 39
    for end in ("mean", "low", "high", "p"):
        assert getattr(curves["close"].ahead, end) == pytest.approx(getattr(expected["close"].ahead, end))


def test_a_press_that_never_succeeds_where_the_leader_does_is_not_compared() -> None:
    records = sampled(CHANCES)
    for sample in {record.sample for record in records if record.subtask == "vt"}:
        records = without(records, "close", "64" if sample < "vt/2" else "128", sample)
    close = by_press(records)["close"]
    assert close.auc is not None
    assert close.ahead is not None
    assert (close.ahead.mean, close.ahead.p) == (None, None)
    assert (close.tied, close.incomparable) == (False, True)


def test_a_bound_neither_leads_nor_is_compared() -> None:
    curves = by_press(sampled({"oracle": [0.8, 0.8, 0.8], **CHANCES}), lambda press: press == "oracle")
    assert next(iter(curves)) == "oracle"
    assert curves["oracle"].ahead is None
    assert curves["best"].ahead is None
    assert known(curves["worse"].ahead).mean == pytest.approx(known(curves["worse"].auc) - known(curves["best"].auc))


def test_a_press_that_lacks_a_budget_is_compared_with_nothing() -> None:
    records = [r for r in sampled(CHANCES) if (r.press, r.budget) != ("best", "64")]
    curves = by_press(records)
    assert (curves["best"].area, curves["best"].ahead, curves["best"].enough) == (Estimate(), None, None)
    assert curves["close"].ahead is None
    assert not curves["worse"].tied


def test_one_sample_per_subtask_has_areas_without_intervals() -> None:
    records = sampled({"best": [0.5, 0.7, 0.8], "other": [0.3, 0.4, 0.5]}, n=1)
    summary = summarise(frame_of(*records))
    assert summary.one_document == ()
    for curve in summary.curves:
        assert curve.auc is not None
        assert (curve.auc_low, curve.auc_high, curve.tied) == (None, None, False)
        assert curve.incomparable == (curve.press != summary.leader)


def about(document: str, records: list[Record], subtasks: tuple[str, ...] = ("qa_1",)) -> list[Record]:
    """The records, of which those of some subtasks come from one document."""
    return [record.model_copy(update={"source": document} if record.subtask in subtasks else {}) for record in records]


def test_samples_about_a_subtasks_only_document_count_as_independent() -> None:
    records = sampled(CHANCES)
    apart, together = (summarise(frame_of(*given)) for given in (records, about("Normans", records)))
    assert (apart.one_document, together.one_document) == ((), ("qa_1",))
    assert together.curves == apart.curves
    assert together.full == apart.full


def test_a_document_that_several_subtasks_ask_about_tells_nothing_of_others() -> None:
    summary = summarise(frame_of(*about("Normans", sampled(CHANCES), ("qa_1", "vt"))))
    assert summary.one_document == ()
    assert all(curve.auc_low is None for curve in summary.curves)


def test_questions_of_a_subtasks_only_sample_are_one_cluster() -> None:
    records = [
        record.model_copy(update={"sample": "qa_1/0", "source": "Normans", "question": int(record.sample[5:])})
        if record.subtask == "qa_1"
        else record
        for record in sampled(CHANCES)
    ]
    summary = summarise(frame_of(*records))
    assert summary.one_document == ()
    assert summary.curves[0].auc is not None
    assert summary.curves[0].auc_low is None


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        pytest.param([0.2, 0.66, 0.86, 0.9], EnoughBudget(2**7.5, "="), id="between two budgets"),
        pytest.param([0.2, 0.76, 0.8, 0.8], EnoughBudget(128, "="), id="at a budget"),
        pytest.param([0.2, 0.8, 0.6, 0.8], EnoughBudget(64 * 2 ** (0.56 / 0.6), "="), id="the first of several"),
        pytest.param([0.76, 0.76, 0.8, 0.8], EnoughBudget(64, "≤"), id="the smallest is enough"),
        pytest.param([0.1, 0.2, 0.5, 0.7], EnoughBudget(512, ">"), id="the largest is not enough"),
        pytest.param([0.1, None, 0.8, 0.8], None, id="a missing score"),
    ],
)
def test_the_budget_that_is_enough(means: list[float | None], expected: EnoughBudget | None) -> None:
    found = enough_budget([64, 128, 256, 512], means, 0.8)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert (found.relation, found.tokens) == (expected.relation, pytest.approx(expected.tokens))


def test_enough_is_not_known_without_a_full_cache_that_scores() -> None:
    assert enough_budget([64], [0.5], None) is None
    assert enough_budget([64], [0.5], 0.0) is None
    assert [str(EnoughBudget(411.7, "=")), str(EnoughBudget(64, "≤"))] == ["412", "≤ 64"]


PERPLEXITY = Measure(lower_is_better=True, shown_as="exp")


@pytest.mark.parametrize("clusters", [2, 5, 30])
def test_degrees_of_freedom_of_unequal_clusters_are_those_of_the_matrices(clusters: int) -> None:
    shares = np.random.default_rng(clusters).dirichlet(np.ones(clusters))
    assert freedom_of(shares) == pytest.approx(by_matrices(shares))
    assert freedom_of(np.full(clusters, 1 / clusters)) == pytest.approx(clusters - 1)


def test_a_weight_counts_like_copies_of_a_score() -> None:
    random = np.random.default_rng(4)
    scores, sources, weights = random.normal(size=12), np.arange(12) // 2, random.integers(1, 6, 12)
    weighed = mean_interval(scores, np.zeros(12, int), sources, weights)
    copied = mean_interval(*(np.repeat(values, weights) for values in (scores, np.zeros(12, int), sources)))
    assert (weighed.mean, *limits(weighed)) == pytest.approx((copied.mean, *limits(copied)))
    bootstraps = [
        ClusterBootstrap(np.zeros(12), sources, weights=weights).means(scores[:, None]),
        ClusterBootstrap(np.zeros(weights.sum()), np.repeat(sources, weights)).means(
            np.repeat(scores, weights)[:, None]
        ),
    ]
    assert bootstraps[0].estimate == pytest.approx(bootstraps[1].estimate)
    assert bootstraps[0].resampled == pytest.approx(bootstraps[1].resampled)
    assert bootstraps[0].influence == pytest.approx(bootstraps[1].influence)


@pytest.mark.parametrize("sources", [5, 20])
def test_weighted_means_hold_the_truth_95_times_in_100(sources: int) -> None:
    random = np.random.default_rng(0)
    held = []
    for _ in range(1000):
        source = np.repeat(np.arange(sources), 2)
        weights = np.exp(random.normal(0, 0.8, len(source)))
        scores = 2 + random.normal(size=sources)[source] + random.normal(size=len(source))
        low, high = limits(mean_interval(scores, np.zeros_like(source), source, weights))
        held.append(low <= 2 <= high)
    assert 0.93 <= np.mean(held) <= 0.97


def losses(shift: dict[str, list[float]], n: int = 20) -> list[Record]:
    random = np.random.default_rng(0)
    records = []
    for sample in (f"en/{index}" for index in range(n)):
        weight, base = float(random.integers(10, 200)), 2 + 0.2 * random.normal()
        records.append(make_record(FULL, FULL, sample, base, weight=weight))
        records += [
            make_record(press, budget, sample, base + more + 0.05 * random.normal(), weight=weight)
            for press, row in shift.items()
            for budget, more in zip(("64", "128", "256"), row, strict=True)
        ]
    return records


def test_a_perplexity_is_the_exponential_of_the_weighted_mean_and_the_lowest_area_leads() -> None:
    records = losses({"worse": [3, 2, 1], "better": [1, 0.5, 0.0]})
    summary = summarise(frame_of(*records), measure=PERPLEXITY)
    better, worse = summary.curves
    assert (better.press, summary.leader) == ("better", "better")
    cell = [record for record in records if (record.press, record.budget) == ("worse", "128")]
    scores, weights = ([getattr(record, name) for record in cell] for name in ("score", "weight"))
    mean = mean_interval(scores, np.zeros(20, int), np.arange(20), weights, bounded=False)
    of_full = [record.score for record in records if record.press == FULL]
    difference = mean_interval(np.subtract(scores, of_full), np.zeros(20, int), np.arange(20), weights, bounded=False)
    ends = [known(mean.mean) + end - known(difference.mean) for end in limits(difference)]
    expected = [float(np.exp(value)) for value in (known(mean.mean), *ends)]
    assert [worse.cells["128"].score.mean, *limits(worse.cells["128"].score)] == pytest.approx(expected)
    assert mean.mean == pytest.approx(np.average(scores, weights=weights))
    means = [np.log(known(worse.cells[budget].score.mean)) for budget in ("64", "128", "256")]
    full = np.log(known(known(summary.full).score.mean))
    assert worse.auc == pytest.approx((means[0] / 4 + means[1] / 2 + means[2] / 4) / full)
    assert known(worse.ahead).mean == pytest.approx(known(worse.auc) - known(better.auc))
    assert known(known(worse.ahead).mean) > 0
    assert known(better.enough).relation == "="
    assert known(worse.enough) == EnoughBudget(256, ">")


@pytest.mark.parametrize(
    ("measure", "means", "full", "tokens"),
    [
        pytest.param(Measure(lower_is_better=True), [1.2, 1.0, 0.5], 0.95, 128, id="an error rate"),
        pytest.param(PERPLEXITY, [3.0, 2.0 - np.log(0.95), 2.0], 2.0, 128, id="a perplexity"),
    ],
)
def test_where_less_is_better_enough_is_what_the_full_cache_is_95_percent_of(
    measure: Measure, means: list[float], full: float, tokens: float
) -> None:
    found = known(enough_budget([64, 128, 256], means, full, measure))
    assert (found.relation, found.tokens) == ("=", pytest.approx(tokens))


def test_scores_of_one_question_that_weigh_differently_are_refused() -> None:
    records = [make_record(FULL, FULL, weight=3.0), make_record("kvp", "64", weight=4.0)]
    with pytest.raises(UsageError, match="sample 'niah/0' has scores of weight"):
        summarise(frame_of(*records))


def test_the_noise_floor_is_what_a_second_answer_of_the_full_cache_changes() -> None:
    first = [make_record(FULL, FULL, f"vt/{i}", 1.0 if i else 0.5) for i in range(10)]
    again = [make_record(FULL, REPEAT, f"vt/{i}", 1.0 if i > 1 else 0.5) for i in range(10)]
    summary = summarise(frame_of(*first, *again, make_record("kvp", "64", "vt/0")))
    noise = known(summary.noise)
    assert (noise.changed, noise.n, noise.repeat.mean) == (1, 10, pytest.approx(0.9))
    assert noise.difference.mean == pytest.approx(-0.05)
    assert [budget.label for budget in summary.budgets] == ["64"]
    assert summarise(frame_of(*first)).noise is None
    assert summarise(frame_of(*again)).noise is None
