"""Every registered press keeps the contract, whatever the shape of the cache."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.check import Shape, check_press, random_layer
from kvbench.press import Press
from kvbench.registry import PRESSES, listings, registered

VARIANTS = [
    *registered(PRESSES),
    "h2o:heavy=0.7",
    "k_norm:skip_layers=2",
    "keyformer:recent=0.5,tau_end=1",
    "lagkv:sinks=0,lag=7",
    "snapkv:window=32,kernel=7,pool=max",
    "streaming_llm:sinks=0",
]


@pytest.mark.parametrize("spec", VARIANTS)
def test_every_press_passes_the_check(spec: str, ready_press: Callable[..., Press]) -> None:
    report = check_press(ready_press(spec), repeats=0)
    assert report.passed, [result for result in report.results if not result.passed]


@pytest.mark.parametrize("spec", VARIANTS)
@settings(max_examples=15, deadline=None)
@given(
    shape=st.builds(
        lambda kv_heads, group, head_dim: Shape(kv_heads, kv_heads * group, head_dim),
        st.integers(1, 4),
        st.integers(1, 3),
        st.sampled_from([2, 8, 16]),
    ),
    n=st.integers(1, 160),
    batch=st.integers(1, 3),
    seed=st.integers(0, 2**20),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    captured=st.floats(0, 1),
)
def test_a_ranking_is_a_permutation_at_any_shape(
    spec: str,
    ready_press: Callable[..., Press],
    shape: Shape,
    n: int,
    batch: int,
    seed: int,
    dtype: torch.dtype,
    captured: float,
) -> None:
    queries = max(1, round(captured * n))
    layer = random_layer(shape, n, batch=batch, seed=seed, dtype=dtype, queries=queries)
    ranking = ready_press(spec, shape).sort(layer)
    assert ranking.dtype == torch.int64
    assert torch.equal(ranking.sort(dim=-1).values, torch.arange(n).expand(batch, shape.kv_heads, n))


def test_the_list_of_presses_has_a_short_sentence_for_each() -> None:
    for listing in listings(PRESSES):
        assert listing.summary.endswith("."), listing
        assert 10 < len(listing.summary) <= 80, listing


@pytest.mark.parametrize("spec", [name for name in registered(PRESSES) if name != "kvp"])
def test_parameters_are_described_and_identify_the_press(spec: str, ready_press: Callable[..., Press]) -> None:
    press = ready_press(spec)
    assert all(field.description for field in type(press).model_fields.values())
    assert press.paper
    assert press.identity() == {"version": 1, **press.model_dump()}
