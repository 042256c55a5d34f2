"""What one step of training sees of a sequence: tokens drawn so that sums over pairs keep their expectation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvbench.cost import total_cost


@dataclass(frozen=True)
class Draw:
    """Tokens of one cache, drawn for each agent: those with the largest u for certain, the rest at random.

    Attributes:
        tokens: The tokens' places in the cache, int64 `[agents, m]`, the certain ones first.
        future: Their future attention u, float32 `[agents, m]`.
        certain: How many are drawn for certain.
        best: C(σ*) of the whole cache, `[agents]`.
        n: Tokens of the whole cache.
        generator: Where an objective's own random numbers come from.
    """

    tokens: Tensor
    future: Tensor
    certain: int
    best: Tensor
    n: int
    generator: torch.Generator

    @property
    def m(self) -> int:
        """How many tokens are drawn."""
        return self.tokens.shape[-1]

    @property
    def weights(self) -> Tensor:
        """For how many tokens of the cache each drawn one stands, `[m]`: one over its chance to be drawn."""
        weights = self.future.new_ones(self.m)
        if self.m > self.certain:
            weights[self.certain :] = (self.n - self.certain) / (self.m - self.certain)
        return weights

    @property
    def pair_weights(self) -> Tensor:
        """One over the chance that two different tokens are drawn together, `[m, m]`; 0 on the diagonal."""
        weights = self.weights
        pairs = weights.unsqueeze(1) * weights
        drawn, rest = self.m - self.certain, self.n - self.certain
        if drawn > 1:
            pairs[self.certain :, self.certain :] = rest * (rest - 1) / (drawn * (drawn - 1))
        return pairs.fill_diagonal_(0)

    def of(self, agents: slice) -> Draw:
        """Return the draw for some of the agents."""
        return Draw(self.tokens[agents], self.future[agents], self.certain, self.best[agents], self.n, self.generator)


def draw_tokens(future: Tensor, m: int, certain: float, generator: np.random.Generator) -> Draw:
    """Draw `m` tokens of a cache for each agent, or all where there are no more.

    Most of u lies on few tokens. Taking these for certain, and a random part of the others, estimates the cost of
    the whole cache with far less noise than as many tokens at random.

    Args:
        future: u, float32 `[agents, n]`.
        m: How many tokens, 4 or more: two of the random ones are needed for pairs of them.
        certain: Which share of them are those with the largest u.
        generator: Where the rest comes from; the same tokens of the order by u for all agents.
    """
    n = future.shape[-1]
    order = future.argsort(dim=-1, descending=True, stable=True)
    best = total_cost(future, order).float()
    own = torch.Generator(future.device).manual_seed(int(generator.integers(2**31)))
    if n <= m:
        return Draw(order, future.gather(-1, order), n, best, n, own)
    first = int(certain * m)
    rest = torch.from_numpy(first + np.sort(generator.choice(n - first, m - first, replace=False)))
    places = torch.cat([torch.arange(first), rest]).to(future.device)
    tokens = order[:, places]
    return Draw(tokens, future.gather(-1, tokens), first, best, n, own)
