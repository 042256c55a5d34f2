"""Keyformer against its definition in float64, and its noise."""

import numpy as np
import torch
from scipy import stats

from kvbench.check import Shape, random_layer
from kvbench.press import LayerCache
from kvbench.presses.keyformer import gumbel
from kvbench.registry import make_press

SHAPE = Shape(kv_heads=2, heads=4, head_dim=8)
N = 150  # three blocks of queries


def noise(layer: LayerCache, seed: int = 0) -> torch.Tensor:
    """The noise of every pair of query and key, `[kv_heads, g, m, n]`."""
    generator = layer.generator(seed)
    pairs = torch.zeros(*layer.queries.shape[1:4], layer.n, dtype=torch.float64)
    for rows, logits in layer.logits():
        pairs[..., rows, : logits.shape[-1]] = gumbel(generator, logits.shape[1:]).double()
    return pairs


def definition(layer: LayerCache, tau_init: float, tau_end: float) -> torch.Tensor:
    """f_i = Σ_t softmax_t((logit_ti + G_ti) / τ_t)_i, mean over the group: `[batch, kv_heads, n]`."""
    m, n = layer.queries.shape[3], layer.n
    logits = layer.queries.double() @ layer.keys.double().unsqueeze(2).transpose(-1, -2) * layer.scaling
    step = torch.arange(n - m, n, dtype=torch.float64).unsqueeze(-1) / (n - 1)
    noisy = (logits + noise(layer)) / (tau_init + (tau_end - tau_init) * step)
    later = torch.arange(n) > torch.arange(n - m, n).unsqueeze(-1)
    return noisy.masked_fill(later, -torch.inf).softmax(-1).sum(dim=-2).mean(dim=2)


def assert_split(ranking: torch.Tensor, scores: torch.Tensor, share: float) -> None:
    """Every budget holds ⌊share · b⌋ recent tokens and the best scored of the others."""
    for kept, values in zip(ranking.flatten(0, 1).tolist(), scores.flatten(0, 1).tolist(), strict=True):
        by_value = sorted(range(len(kept)), key=lambda token: -values[token])
        for budget in range(1, len(kept) + 1):
            recent = set(range(len(kept) - int(share * budget + 1e-9), len(kept)))
            others = [token for token in by_value if token not in recent]
            assert set(kept[:budget]) == recent | set(others[: budget - len(recent)])


def test_every_budget_holds_the_recent_window_and_the_best_scored_of_the_rest() -> None:
    layer = random_layer(SHAPE, N)
    assert_split(make_press("keyformer").sort(layer), definition(layer, 1, 2), 0.3)


def test_parameters_and_the_newest_chunk_s_queries() -> None:
    layer = random_layer(SHAPE, N, queries=70)
    press = make_press("keyformer:recent=0.5,tau_init=0.5,tau_end=1.5")
    assert_split(press.sort(layer), definition(layer, 0.5, 1.5), 0.5)


def test_noise_is_standard_gumbel_and_independent() -> None:
    draws = gumbel(np.random.default_rng(0), (200, 999)).double()
    assert stats.kstest(draws.flatten().numpy(), stats.gumbel_r.cdf).pvalue > 0.01
    assert abs(draws.mean().item() - np.euler_gamma) < 0.01
    assert torch.corrcoef(draws).fill_diagonal_(0).abs().max() < 0.2  # rows: 200 queries
    assert torch.corrcoef(draws.T).fill_diagonal_(0).abs().max() < 0.4  # columns: 999 keys


def test_noise_depends_on_the_seeds_and_the_layer() -> None:
    layer = random_layer(SHAPE, N)
    ranking = make_press("keyformer").sort(layer)
    assert not torch.equal(make_press("keyformer:seed=1").sort(layer), ranking)
    assert not torch.equal(noise(layer, seed=1), noise(layer))
