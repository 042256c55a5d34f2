"""How well agents rank traces: the normalised cost over all budgets."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from kvbench.agents import Agents
from kvbench.press import by_score
from kvbench.traces import Trace
from kvbench.training.draws import best_cost


@torch.no_grad()
def normalised_costs(agents: Agents, trace: Trace, layers: Iterable[int]) -> Tensor:
    """Return C(σ) / C(σ*) of the agents' ranking at a trace's last cut, where the benchmark compresses.

    Args:
        agents: The agents.
        trace: The sequence.
        layers: The number in the model of each layer of the trace.

    Returns:
        `[layers, kv_heads]`; 1 is the best that any ranking can have.
    """
    n = trace.entry.tokens
    future = trace.future[n]
    positions = torch.arange(n).expand(1, future.shape[1], -1)
    costs = []
    for index, layer in enumerate(layers):
        scores = agents.score(layer, trace.keys[index].unsqueeze(0), trace.values[index].unsqueeze(0), positions)[0]
        ranked = future[index].gather(-1, by_score(scores))
        costs.append((ranked * torch.arange(1, n + 1)).sum(dim=-1) / best_cost(future[index]))
    return torch.stack(costs)
