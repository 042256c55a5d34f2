"""KeyDiff and K-Norm: orders that read only the keys."""

import torch

from kvbench.check import Shape, random_layer
from kvbench.registry import make_press

SHAPE = Shape(kv_heads=2, heads=2, head_dim=8)


def test_keydiff_normalises_before_it_averages() -> None:
    """A single very long key must not be the anchor by its length."""
    layer = random_layer(SHAPE, 60)
    layer.keys[..., 7, :] *= 1000
    ranking = make_press("keydiff").sort(layer)
    keys = layer.keys.double()
    unit = keys / keys.norm(dim=-1, keepdim=True)
    anchor = unit.mean(dim=-2, keepdim=True)
    cosine = (unit * anchor).sum(-1) / anchor.norm(dim=-1)
    assert (cosine.gather(-1, ranking).diff(dim=-1) >= -1e-6).all()


def test_k_norm_keeps_the_shortest_keys() -> None:
    layer = random_layer(SHAPE, 60)
    ranking = make_press("k_norm").sort(layer)
    assert (layer.keys.double().norm(dim=-1).gather(-1, ranking).diff(dim=-1) >= -1e-6).all()


def test_k_norm_ranks_skipped_layers_by_recency() -> None:
    layer = random_layer(SHAPE, 60)
    assert torch.equal(make_press("k_norm:skip_layers=1").sort(layer), layer.newest_first())
    assert not torch.equal(make_press("k_norm").sort(layer), layer.newest_first())
