"""TOVA against its definition in float64."""

import torch

from kvbench.check import Shape, random_layer
from kvbench.registry import make_press

SHAPE = Shape(kv_heads=2, heads=6, head_dim=8)


def test_the_last_token_comes_first_and_then_its_attention() -> None:
    layer = random_layer(SHAPE, 80, queries=5)
    assert layer.captured_queries is not None
    last = layer.captured_queries[:, :, -1].double()  # [batch, heads, d]
    keys = layer.keys.double().repeat_interleave(3, dim=1)
    attention = ((keys @ last.unsqueeze(-1)).squeeze(-1) * layer.scaling).softmax(-1).mean(dim=1)
    ranking = make_press("tova").sort(layer)
    assert (ranking[..., 0] == 79).all()
    assert (attention.gather(-1, ranking[:, 0, 1:]).diff(dim=-1) <= 1e-8).all()


def test_the_heads_of_a_layer_share_one_order() -> None:
    ranking = make_press("tova").sort(random_layer(SHAPE, 80))
    assert torch.equal(ranking[:, 0], ranking[:, 1])
    assert not torch.equal(ranking[0], ranking[1])
