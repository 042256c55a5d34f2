"""StreamingLLM: sinks and a window."""

import pytest
import torch

from kvbench.check import Shape, random_layer
from kvbench.registry import make_press

SHAPE = Shape(kv_heads=2, heads=2, head_dim=4)


@pytest.mark.parametrize(("sinks", "n"), [(4, 20), (4, 5), (4, 3), (0, 6), (7, 20)])
def test_every_budget_is_sinks_and_the_newest(sinks: int, n: int) -> None:
    ranking = make_press(f"streaming_llm:sinks={sinks}").sort(random_layer(SHAPE, n))
    for budget in range(1, n + 1):
        first = min(sinks, budget)
        expected = {*range(first), *range(n - (budget - first), n)}
        assert set(ranking[1, 1, :budget].tolist()) == expected


def test_sinks_are_entries_not_positions() -> None:
    """After earlier evictions the oldest entries left are the sinks, whatever their positions."""
    layer = random_layer(SHAPE, 6, queries=6)
    ranking = make_press("streaming_llm:sinks=2").sort(layer)
    assert torch.equal(ranking, torch.tensor([0, 1, 5, 4, 3, 2]).expand(2, 2, 6))
