"""Rankings equal the reference implementation's on two layers of SmolLM2-135M."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kvbench.press import LayerCache
from kvbench.registry import make_press


@pytest.mark.parametrize("layer", [0, 15])
@pytest.mark.parametrize("press", ["k_norm", "keydiff", "lagkv", "snapkv", "tova"])
def test_the_best_b_are_the_reference_s_for_every_b(shared: Path, press: str, layer: int) -> None:
    stored = load_file(shared / "fixtures" / "kvpress_scores.safetensors")
    keys, values, queries = (stored[f"{layer}.{name}"].unsqueeze(0) for name in ("keys", "values", "queries"))
    positions = torch.arange(keys.shape[-2]).expand(keys.shape[:-1])
    cache = LayerCache(layer, keys, values, positions, keys.shape[-1] ** -0.5, captured_queries=queries)
    reference = stored[f"{layer}.score.{press}"].unsqueeze(0)
    ranked = reference.gather(-1, make_press(press).sort(cache))
    # The first b are a best set of b for every b if and only if the reference's scores never rise.
    assert (ranked.diff(dim=-1) <= 0).all()
