"""Tiny random models of each family that kvbench is tested on, built from a config, with a tokenizer of their own."""

from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from kvbench.models import Model, facts_of

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "initializer_range": 0.2,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_SIZES),
    "qwen2": Qwen2Config(**_SIZES),
    "qwen3": Qwen3Config(**_SIZES),
    "mistral": MistralConfig(**_SIZES, sliding_window=None),
    "phi3": Phi3Config(**{key: value for key, value in _SIZES.items() if key != "head_dim"}),
    "gemma3": Gemma3TextConfig(
        **_SIZES,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=8,
    ),
}


def tiny_network(config: PreTrainedConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> PreTrainedModel:
    """Make a random network, the same for the same seed."""
    torch.manual_seed(seed)
    network: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return network.eval()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Make a byte-level tokenizer: every byte is a token, after three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {letter: 3 + i for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=CHAT_TEMPLATE,
    )


def tiny_model(family: str, dtype: torch.dtype = torch.float64, attention: str = "sdpa", seed: int = 0) -> Model:
    """Make a tiny model of a family, a key of `CONFIGS`."""
    network = tiny_network(CONFIGS[family], dtype, seed)
    return Model(network, tiny_tokenizer(), facts_of(network.config, family, "random"), attention)


def masked_forward(network: Any, sequence: Tensor, visible: Tensor | Mapping[int, Tensor]) -> Tensor:
    """Run a plain forward pass under masks: the reference for what eviction must amount to.

    Args:
        network: A tiny network.
        sequence: int64 `[length]`.
        visible: Which token sees which, `[length, length]` for all full-attention layers or per layer
            `[kv_heads, length, length]`; sliding-window layers keep their own.

    Returns:
        The logits, `[length, vocabulary]`.
    """
    length = len(sequence)
    distance = torch.arange(length).unsqueeze(1) - torch.arange(length)

    def attention(
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        _: Tensor | None,
        scaling: float,
        sliding_window: int | None = None,
        **__: Any,
    ) -> tuple[Tensor, None]:
        group = q.shape[1] // k.shape[1]
        if sliding_window:
            seen = ((distance >= 0) & (distance < sliding_window)).expand(k.shape[1], -1, -1)
        else:
            seen = visible.expand(k.shape[1], -1, -1) if isinstance(visible, Tensor) else visible[module.layer_idx]
        k, v, seen = (t.repeat_interleave(group, dim=-3) for t in (k, v, seen))
        weights = (q @ k.transpose(-1, -2) * scaling).masked_fill(~seen, -torch.inf).softmax(-1)
        return (weights @ v).transpose(1, 2), None

    AttentionInterface.register("masked_reference", attention)
    network.set_attn_implementation("masked_reference")
    with torch.inference_mode():
        logits: Tensor = network(sequence.unsqueeze(0), use_cache=False).logits[0]
    return logits
