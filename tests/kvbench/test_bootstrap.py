"""The cluster bootstrap against loops, against statsmodels and scipy, and against simulated truth."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.multitest import multipletests

from kvbench.bootstrap import ClusterBootstrap, holm

Array = np.ndarray[Any, Any]

of_subtask = np.repeat([0, 1, 2], [6, 9, 15])
of_source = np.concatenate([np.arange(6), 10 + np.arange(9) // 3, 20 + np.arange(15) % 4])


def values(columns: int = 3, seed: int = 0) -> Array:
    return np.random.default_rng(seed).random((len(of_subtask), columns))


def draws(bootstrap: ClusterBootstrap, sources: Array) -> Array:
    """How much of a resample each source makes up within its subtask, `[resamples, sources]`."""
    names = np.unique(sources)
    return bootstrap.means((sources[:, None] == names).astype(float)).resampled


def test_a_resampled_mean_is_that_of_the_sources_drawn() -> None:
    bootstrap = ClusterBootstrap(of_subtask, of_source, resamples=50)
    scores = values(1)[:, 0]
    shares = draws(bootstrap, of_source) * 3  # three subtasks, of which each is a third of the mean
    resampled = bootstrap.means(scores[:, None]).resampled[:, 0]
    names = np.unique(of_source).tolist()
    for share, mean in zip(shares, resampled, strict=True):
        expected = 0.0
        for subtask in range(3):
            inside = of_subtask == subtask
            total = sum(
                share[names.index(source)] * scores[of_source == source].mean() for source in set(of_source[inside])
            )
            assert sum(share[names.index(source)] for source in set(of_source[inside])) == pytest.approx(1)
            expected += total / 3
        assert mean == pytest.approx(expected)


def test_estimates_are_means_over_subtasks_and_ratios_are_taken_inside_each_resample() -> None:
    bootstrap = ClusterBootstrap(of_subtask, of_source, resamples=20)
    scores = values(2)
    means = bootstrap.means(scores)
    expected = np.mean([scores[of_subtask == subtask].mean(axis=0) for subtask in range(3)], axis=0)
    assert means.estimate == pytest.approx(expected)
    first, second = bootstrap.means(scores[:, :1]), bootstrap.means(scores[:, 1:])
    ratio = first / second
    assert ratio.estimate == pytest.approx(expected[:1] / expected[1:])
    assert ratio.resampled[:, 0] == pytest.approx(means.resampled[:, 0] / means.resampled[:, 1])
    assert (means @ np.array([[0.25], [0.75]])).resampled[:, 0] == pytest.approx(means.resampled @ [0.25, 0.75])
    assert (first - second).resampled[:, 0] == pytest.approx(means.resampled @ [1, -1])


def test_influence_is_what_a_little_more_weight_on_a_cluster_adds() -> None:
    """Against the derivative: a cluster that is there many times more once."""
    copies, added = 2000, 1
    scores = values(2)
    means = ClusterBootstrap(of_subtask, of_source, resamples=1).means(scores)
    single = ClusterBootstrap(of_subtask, of_source, resamples=1)
    ratio = single.means(scores[:, :1]) / single.means(scores[:, 1:])
    assert means.influence.sum(axis=0) == pytest.approx(0, abs=1e-12)

    def estimate(extra: int) -> float:
        often = copies + added * (of_source == extra)
        parts = [np.average(scores[of_subtask == s], axis=0, weights=often[of_subtask == s]) for s in range(3)]
        first, second = np.mean(parts, axis=0)
        return float(first / second)

    derivatives = sorted((estimate(source) - ratio.estimate[0]) * copies / added for source in set(of_source))
    assert sorted(ratio.influence[:, 0]) == pytest.approx(derivatives, rel=0.01, abs=1e-5)


def test_the_same_samples_and_seed_give_the_same_numbers() -> None:
    one, other = (
        ClusterBootstrap(of_subtask, of_source).intervals(ClusterBootstrap(of_subtask, of_source).means(values()))
        for _ in "12"
    )
    assert np.array_equal([one.low, one.high, one.p], [other.low, other.high, other.p])
    first, second = (ClusterBootstrap(of_subtask, of_source, 10, seed).means(values()).resampled for seed in (1, 2))
    assert not np.allclose(first, second)


def test_blocks_of_resamples_are_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.bootstrap._BLOCK", 100)
    shares = draws(ClusterBootstrap(of_subtask, of_source, resamples=101), of_source)
    assert shares.shape[0] == 101
    assert shares.sum(axis=1) == pytest.approx(1)
    assert len(np.unique(shares, axis=0)) > 90


def test_subtasks_that_share_sources_are_resampled_together() -> None:
    subtasks, sources = np.repeat([0, 1], 8), np.tile(np.arange(8), 2)
    scores = np.tile(np.random.default_rng(0).random(8), 2)
    bootstrap = ClusterBootstrap(subtasks, sources, resamples=200)
    one_subtask = np.where(subtasks == 0, scores, 0)[:, None]
    other_subtask = np.where(subtasks == 1, scores, 0)[:, None]
    assert bootstrap.means(one_subtask).resampled == pytest.approx(bootstrap.means(other_subtask).resampled)
    apart = ClusterBootstrap(subtasks, np.arange(16), resamples=200)
    assert not np.allclose(apart.means(one_subtask).resampled, apart.means(other_subtask).resampled)


@pytest.mark.parametrize("clusters", [4, 12, 60])
def test_the_standard_error_is_that_of_statsmodels_cluster_robust_regression(clusters: int) -> None:
    random = np.random.default_rng(clusters)
    sources = np.repeat(np.arange(clusters), 3)
    scores = random.normal(size=clusters)[sources] + random.normal(size=len(sources))
    fitted = sm.OLS(scores, np.ones(len(scores))).fit(
        cov_type="cluster", cov_kwds={"groups": sources, "use_correction": True}, use_t=True
    )
    bootstrap = ClusterBootstrap(np.zeros(len(scores)), sources)
    intervals = bootstrap.intervals(bootstrap.means(scores[:, None]))
    low, high = fitted.conf_int()[0]
    assert intervals.high[0] - intervals.low[0] == pytest.approx(high - low, rel=0.05)
    assert intervals.p[0] == pytest.approx(fitted.pvalues[0], rel=0.3, abs=0.01)


def test_the_standard_error_of_a_ratio_is_that_of_scipys_paired_bootstrap() -> None:
    random = np.random.default_rng(5)
    first = random.random(40)
    second = first + 0.5 * random.random(40)
    theirs = stats.bootstrap(
        (first, second), lambda x, y, axis: x.mean(axis) / y.mean(axis), paired=True, random_state=random
    ).standard_error
    bootstrap = ClusterBootstrap(np.zeros(40), np.arange(40))
    ratio = bootstrap.means(first[:, None]) / bootstrap.means(second[:, None])
    assert ratio.resampled.std() == pytest.approx(theirs * np.sqrt(40 / 39), rel=0.05)


def test_missing_values_are_left_out_and_a_subtask_without_any_leaves_nothing() -> None:
    scores = values(3)
    scores[[0, 7, 20], 1] = np.nan
    scores[of_subtask == 1, 2] = np.nan
    bootstrap = ClusterBootstrap(of_subtask, of_source, resamples=100)
    means = bootstrap.means(scores)
    intervals = bootstrap.intervals(means)
    assert means.estimate[1] == pytest.approx(np.mean([np.nanmean(scores[of_subtask == s, 1]) for s in range(3)]))
    assert means.estimate[:1] == pytest.approx(bootstrap.means(scores[:, :1]).estimate)
    assert np.isnan([means.estimate[2], intervals.low[2], intervals.high[2], intervals.p[2]]).all()
    assert np.isfinite([intervals.low[:2], intervals.high[:2]]).all()


def test_a_subtask_with_one_source_leaves_no_interval() -> None:
    bootstrap = ClusterBootstrap([0, 0, 1, 1], [0, 1, 2, 2], resamples=100)
    intervals = bootstrap.intervals(bootstrap.means(np.array([[0.1], [0.5], [0.2], [0.9]])))
    assert np.isnan([intervals.low, intervals.high, intervals.p]).all()


@pytest.mark.parametrize(("difference", "p"), [(0.5, 2.0**-7), (0.0, 1.0)])
def test_where_all_samples_say_the_same_the_sign_test_decides(difference: float, p: float) -> None:
    bootstrap = ClusterBootstrap(np.zeros(8), np.arange(8), resamples=100)
    intervals = bootstrap.intervals(bootstrap.means(np.full((8, 1), difference)))
    assert np.isnan([intervals.low, intervals.high]).all()
    assert intervals.p.tolist() == [p]
    if difference:
        assert p == stats.binomtest(8, 8).pvalue


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_holm_is_statsmodels_holm(count: int) -> None:
    p = np.random.default_rng(count).random(count).round(1) ** 3  # some are equal
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])


def test_holm_does_not_count_what_is_not_known() -> None:
    assert holm([np.nan, 0.01, 0.04, np.nan]) == pytest.approx([np.nan, 0.02, 0.04, np.nan], nan_ok=True)
    assert holm([]).shape == (0,)


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    """The script that simulates benchmarks."""
    file = Path(__file__).resolve().parents[2] / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("interval_coverage", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_simulated_benchmarks_have_the_means_they_claim(coverage: ModuleType) -> None:
    scenario = coverage.Scenario(subtasks=3, sources=4000, samples=1, steps=4)
    grid = coverage.draw(scenario, np.random.default_rng(0))
    means, full = coverage.means_of(scenario)
    for subtask in range(3):
        assert grid.scores[grid.subtask == subtask].mean(axis=0) == pytest.approx(means[subtask], abs=0.03)
        assert grid.full[grid.subtask == subtask].mean() == pytest.approx(full[subtask], abs=0.03)


def test_95_percent_intervals_hold_the_truth_93_to_97_times_in_100(coverage: ModuleType) -> None:
    """In 1,000 benchmarks with clustered samples; `benchmarks/coverage.py` simulates as many of each kind."""
    random = np.random.default_rng(100)
    held = []
    for scenario, benchmarks in ((0, 700), (3, 150), (6, 150)):
        simulated = coverage.SCENARIOS[scenario]
        held += [coverage.held(simulated, coverage.draw(simulated, random)) for _ in range(benchmarks)]
    for number in ("cell", "area", "difference", "p > 0.05 of none"):
        assert 0.93 <= np.nanmean(np.concatenate([found[number] for found in held])) <= 0.97, number
