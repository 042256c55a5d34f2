"""The bounds: no eviction, random order, and the future itself."""

from dataclasses import replace

import torch
from scipy import stats

from kvbench.check import Shape, random_layer
from kvbench.registry import make_press

SHAPE = Shape(kv_heads=2, heads=2, head_dim=4)


def test_full_keeps_the_order_of_positions() -> None:
    layer = random_layer(SHAPE, 9)
    assert torch.equal(make_press("full").sort(layer), torch.arange(9).expand(2, 2, 9))


def test_random_is_uniform_over_places() -> None:
    """Over many layers a token's place is uniform, whatever its position."""
    layer = random_layer(SHAPE, 10)
    press = make_press("random")
    places = torch.stack([press.sort(replace(layer, index=index))[0].argsort(-1) for index in range(400)])
    for token in range(10):
        counts = places[..., token].flatten().bincount(minlength=10)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-4


def test_random_differs_by_draw_layer_head_and_sample() -> None:
    layer = random_layer(SHAPE, 60)
    ranking = make_press("random").sort(layer)
    assert not torch.equal(ranking[:, 0], ranking[:, 1])
    assert not torch.equal(make_press("random:seed=1").sort(layer), ranking)
    assert not torch.equal(make_press("random").sort(replace(layer, index=3)), ranking)
    assert not torch.equal(make_press("random").sort(replace(layer, seed=3)), ranking)


def test_random_keeps_its_order_when_the_cache_is_compressed_again() -> None:
    layer = random_layer(SHAPE, 30)
    press = make_press("random")
    kept = torch.tensor([1, 2, 5, 20, 29])
    compressed = replace(layer, keys=layer.keys[..., kept, :], positions=layer.positions[..., kept])
    before = [token for token in press.sort(layer)[0, 0].tolist() if token in kept]
    assert kept[press.sort(compressed)[0, 0]].tolist() == before


def test_the_oracle_loses_the_least_future_attention_at_every_budget() -> None:
    layer = random_layer(SHAPE, 40)
    u = layer.future_attention
    lost = 1 - u.gather(-1, make_press("oracle").sort(layer)).cumsum(-1) / u.sum(-1, keepdim=True)
    for other in ("random", "streaming_llm", "h2o", "tova"):
        theirs = 1 - u.gather(-1, make_press(other).sort(layer)).cumsum(-1) / u.sum(-1, keepdim=True)
        assert (lost <= theirs + 1e-6).all()
