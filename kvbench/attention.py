"""How kvbench gets between a model and its attention kernel, and attention that can be computed in parts.

transformers lets a model's attention function be chosen by name. kvbench registers one per kernel; it hands each
layer's call to the `AttentionStep` that travels with the forward pass as a keyword argument. The same mechanism
serves every architecture, sees keys and queries as the kernel does (after the rotary embedding), and needs no
cache object of transformers: what a step remembers of a layer is the step's own business.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from kvbench.errors import UsageError

_LARGEST_LOGITS = 1 << 26
"""Most attention logits that the portable kernel forms at once (256 MiB in float32)."""


@dataclass(frozen=True)
class AttentionCall:
    """One layer's attention call: the tokens of this forward pass only.

    Attributes:
        layer: The layer's number.
        query: `[batch, heads, t, d]`, after the rotary embedding.
        key: `[batch, kv_heads, t, d]`, after the rotary embedding.
        value: `[batch, kv_heads, t, d]`.
        scaling: What query·key is multiplied by.
        window: Tokens that a sliding-window layer looks back over, itself included; none for full attention.
        kernel: Runs the model's own kernel, causally, over these tokens: `[batch, t, heads, d]`.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    window: int | None
    kernel: Callable[[], Tensor]


class AttentionStep(Protocol):
    """What one forward pass does in place of the model's attention."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the attention output of one layer, `[batch, t, heads, d]`."""
        ...


def register(kernel: str) -> str:
    """Register kvbench's attention on top of `kernel` and return the name to load it by.

    The causal mask that transformers builds for `kernel` is passed on to it.
    """
    name = f"kvbench_{kernel}"

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        kvbench_step: AttentionStep,
        scaling: float,
        sliding_window: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        _refuse_unsupported(module, kwargs)
        # A head's tokens side by side: the CPU's kernel reads them faster, and presses gather rows of them.
        key, value = key.contiguous(), value.contiguous()

        def run_kernel() -> Tensor:
            function, target = _kernel(kernel, module)
            output: Tensor = function(
                target,
                query,
                key,
                value,
                attention_mask,
                scaling=scaling,
                sliding_window=sliding_window,
                **kwargs,
            )[0]
            return output

        window = _effective_window(sliding_window, module)
        call = AttentionCall(_layer_index(module), query, key, value, scaling, window, run_kernel)
        return kvbench_step.attend(call), None

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, AttentionMaskInterface()[kernel])
    return name


def _refuse_unsupported(module: nn.Module, kwargs: dict[str, Any]) -> None:
    for argument, what in (("softcap", "soft-capped logits"), ("s_aux", "learned attention sinks")):
        if kwargs.get(argument) is not None:
            raise UsageError(
                f"{type(module).__name__} uses {what}: kvbench cannot answer from a compressed cache with them yet"
            )


def _kernel(kernel: str, module: nn.Module) -> tuple[Callable[..., tuple[Tensor, Any]], Any]:
    """Return the kernel's function and the module to call it with."""
    if kernel == "eager":  # each family brings its own
        return sys.modules[type(module).__module__].eager_attention_forward, module
    function = AttentionInterface()[kernel]
    if not kernel.startswith("flash"):
        return function, module
    # The flash function picks its library by the name in the module's config, which is kvbench's.
    config = SimpleNamespace(_attn_implementation=kernel, dtype=next(module.parameters()).dtype)
    stand_in = SimpleNamespace(config=config, is_causal=True, layer_idx=_layer_index(module), modules=module.modules)
    return function, stand_in


def _layer_index(module: nn.Module) -> int:
    return cast(int, module.layer_idx)


def _effective_window(sliding_window: int | None, module: nn.Module) -> int | None:
    """Return the window, or none if it holds all positions that the model knows: that is full attention."""
    config: Any = module.config
    if sliding_window is None or sliding_window >= config.max_position_embeddings:
        return None
    return sliding_window


def partial_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, visible: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attend to some of the keys, so that the result can be merged with attention to the others.

    Args:
        query: `[batch, heads, q, d]`.
        key: `[batch, heads, k, d]`, k ≥ 1.
        value: `[batch, heads, k, d]`.
        scaling: What query·key is multiplied by.
        visible: Which keys a query sees, bool `[q, k]`, at least one each; all by default.

    Returns:
        The softmax-weighted values `[batch, heads, q, d]` and the log of the softmax's denominator
        `[batch, heads, q]`, both at least in float32.
    """
    if query.device.type == "cpu":
        mask = None
        if visible is not None:
            mask = torch.zeros_like(visible, dtype=query.dtype).masked_fill_(~visible, -torch.inf)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=scaling
        )
        return out.to(lse.dtype), lse
    return _in_blocks(query, key, value, scaling, visible)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Attend causally within one chunk, so that the result can be merged with attention to what came before.

    Args:
        query: `[rows, heads, t, d]`.
        key: `[rows, kv_heads, t, d]`, of the same tokens.
        value: `[rows, kv_heads, t, d]`.
        scaling: What query·key is multiplied by.

    Returns:
        Output `[rows, heads, t, d]` and log-sum-exp `[rows, heads, t]`, both at least in float32.
    """
    group = query.shape[1] // key.shape[1]
    if query.device.type == "cpu":
        key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, is_causal=True, scale=scaling
        )
        return out.to(lse.dtype), lse
    t = query.shape[2]
    visible = torch.ones(t, t, dtype=torch.bool, device=query.device).tril().repeat(group, 1)
    folded = query.reshape(*key.shape[:2], group * t, -1)
    out, lse = _in_blocks(folded, key, value, scaling, visible)
    return out.reshape(*query.shape[:3], -1), lse.reshape(query.shape[:3])


def _in_blocks(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, visible: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run the portable kernel over so few queries at once that their logits stay small."""
    rows = max(1, _LARGEST_LOGITS // (query[..., 0, 0].numel() * key.shape[-2]))
    outs, lses = [], []
    for start in range(0, query.shape[-2], rows):
        block = slice(start, start + rows)
        seen = None if visible is None else visible[block]
        out, lse = _portable_attention(query[..., block, :], key, value, scaling, seen)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, dim=-2), torch.cat(lses, dim=-1)


def _portable_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, visible: Tensor | None
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(query.dtype, torch.float32)
    logits = (query @ key.transpose(-1, -2)).to(wide) * scaling  # [batch, heads, q, k]
    if visible is not None:
        logits.masked_fill_(~visible, -torch.inf)
    lse = logits.logsumexp(-1)
    weights = logits.sub_(lse.unsqueeze(-1)).exp_()
    return (weights.to(value.dtype) @ value).to(wide), lse


def merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Merge attention to two disjoint sets of keys into attention to their union, by their log-sum-exp."""
    (out_a, lse_a), (out_b, lse_b) = a, b
    lse = torch.logaddexp(lse_a, lse_b)
    share_a = (lse_a - lse).exp_().unsqueeze(-1)
    share_b = (lse_b - lse).exp_().unsqueeze(-1)
    return out_a * share_a + out_b * share_b, lse
