"""LagKV against its definition in float64."""

import pytest
import torch
from torch import Tensor

from kvbench.check import Shape, random_layer
from kvbench.press import LayerCache
from kvbench.registry import make_press

SHAPE = Shape(kv_heads=2, heads=2, head_dim=8)


def partition_scores(states: Tensor, following: Tensor) -> Tensor:
    """Scores of one partition `[lag, d]` on the scale of the next; constant channels say nothing."""
    scaled = torch.zeros_like(states)
    for channel in range(states.shape[1]):
        low, high = following[:, channel].min(), following[:, channel].max()
        if high > low:
            scaled[:, channel] = (states[:, channel] - low) / (high - low)
    return torch.stack([row.std() for row in scaled]).softmax(0)


def assert_ranked(layer: LayerCache, sinks: int, lag: int) -> None:
    """Sinks, tail, then all partitions' best, all seconds, …"""
    ranking = make_press(f"lagkv:sinks={sinks},lag={lag}").sort(layer)
    end = sinks + ((layer.n - sinks) // lag - 1) * lag
    first = [*range(sinks), *range(layer.n - 1, end - 1, -1)]
    assert (ranking[..., : len(first)] == torch.tensor(first)).all()
    for row, head in [(0, 0), (1, 1)]:
        keys, values = layer.keys[row, head].double(), layer.values[row, head].double()
        best: list[list[int]] = []
        for start in range(sinks, end, lag):
            this, following = slice(start, start + lag), slice(start + lag, start + 2 * lag)
            scores = partition_scores(keys[this], keys[following]) + partition_scores(values[this], values[following])
            best.append((scores.argsort(descending=True) + start).tolist())
        by_place = [token for place in zip(*best, strict=True) for token in place]
        assert ranking[row, head, len(first) :].tolist() == by_place


@pytest.mark.parametrize(("sinks", "lag", "n"), [(4, 16, 85), (4, 16, 36), (0, 5, 23), (3, 128, 300)])
def test_partitions_are_ranked_within_and_interleaved(sinks: int, lag: int, n: int) -> None:
    assert_ranked(random_layer(SHAPE, n), sinks, lag)


def test_a_constant_channel_does_not_blind_the_others() -> None:
    layer = random_layer(SHAPE, 84)
    layer.keys[..., 0], layer.values[..., 3] = 3.0, -2.0
    assert_ranked(layer, sinks=4, lag=16)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 35])
def test_a_short_cache_ranks_sinks_then_by_recency(n: int) -> None:
    ranking = make_press("lagkv:sinks=4,lag=16").sort(random_layer(SHAPE, n))
    expected = [*range(min(4, n)), *range(n - 1, 3, -1)]
    assert torch.equal(ranking, torch.tensor(expected).expand(2, 2, n))
