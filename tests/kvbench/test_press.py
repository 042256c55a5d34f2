"""What a press is given: attention block by block, random numbers, and the orders it builds rankings from."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvbench.check import Shape, random_layer
from kvbench.press import LayerCache, NotCapturedError, by_score, sample_seed, split_budget

SMALL = Shape(kv_heads=2, heads=6, head_dim=8)


def full_attention(layer: LayerCache) -> Tensor:
    """The plain softmax over the whole square in float64, `[batch, heads, m, n]`."""
    queries = layer.captured_queries
    assert queries is not None
    m, n = queries.shape[-2], layer.n
    keys = layer.keys.double().repeat_interleave(queries.shape[1] // layer.kv_heads, dim=1)
    logits = queries.double() @ keys.transpose(-1, -2) * layer.scaling
    last_visible = torch.arange(n - m, n).unsqueeze(-1)
    return logits.masked_fill(torch.arange(n) > last_visible, -torch.inf).softmax(dim=-1)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 40), captured=st.floats(0, 1), block=st.integers(1, 50), seed=st.integers(0, 99))
def test_logits_are_those_of_full_attention_whatever_the_block(n: int, captured: float, block: int, seed: int) -> None:
    m = max(1, round(captured * n))
    layer = random_layer(SMALL, n, queries=m, seed=seed)
    attention = torch.zeros(2, SMALL.kv_heads, 3, m, n, dtype=torch.float64)
    for rows, logits in layer.logits(block=block):
        assert logits.dtype == torch.float32
        attention[..., rows, : logits.shape[-1]] = logits.double().softmax(dim=-1)
    torch.testing.assert_close(attention.flatten(1, 2), full_attention(layer), rtol=0, atol=1e-6)


@pytest.mark.parametrize("last", [1, 5, 12, 99])
def test_logits_of_the_last_queries_only(last: int) -> None:
    layer = random_layer(SMALL, 20, queries=12)
    blocks = list(layer.logits(last=last, block=4))
    m = min(last, 12)
    assert [rows.start for rows, _ in blocks] == list(range(12 - m, 12, 4))
    whole = torch.zeros(2, 6, m, 20, dtype=torch.float64)
    for rows, logits in blocks:
        part = logits.double().softmax(dim=-1).flatten(1, 2)
        whole[..., rows.start - 12 + m : rows.stop - 12 + m, : part.shape[-1]] = part
    torch.testing.assert_close(whole, full_attention(layer)[..., -m:, :], rtol=0, atol=1e-6)


def test_a_query_head_reads_the_kv_head_of_its_group() -> None:
    layer = random_layer(SMALL, 5)
    assert layer.captured_queries is not None
    assert torch.equal(layer.queries[:, 1, 2], layer.captured_queries[:, 5])


def test_what_was_not_captured_says_what_to_declare() -> None:
    layer = replace(random_layer(SMALL, 5), captured_queries=None, captured_future=None)
    with pytest.raises(NotCapturedError, match="QUERIES"):
        _ = layer.queries
    with pytest.raises(NotCapturedError, match="FUTURE"):
        _ = layer.future_attention


def test_orders_of_entries() -> None:
    layer = random_layer(SMALL, 5)
    assert layer.oldest_first()[1, 1].tolist() == [0, 1, 2, 3, 4]
    assert layer.newest_first()[1, 1].tolist() == [4, 3, 2, 1, 0]
    assert layer.oldest_first(0, 9).shape == (2, 2, 5)
    assert layer.newest_first(2, 4)[0, 0].tolist() == [3, 2]
    assert layer.newest_first(5).shape == (2, 2, 0)


def test_random_numbers_belong_to_the_position() -> None:
    layer = random_layer(SMALL, 50)
    numbers = layer.uniform()
    assert numbers.dtype == torch.float32
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert torch.equal(numbers[0], numbers[1])
    kept = torch.tensor([0, 3, 4, 30, 49])
    compressed = replace(layer, keys=layer.keys[..., kept, :], positions=layer.positions[..., kept])
    assert torch.equal(compressed.uniform(), numbers[..., kept])


def test_random_numbers_differ_by_head_layer_seed_and_draw() -> None:
    layer = random_layer(SMALL, 50)
    numbers = layer.uniform()
    assert not torch.equal(numbers[:, 0], numbers[:, 1])
    for other in (replace(layer, index=1).uniform(), replace(layer, seed=1).uniform(), layer.uniform(seed=1)):
        assert not torch.equal(other, numbers)


def test_ties_keep_the_order_of_positions() -> None:
    scores = torch.tensor([[1, 2, 1, 2, 0, 2]], dtype=torch.float16)
    assert by_score(scores).tolist() == [[1, 3, 5, 0, 2, 4]]


@given(data=st.data(), n=st.integers(1, 60), share=st.floats(0, 1))
def test_every_budget_is_split_as_the_share_says(data: st.DataObject, n: int, share: float) -> None:
    rankings = st.permutations(range(n))
    window, best = data.draw(rankings), data.draw(rankings)
    merged = split_budget(torch.tensor([[window]]), torch.tensor([[best]]), share)[0, 0].tolist()
    for budget in range(1, n + 1):
        reserved = set(window[: int(np.floor(share * budget + 1e-9))])
        others = [token for token in best if token not in reserved]
        assert set(merged[:budget]) == reserved | set(others[: budget - len(reserved)])


@pytest.mark.parametrize(("share", "budget", "reserved"), [(0.29, 100, 29), (1 - 0.9, 10, 1), (0.57, 100, 57)])
def test_shares_that_floats_cannot_hold_are_not_rounded_down(share: float, budget: int, reserved: int) -> None:
    assert int(share * budget) == reserved - 1
    newest, oldest = torch.arange(200).flip(0).view(1, 1, -1), torch.arange(200).view(1, 1, -1)
    kept = split_budget(newest, oldest, share)[0, 0, :budget].sort().values
    assert kept.tolist() == [*range(budget - reserved), *range(200 - reserved, 200)]


def test_each_row_and_head_is_split_on_its_own() -> None:
    window = torch.stack([torch.arange(6), torch.arange(6).flip(0)]).view(1, 2, 6)
    merged = split_budget(window, window.flip(1), 0.5)
    assert merged.tolist() == [[[5, 0, 4, 1, 3, 2], [0, 5, 1, 4, 2, 3]]]


def test_samples_and_runs_have_their_own_seeds() -> None:
    seeds = {sample_seed(seed, sample) for seed in (0, 1, 11) for sample in ("a", "b", "1a")}
    assert len(seeds) == 9
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(0, "a") == sample_seed(0, "a")
