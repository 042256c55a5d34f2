"""Attention weights of plain transformers, and u by its definition: what future attention is held to."""

import torch
from torch import Tensor

from tiny_models import CONFIGS, tiny_network


def attention_weights(family: str, sequence: Tensor) -> dict[int, Tensor]:
    """Every full-attention layer's weights by transformers' own eager attention, `[kv_heads, g, length, length]`."""
    network = tiny_network(CONFIGS[family])
    network.set_attn_implementation("eager")
    attentions = network(sequence.unsqueeze(0), output_attentions=True).attentions
    kinds = getattr(network.config, "layer_types", None) or ["full_attention"] * len(attentions)
    return {
        layer: weights[0].unflatten(0, (network.config.num_key_value_heads, -1))
        for layer, (weights, kind) in enumerate(zip(attentions, kinds, strict=True))
        if kind == "full_attention"
    }


def received_after(weights: Tensor, cut: int) -> Tensor:
    """u by its definition: rows from the cut on, the most of the group per query and key, summed: `[kv_heads, cut]`."""
    received = torch.zeros(len(weights), cut, dtype=torch.float64)
    for head in range(len(weights)):
        for query in range(cut, weights.shape[-1]):
            for key in range(cut):
                received[head, key] += max(weights[head, :, query, key].tolist())
    return received
