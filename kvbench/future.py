"""The future attention u of the KVP paper: what each context token gets from the tokens that come after it.

u_i = Σ_{j≥n} max over the query heads of A(j, i) for a context of n tokens, where A is the causal softmax over context
and future tokens in float32 (KVP, arXiv:2602.10238, the reward of section 3; only rows after the context count).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_LOGITS = {"cpu": 1 << 18}
"""Attention logits of one block: on a processor, what its cache holds."""
_LOGITS_ELSEWHERE = 1 << 26


def future_attention(
    query: Tensor, keys: Tensor, own_keys: Tensor, scaling: float, visible_own: Tensor | None = None
) -> Tensor:
    """Return u of one layer: per context token the attention of all future queries.

    Args:
        query: The future tokens' queries, `[1, heads, f, d]`.
        keys: The context's keys, `[1, kv_heads, n, d]`.
        own_keys: The future tokens' keys, `[1, kv_heads, f, d]`.
        scaling: What query·key is multiplied by.
        visible_own: Which future token sees which, bool `[f, f]`; every earlier one and itself by default.

    Returns:
        float32 `[1, kv_heads, n]`.
    """
    everything = torch.cat([keys, own_keys], dim=2)
    return _received(query, everything, scaling, visible_own)[..., : keys.shape[2]]


def attention_after_cuts(query: Tensor, keys: Tensor, scaling: float, cuts: Sequence[int]) -> list[Tensor]:
    """Return for several cuts of a context what the tokens before a cut get from those after it.

    It is u of a context that ends at the cut and has the rest as its future. One pass over the queries serves all
    cuts: it goes backwards, so that what has been received so far is at each cut what came after it.

    Args:
        query: The queries from the first cut on, `[1, heads, n − cuts[0], d]`.
        keys: The whole context's keys, `[1, kv_heads, n, d]`.
        scaling: What query·key is multiplied by.
        cuts: Ascending, from 1 to n; the cut n has no future within the context.

    Returns:
        Per cut c float32 `[1, kv_heads, c]`.
    """
    n = keys.shape[2]
    received = torch.zeros(1, keys.shape[1], n, device=keys.device)
    parts: list[Tensor] = []
    for cut, stop in reversed(list(zip(cuts, [*cuts[1:], n], strict=True))):
        if cut < stop:
            rows = query[:, :, cut - cuts[0] : stop - cuts[0]]
            received[..., :stop] += _received(rows, keys[:, :, :stop], scaling)
        parts.append(received[..., :cut].clone())
    return parts[::-1]


def _received(query: Tensor, keys: Tensor, scaling: float, visible: Tensor | None = None) -> Tensor:
    """Return what each of m keys gets from the last r tokens, `[1, kv_heads, m]`, a block of queries at a time.

    Args:
        query: The last r tokens' queries, `[1, heads, r, d]`.
        keys: `[1, kv_heads, m, d]`.
        scaling: What query·key is multiplied by.
        visible: Which of the last r tokens sees which of them, bool `[r, r]`; causal by default.
    """
    kv_heads, m = keys.shape[1:3]
    r = query.shape[2]
    grouped = query[0].unflatten(0, (kv_heads, -1))  # [kv_heads, g, r, d]
    block = max(1, _LOGITS.get(keys.device.type, _LOGITS_ELSEWHERE) // (grouped.shape[1] * m))
    received = torch.zeros(1, kv_heads, m, device=keys.device)
    for head in range(kv_heads):
        transposed = keys[0, head].float().T.contiguous()  # [d, m]
        for start in range(0, r, block):
            stop = min(start + block, r)
            seen = m - r + stop
            rows = grouped[head, :, start:stop].float() * scaling  # [g, rows, d]
            logits = (rows.flatten(0, 1) @ transposed[:, :seen]).unflatten(0, rows.shape[:2])  # [g, rows, seen]
            if visible is not None:
                logits[..., m - r :].masked_fill_(~visible[start:stop, :stop], -torch.inf)
            else:  # only within the block is anything later than a query
                later = torch.ones(stop - start, stop - start, dtype=torch.bool, device=keys.device).triu(1)
                logits[..., seen - (stop - start) :].masked_fill_(later, -torch.inf)
            received[0, head, :seen] += logits.softmax(dim=-1).amax(dim=0).sum(dim=0)
    return received
