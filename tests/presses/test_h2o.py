"""H2O against its definition in float64."""

import pytest
import torch
from torch import Tensor

from kvbench.check import Shape, random_layer
from kvbench.press import LayerCache
from kvbench.registry import make_press

SHAPE = Shape(kv_heads=2, heads=6, head_dim=8)


def accumulated_attention(layer: LayerCache) -> Tensor:
    """acc_i = Σ_{t ≥ i} softmax_t(i), mean over the group, one query at a time: `[batch, kv_heads, n]`."""
    queries = layer.queries.double()  # [batch, kv_heads, g, m, d]
    keys = layer.keys.double().unsqueeze(2)
    received = torch.zeros(*queries.shape[:3], layer.n, dtype=torch.float64)
    m = queries.shape[3]
    for row in range(m):
        visible = layer.n - m + row + 1
        logits = (queries[..., row, None, :] * keys[..., :visible, :]).sum(-1) * layer.scaling
        received[..., :visible] += logits.softmax(-1)
    return received.mean(dim=2)


@pytest.mark.parametrize("heavy", [0.5, 0.7, 0.0, 1.0])
@pytest.mark.parametrize("queries", [None, 30])
def test_every_budget_holds_the_recent_half_and_the_heaviest_of_the_rest(heavy: float, queries: int | None) -> None:
    layer = random_layer(SHAPE, 90, queries=queries)
    scores = accumulated_attention(layer)
    ranking = make_press(f"h2o:heavy={heavy}").sort(layer)
    for row, head in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        kept, acc = ranking[row, head].tolist(), scores[row, head].tolist()
        for budget in range(1, 91):
            recent = {90 - 1 - i for i in range(int((1 - heavy) * budget + 1e-9))}
            others = sorted(set(range(90)) - recent, key=lambda token: -acc[token])
            assert set(kept[:budget]) == recent | set(others[: budget - len(recent)])


def test_attention_is_not_divided_by_how_many_queries_saw_the_token() -> None:
    """With equal logits acc_i = Σ_{t ≥ i} 1/(t+1) falls with i; divided by n − i it would rise."""
    layer = random_layer(SHAPE, 40)
    layer.keys.zero_()
    ranking = make_press("h2o:heavy=1").sort(layer)
    assert torch.equal(ranking, layer.oldest_first())
