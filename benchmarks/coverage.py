"""How often 95 % intervals hold the truth, in simulated benchmarks whose truth is known.

    python benchmarks/coverage.py
    python benchmarks/coverage.py --benchmarks 200

Scores of one source document vary together, and so do those of one sample under all presses and budgets, as in real
results. Three numbers are judged: the mean of a cell, the area of a press as a share of the full cache, and the
difference of two presses' areas. `kvbench` is what the tables show; the others resample the same clusters without
its corrections.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import stats

from kvbench.mean_interval import mean_intervals
from kvbench.score_grid import ScoreGrid
from kvbench.statistics import area_differences, area_intervals

Floats = NDArray[np.float64]

TOKENS = (64, 128, 256, 512, 1024, 2048)
AREA = np.array([0.1, 0.2, 0.2, 0.2, 0.2, 0.1])  # trapezoids, one octave each
MIDDLES = np.array([6.0, 7.0, 7.0, 8.5])  # log2 of the budget at which a press scores half of the full cache
FULL = 0.8
SPREAD = 2.0  # the sum of the Beta distributions' two parameters


@dataclass(frozen=True)
class Scenario:
    """What a simulated benchmark looks like.

    Attributes:
        subtasks: How many.
        sources: Source documents of each subtask.
        samples: Samples of each source.
        steps: Scores are multiples of 1/steps.
        shared: Whether all subtasks draw on the same sources.
    """

    subtasks: int
    sources: int
    samples: int
    steps: int
    shared: bool = False

    @property
    def name(self) -> str:
        """The scenario in words."""
        kind = "0/1" if self.steps == 1 else f"{self.steps + 1}-valued"
        shared = ", shared" if self.shared else ""
        return f"{self.subtasks} × {self.sources} sources × {self.samples}{shared}, {kind}"


SCENARIOS = (
    Scenario(subtasks=1, sources=10, samples=3, steps=4),
    Scenario(subtasks=1, sources=40, samples=3, steps=1),
    Scenario(subtasks=3, sources=8, samples=1, steps=4),
    Scenario(subtasks=3, sources=10, samples=2, steps=1),
    Scenario(subtasks=13, sources=4, samples=1, steps=4),
    Scenario(subtasks=13, sources=20, samples=1, steps=1),
    Scenario(subtasks=4, sources=12, samples=1, steps=4, shared=True),
)


def means_of(scenario: Scenario) -> tuple[Floats, Floats]:
    """Return the true means: of every subtask, press and budget, and of every subtask under the full cache."""
    ease = np.linspace(0.6, 1.15, scenario.subtasks) if scenario.subtasks > 1 else np.ones(1)
    rising = 1 / (1 + np.exp(1.5 * (MIDDLES[:, None] - np.log2(TOKENS))))
    return FULL * ease[:, None, None] * rising, FULL * ease


def areas_of(scenario: Scenario) -> Floats:
    """Return the true areas of the presses as shares of the full cache."""
    means, full = means_of(scenario)
    areas: Floats = means.mean(axis=0) @ AREA / full.mean()
    return areas


def draw(scenario: Scenario, random: np.random.Generator) -> ScoreGrid:
    """Draw one benchmark.

    A sample's chance is a Beta variable with the cell's mean; a Gaussian copula ties together the chances of a
    source, of a sample, and of a press on a source.
    """
    subtask = np.repeat(np.arange(scenario.subtasks), scenario.sources * scenario.samples)
    source = np.repeat(np.arange(scenario.subtasks * scenario.sources), scenario.samples)
    if scenario.shared:
        source %= scenario.sources
    n, sources, presses, budgets = len(subtask), source.max() + 1, len(MIDDLES), len(TOKENS)
    common = np.sqrt(0.5) * random.normal(size=sources)[source] + np.sqrt(0.2) * random.normal(size=n)
    own = np.sqrt(0.15) * random.normal(size=(sources, presses + 1))[source]
    normal = (common[:, None] + own)[:, :, None] + np.sqrt(0.15) * random.normal(size=(n, presses + 1, budgets))
    means, full = means_of(scenario)
    mean = np.concatenate([means, np.broadcast_to(full[:, None, None], (len(full), 1, budgets))], axis=1)[subtask]
    chances = stats.beta.ppf(stats.norm.cdf(normal), SPREAD * mean, SPREAD * (1 - mean))
    scores = random.binomial(scenario.steps, chances) / scenario.steps
    names = tuple(f"press {place}" for place in range(presses))
    return ScoreGrid(names, scores[:, :-1], scores[:, -1, 0], subtask, source, np.ones(n), np.full(n, np.nan))


def held(scenario: Scenario, grid: ScoreGrid) -> dict[str, Floats]:
    """Return which of kvbench's intervals hold the truth, 0 or 1 each; NaN where there is none."""
    means, areas = means_of(scenario)[0].mean(axis=0), areas_of(scenario)
    budgets = [0, 2, 4]
    columns = grid.scores[:, :, budgets].reshape(len(grid.full), -1)
    cells = mean_intervals(columns, grid.subtask, grid.source, grid.weight, bounded=True)
    area = area_intervals(grid, TOKENS)
    others = list(range(1, len(MIDDLES)))
    differences = area_differences(grid, TOKENS, others, reference=0)
    differences += area_differences(grid, TOKENS, [2], reference=1)  # there is none
    truths = [*(areas[others] - areas[0]), 0.0]
    return {
        "cell": np.array([_holds(c.low, c.high, t) for c, t in zip(cells, means[:, budgets].flat, strict=True)]),
        "area": np.array([_holds(*ends) for ends in zip(area.low, area.high, areas, strict=True)]),
        "difference": np.array([_holds(d.low, d.high, t) for d, t in zip(differences, truths, strict=True)]),
        "p > 0.05 of none": np.array([np.nan if differences[-1].p is None else differences[-1].p > 0.05]),
    }


