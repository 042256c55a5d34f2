"""How well agents rank traces: the normalised cost over all budgets."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from kvbench.agents import Agents
from kvbench.cost import normalised_cost
from kvbench.press import by_score
from kvbench.ranking import Protect
from kvbench.traces import Trace


@torch.no_grad()
def normalised_costs(agents: Agents, trace: Trace, layers: Iterable[int]) -> Tensor:
    """Return C(σ) / C(σ*) of the agents' ranking at a trace's last cut, where the benchmark compresses.

    Args:
        agents: The agents.
        trace: The sequence.
        layers: The number in the model of each layer of the trace.

    Returns:
        float64 `[layers, kv_heads]`; 1 is the best that any ranking can have.
    """
    n = trace.entry.tokens
    future = trace.future[n]
    positions = torch.arange(n).expand(1, future.shape[1], -1)
    costs = []
    for index, layer in enumerate(layers):
        scores = agents.score(layer, trace.keys[index].unsqueeze(0), trace.values[index].unsqueeze(0), positions)
        costs.append(normalised_cost(future[index].unsqueeze(0), by_score(scores), Protect(0, 0)))
    return torch.cat(costs)
