"""Attention in parts: partial results and their merging against one whole softmax."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kvbench import attention
from kvbench.attention import merge, partial_attention
from kvbench.errors import UsageError
from kvbench.ranked_cache import GridRows, RankedCache

CPU = "cpu"


def reference(query: Tensor, keys: Tensor, values: Tensor, scaling: float, visible: Tensor | None = None) -> Tensor:
    logits = query @ keys.transpose(-1, -2) * scaling
    if visible is not None:
        logits = logits.masked_fill(~visible, -torch.inf)
    return logits.softmax(-1) @ values


@given(st.integers(1, 9), st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 2**31))
def test_parts_merge_into_the_whole(q: int, lengths: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    query = torch.randn(2, 3, q, 8, dtype=torch.float64)
    keys, values = torch.randn(2, 2, 3, sum(lengths), 8, dtype=torch.float64)
    merged: tuple[Tensor, Tensor] | None = None
    start = 0
    for length in lengths:
        span = slice(start, start + length)
        part = partial_attention(query, keys[:, :, span], values[:, :, span], 0.3)
        merged = part if merged is None else merge(merged, part)
        start += length
    assert merged is not None
    torch.testing.assert_close(merged[0], reference(query, keys, values, 0.3), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_portable_kernel_equals_the_cpus_and_obeys_its_block_size(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    query = torch.randn(2, 3, 11, 8, dtype=dtype)
    keys, values = torch.randn(2, 2, 3, 17, 8, dtype=dtype)
    visible = torch.rand(11, 17) < 0.5
    visible[:, 0] = True
    fast = partial_attention(query, keys, values, 0.3, visible)
    portable = attention._in_blocks(query, keys, values, 0.3, visible)
    monkeypatch.setattr(attention, "_LARGEST_LOGITS", 2 * 3 * 17 * 2)
    in_blocks = attention._in_blocks(query, keys, values, 0.3, visible)
    for other in (portable, in_blocks):
        torch.testing.assert_close(fast, other, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fast[0], reference(query, keys, values, 0.3, visible), atol=1e-5, rtol=1e-5)


@given(st.data(), st.integers(0, 2**31))
def test_a_grid_attends_to_each_variants_prefix(data: st.DataObject, seed: int) -> None:
    torch.manual_seed(seed)
    n, presses, kv_heads, d, q = 30, 3, 2, 4, 5
    budgets = tuple(sorted(data.draw(st.sets(st.integers(1, n), min_size=1, max_size=4))))
    every = [(press, budget) for press in range(presses) for budget in range(len(budgets))]
    cells = sorted(data.draw(st.sets(st.sampled_from(every), min_size=1)))
    keys, values = torch.randn(2, 1, kv_heads, n, d, dtype=torch.float64)
    rankings = [torch.stack([torch.randperm(n) for _ in range(kv_heads)]).unsqueeze(0) for _ in range(presses)]
    cache = RankedCache(presses, budgets)
    for press, ranking in enumerate(rankings):
        cache.put(0, press, keys, values, ranking)
    query = torch.randn(len(cells), kv_heads, q, d, dtype=torch.float64)
    out, lse = cache.attend(0, query, GridRows.of(cells, torch.device(CPU)), 0.5)
    for row, (press, budget) in enumerate(cells):
        kept = rankings[press][0, :, : budgets[budget]].unsqueeze(-1).expand(-1, -1, d)
        k, v = keys[0].gather(1, kept), values[0].gather(1, kept)
        torch.testing.assert_close(out[row], reference(query[row], k, v, 0.5), atol=1e-6, rtol=1e-6)
        expected = (query[row] @ k.transpose(-1, -2) * 0.5).logsumexp(-1)
        torch.testing.assert_close(lse[row], expected, atol=1e-5, rtol=1e-5)
        assert cache.kept(press, budget).most == budgets[budget]


@pytest.mark.parametrize(("argument", "words"), [("softcap", "soft-capped"), ("s_aux", "sinks")])
def test_attention_that_cannot_be_answered_honestly_is_refused(argument: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        attention._refuse_unsupported(torch.nn.Linear(1, 1), {argument: 30.0})
