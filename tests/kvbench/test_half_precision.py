"""Half precision on processors that do not multiply in it."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from kvbench.half_precision import multiplied_slowly, multiply_in_float32
from kvbench.models import DTYPES, find
from tiny_models import CONFIGS, tiny_network

HALF = [torch.bfloat16, torch.float16]
TIED = LlamaConfig(**{**CONFIGS["llama"].to_dict(), "tie_word_embeddings": True})


@pytest.mark.parametrize("dtype", HALF)
def test_a_linear_layer_rounds_the_exact_product_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(300, 40).to(dtype)
    inputs = torch.randn(50, 300).to(dtype)
    exact = nn.functional.linear(inputs.double(), linear.weight.double(), linear.bias.double())
    multiply_in_float32(linear)
    output = linear(inputs)
    assert output.dtype == dtype
    # Half a unit in the last place, and what summing 300 products in float32 may add to it.
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), exact, rtol=0.5 * unit, atol=1e-5)


@pytest.mark.parametrize("dtype", HALF)
def test_a_network_stays_what_it_was_but_for_rounding(dtype: torch.dtype) -> None:
    tokens = torch.arange(3, 200).unsqueeze(0)
    plain, widened = tiny_network(TIED, dtype), tiny_network(TIED, dtype)
    multiply_in_float32(widened)
    assert widened.dtype == dtype
    assert widened.get_input_embeddings().weight.dtype == dtype
    with torch.inference_mode():
        expected, logits = (network(tokens, use_cache=False).logits for network in (plain, widened))
    assert logits.dtype == dtype
    assert (logits - expected).abs().mean() < 4 * torch.finfo(dtype).eps * expected.abs().mean()


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_widened_where_that_is_faster_and_nowhere_else(dtype: str, model_folder: Path) -> None:
    network = find(str(model_folder)).load(dtype, "cpu", "sdpa").network
    wide = multiplied_slowly(DTYPES[dtype], "cpu")
    linear = {module.weight.dtype for module in network.modules() if isinstance(module, nn.Linear)}
    assert linear == {torch.float32 if wide else DTYPES[dtype]}
    assert not (wide and DTYPES[dtype] not in HALF)