def alternatives(scenario: Scenario, grid: ScoreGrid, random: np.random.Generator) -> dict[str, Floats]:
    """Return the same for the area of each press, with three textbook intervals of a plain bootstrap."""
    clusters = np.unique(grid.source + grid.subtask * (grid.source.max() + 1), return_inverse=True)[1]
    blocks = np.arange(clusters.max() + 1).reshape(scenario.subtasks, -1)
    values = np.column_stack([grid.scores @ AREA, grid.full])
    sums = np.array([values[clusters == cluster].sum(axis=0) for cluster in range(blocks.size)])
    size = blocks.shape[1]
    weights = np.hstack([random.multinomial(size, [1 / size] * size, 1000) for _ in blocks])
    estimate = sums[:, :-1].sum(axis=0) / sums[:, -1].sum()
    resampled = weights @ sums
    resampled = resampled[:, :-1] / resampled[:, -1:]
    influence = (sums[:, :-1] - estimate * sums[:, -1:]) / sums[:, -1].sum()
    influence -= np.repeat([influence[block].mean(axis=0) for block in blocks], size, axis=0)
    error = np.sqrt(size / (size - 1) * np.sum(influence**2, axis=0))
    squares = sum(weights[:, b] @ influence[b] ** 2 - (weights[:, b] @ influence[b]) ** 2 / size for b in blocks)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (resampled - estimate) / np.sqrt(size / (size - 1) * squares)
    low_t, high_t = np.nanquantile(t, [0.025, 0.975], axis=0)
    tails = stats.norm.cdf(_bca(estimate, resampled, influence))
    ends = {
        "percentile": np.quantile(resampled, [0.025, 0.975], axis=0),
        "BCa": np.array([np.quantile(resampled[:, k], tails[:, k]) for k in range(len(estimate))]).T,
        "bootstrap-t": np.array([estimate - high_t * error, estimate - low_t * error]),
    }
    areas = areas_of(scenario)
    return {
        name: np.array([_holds(*three) for three in zip(low, high, areas, strict=True)])
        for name, (low, high) in ends.items()
    }


def _bca(estimate: Floats, resampled: Floats, influence: Floats) -> Floats:
    """Return the normal quantiles that BCa takes (Efron & Tibshirani 1993, section 14.3), `[2, k]`."""
    bias = stats.norm.ppf(np.clip(np.mean(resampled < estimate, axis=0), 1e-3, 1 - 1e-3))
    acceleration = np.sum(influence**3, axis=0) / (6 * np.sum(influence**2, axis=0) ** 1.5)
    z = bias + stats.norm.ppf([[0.025], [0.975]])
    quantiles: Floats = bias + z / (1 - acceleration * z)
    return quantiles


def _holds(low: float | None, high: float | None, truth: float) -> float:
    if low is None or high is None or not np.isfinite(high - low):
        return np.nan
    return float(low <= truth <= high)


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmarks", type=int, default=1000, help="How many to simulate of each scenario.")
    count = parser.parse_args().benchmarks
    table = Table(title=f"Intervals that hold the truth, in {count} simulated benchmarks each", box=None)
    table.add_column("subtasks × sources × samples")
    for index, scenario in enumerate(SCENARIOS):
        random = np.random.default_rng(index)
        rows = []
        for _ in range(count):
            grid = draw(scenario, random)
            rows.append(held(scenario, grid) | ({} if scenario.shared else alternatives(scenario, grid, random)))
        if index == 0:
            for name in rows[0]:
                table.add_column(name, justify="right")
        shares = [np.nanmean([row[name] for row in rows]) for name in rows[0]]
        table.add_row(scenario.name, *(f"{100 * share:.1f}" for share in shares))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
