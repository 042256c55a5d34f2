"""SnapKV against its definition in float64."""

import pytest
import torch
from torch import Tensor

from kvbench.check import Shape, random_layer
from kvbench.errors import UsageError
from kvbench.press import LayerCache
from kvbench.registry import make_press

SHAPE = Shape(kv_heads=2, heads=6, head_dim=8)


def definition(layer: LayerCache, window: int, kernel: int, pool: str) -> Tensor:
    """Pooled votes of the window, `[batch, kv_heads, n − window]`, one position at a time."""
    n, half = layer.n, kernel // 2
    votes = torch.zeros(*layer.queries.shape[:3], n, dtype=torch.float64)
    keys = layer.keys.double().unsqueeze(2)
    for query in range(n - window, n):
        row = layer.queries[..., query - n, None, :].double()
        votes[..., : query + 1] += ((row * keys[..., : query + 1, :]).sum(-1) * layer.scaling).softmax(-1)
    votes = votes[..., : n - window] / window
    pooled = torch.zeros_like(votes)
    for position in range(n - window):
        neighbours = votes[..., max(0, position - half) : position + half + 1]
        pooled[..., position] = neighbours.sum(-1) / kernel if pool == "avg" else neighbours.amax(-1)
    return pooled.mean(dim=2)


@pytest.mark.parametrize("setting", [(64, 5, "avg"), (32, 7, "max"), (8, 1, "avg"), (90, 5, "avg")])
def test_the_window_comes_first_and_then_its_pooled_votes(setting: tuple[int, int, str]) -> None:
    window, kernel, pool = setting
    layer = random_layer(SHAPE, 100)
    ranking = make_press(f"snapkv:window={window},kernel={kernel},pool={pool}").sort(layer)
    assert torch.equal(ranking[..., :window], layer.newest_first(100 - window))
    scores = definition(layer, window, kernel, pool).gather(-1, ranking[..., window:])
    assert (scores.diff(dim=-1) <= 1e-8).all()


def test_the_window_is_no_longer_than_the_queries_there_are() -> None:
    layer = random_layer(SHAPE, 100, queries=10)
    ranking = make_press("snapkv").sort(layer)
    assert torch.equal(ranking[..., :10], layer.newest_first(90))
    scores = definition(layer, 10, 5, "avg").gather(-1, ranking[..., 10:])
    assert (scores.diff(dim=-1) <= 1e-8).all()


def test_a_cache_within_the_window_ranks_by_recency() -> None:
    layer = random_layer(SHAPE, 64)
    assert torch.equal(make_press("snapkv").sort(layer), layer.newest_first())


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(UsageError, match=r"kernel='4' is not allowed.*odd"):
        make_press("snapkv:kernel=4")
