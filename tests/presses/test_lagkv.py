"""LagKV against its definition in float64."""

import pytest
import torch
from torch import Tensor

from kvbench.check import Shape, random_layer
from kvbench.registry import make_press

SHAPE = Shape(kv_heads=2, heads=2, head_dim=8)


def partition_scores(states: Tensor, following: Tensor) -> Tensor:
    """Scores of one partition `[lag, d]` on the scale of the next."""
    scaled = torch.stack(
        [
            (states[:, c] - following[:, c].min()) / (following[:, c].max() - following[:, c].min())
            for c in range(states.shape[1])
        ],
        dim=1,
    )
    return torch.stack([row.std() for row in scaled]).softmax(0)


@pytest.mark.parametrize(("sinks", "lag", "n"), [(4, 16, 85), (4, 16, 36), (0, 5, 23), (3, 128, 300)])
def test_partitions_are_ranked_within_and_interleaved(sinks: int, lag: int, n: int) -> None:
    layer = random_layer(SHAPE, n)
    ranking = make_press(f"lagkv:sinks={sinks},lag={lag}").sort(layer)
    partitions = (n - sinks) // lag - 1
    end = sinks + partitions * lag
    first = sinks + n - end
    expected = [*range(sinks), *range(n - 1, end - 1, -1)]
    assert (ranking[..., :first] == torch.tensor(expected)).all()
    for row, head in [(0, 0), (1, 1)]:
        keys, values = layer.keys[row, head].double(), layer.values[row, head].double()
        best: list[list[int]] = []
        for start in range(sinks, end, lag):
            this, following = slice(start, start + lag), slice(start + lag, start + 2 * lag)
            scores = partition_scores(keys[this], keys[following]) + partition_scores(values[this], values[following])
            best.append((scores.argsort(descending=True) + start).tolist())
        by_place = [token for place in zip(*best, strict=True) for token in place]
        assert ranking[row, head, first:].tolist() == by_place


@pytest.mark.parametrize("n", [1, 3, 4, 5, 35])
def test_a_short_cache_ranks_sinks_then_by_recency(n: int) -> None:
    ranking = make_press("lagkv:sinks=4,lag=16").sort(random_layer(SHAPE, n))
    expected = [*range(min(4, n)), *range(n - 1, 3, -1)]
    assert torch.equal(ranking, torch.tensor(expected).expand(2, 2, n))


def test_a_constant_channel_does_not_blind_the_others() -> None:
    layer = random_layer(SHAPE, 84)
    layer.keys[..., 0], layer.values[..., 0] = 3.0, -2.0
    press = make_press("lagkv:sinks=4,lag=16")
    ranking = press.sort(layer)
    layer.keys[..., 0], layer.values[..., 0] = 5.0, 7.0
    assert torch.equal(press.sort(layer), ranking)
    assert not torch.equal(ranking[..., 20:], ranking[..., 20:].sort(dim=-1).values)
