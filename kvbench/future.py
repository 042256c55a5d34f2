"""The future attention u of the KVP paper: what each context token gets from the tokens that come after it."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 64


def future_attention(
    query: Tensor, keys: Tensor, own_keys: Tensor, scaling: float, visible_own: Tensor | None = None
) -> Tensor:
    """Return u of one layer: per context token the attention of all future queries.

    u_i = Σ_{j>n} max over the query heads of A(j, i), where A is the causal softmax over context and future
    tokens in float32 (KVP, arXiv:2602.10238, the reward of section 3; only rows after the context count).

    Args:
        query: The future tokens' queries, `[1, heads, f, d]`.
        keys: The context's keys, `[1, kv_heads, n, d]`.
        own_keys: The future tokens' keys, `[1, kv_heads, f, d]`.
        scaling: What query·key is multiplied by.
        visible_own: Which future token sees which, bool `[f, f]`; every earlier one and itself by default.

    Returns:
        float32 `[1, kv_heads, n]`.
    """
    kv_heads, n = keys.shape[1:3]
    f = query.shape[2]
    everything = torch.cat([keys, own_keys], dim=2).float().transpose(-1, -2).unsqueeze(2)
    grouped = query.float().unflatten(1, (kv_heads, -1)) * scaling  # [1, kv_heads, g, f, d]
    if visible_own is None:
        visible_own = torch.ones(f, f, dtype=torch.bool, device=keys.device).tril()
    received = torch.zeros(1, kv_heads, n, device=keys.device)
    for start in range(0, f, _BLOCK):
        stop = min(start + _BLOCK, f)
        logits = grouped[..., start:stop, :] @ everything[..., : n + stop]  # [1, kv_heads, g, block, n + stop]
        logits[..., n:].masked_fill_(~visible_own[start:stop, :stop], -torch.inf)
        attention = logits.softmax(dim=-1)
        received += attention[..., :n].amax(dim=2).sum(dim=2)
    return received
