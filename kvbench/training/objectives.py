"""What can be minimised to learn a ranking: the expected cost itself, exactly or from samples, and five stand-ins.

Each objective maps the scores of drawn tokens, `[agents, m]`, to a loss per agent, `[agents]`. Throughout, s are the
scores, u is the future attention, w how many tokens of the cache a drawn one stands for, and the cost of a
permutation σ over all budgets is C(σ) = Σ_b b · u_{σ_b} (KVP, arXiv:2602.10238, section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kvbench.errors import unknown
from kvbench.training.draws import Draw

Objective = Callable[[Tensor, Draw], Tensor]

PERMUTATIONS = 16
"""How many permutations RLOO samples."""
_LARGEST_ADVANTAGE = 2.0


def exact(scores: Tensor, draw: Draw) -> Tensor:
    """Return the expected cost of a Plackett–Luce permutation, as a multiple of the least: E[C(σ)] / C(σ*).

    E[C] = Σ_i u_i E[rank_i] with E[rank_i] = 1 + Σ_{j≠i} P(j before i) and P(j before i) = sigmoid(s_j − s_i). Its
    gradient is the policy gradient without its variance. Pairs are weighted by how seldom they are drawn, so
    that the expectation over draws is the value of the whole cache.
    """
    pairs: Tensor = _PairSum.apply(scores, draw.future, draw.pair_weights)  # type: ignore[no-untyped-call]
    return ((draw.weights * draw.future).sum(dim=-1) + pairs) / draw.best


class _PairSum(torch.autograd.Function):
    """Σ_ij W_ij u_i sigmoid(s_j − s_i) per agent, for a symmetric W, with its gradient.

    The gradient is P u − u ⊙ P 1 with P_ij = W_ij sigmoid'(s_j − s_i), symmetric too. Both come from one pass over the
    pairs of one agent after the other, in memory that is used again: several times as fast as autograd's own.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, future: Tensor, pair_weights: Tensor) -> Tensor:
        before, weighted = torch.empty_like(pair_weights), torch.empty_like(pair_weights)
        sums, gradients = torch.empty_like(scores[:, 0]), torch.empty_like(scores)
        for agent, (s, u) in enumerate(zip(scores, future, strict=True)):
            torch.sub(s, s.unsqueeze(1), out=before).sigmoid_()  # [i, j]: j before i
            torch.mul(before, pair_weights, out=weighted)
            sums[agent] = u @ weighted.sum(dim=1)
            weighted.mul_(before.neg_().add_(1))
            gradients[agent] = weighted @ u - u * weighted.sum(dim=1)
        ctx.save_for_backward(gradients)
        return sums

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        [gradients] = ctx.saved_tensors
        return gradients * grads[0].unsqueeze(-1), None, None


def rloo(scores: Tensor, draw: Draw) -> Tensor:
    """Return a loss whose gradient is that of REINFORCE with a leave-one-out baseline over K permutations.

    Σ_k −A_k log P(σ_k) / K, where R_k = −C(σ_k) / C(σ*), A_k = R_k minus the mean R of the others, divided by the
    standard deviation of all A and clamped to ±2, as in the paper.
    """
    permutations = sample_permutations(scores.detach(), PERMUTATIONS, draw.generator)  # [agents, K, m]
    advantages = leave_one_out(-cost(permutations, draw) / draw.best.unsqueeze(-1))
    scale = advantages.std(dim=-1, keepdim=True).clamp(min=1e-8)
    advantages = (advantages / scale).clamp(-_LARGEST_ADVANTAGE, _LARGEST_ADVANTAGE)
    return -(advantages * log_probability(scores, permutations)).mean(dim=-1)


def pointwise(scores: Tensor, draw: Draw) -> Tensor:
    """Return the squared error of s as a prediction of u in units of its mean: Σ_i w_i (s_i − u_i / ū)² / Σ_i w_i."""
    weights = draw.weights
    mean = (weights * draw.future).sum(dim=-1, keepdim=True) / weights.sum()
    errors = (scores - draw.future / mean.clamp(min=_tiny(mean))) ** 2
    return (weights * errors).sum(dim=-1) / weights.sum()


def ranknet(scores: Tensor, draw: Draw) -> Tensor:
    """Return RankNet's loss (Burges et al., ICML 2005): the mean of −log sigmoid(s_i − s_j) over pairs u_i > u_j."""
    losses = functional.softplus(scores.unsqueeze(-2) - scores.unsqueeze(-1))  # [agents, i, j]
    pairs = draw.pair_weights * (draw.future.unsqueeze(-1) > draw.future.unsqueeze(-2))
    return (pairs * losses).sum(dim=(-1, -2)) / pairs.sum(dim=(-1, -2)).clamp(min=1)


def listnet(scores: Tensor, draw: Draw) -> Tensor:
    """Return ListNet's top-one loss (Cao et al., ICML 2007): −Σ_i p_i log q_i, p_i ∝ w_i u_i, q_i ∝ w_i exp(s_i)."""
    wanted = draw.weights * draw.future
    wanted = wanted / wanted.sum(dim=-1, keepdim=True).clamp(min=_tiny(wanted))
    return -(wanted * (scores + draw.weights.log()).log_softmax(dim=-1)).sum(dim=-1)


def softsort(scores: Tensor, draw: Draw) -> Tensor:
    """Return the squared error of ranks that SoftSort makes differentiable: Σ_i w_i ((r̂_i − r_i) / m)² / Σ_i w_i.

    r_i is the rank by u, r̂_i the one by s: `soft_ranks`.
    """
    return _rank_loss(scores, draw.weights.expand_as(scores), draw)


def weighted_softsort(scores: Tensor, draw: Draw) -> Tensor:
    """Return `softsort`'s loss with each token weighted by its u: Σ_i w_i u_i ((r̂_i − r_i) / m)² / Σ_i w_i u_i."""
    return _rank_loss(scores, draw.weights * draw.future, draw)


OBJECTIVES: dict[str, Objective] = {
    "exact": exact,
    "rloo": rloo,
    "pointwise": pointwise,
    "ranknet": ranknet,
    "listnet": listnet,
    "softsort": softsort,
    "weighted-softsort": weighted_softsort,
}


def find_objective(name: str) -> Objective:
    """Return an objective by its name.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in OBJECTIVES:
        raise unknown("objective", name, OBJECTIVES)
    return OBJECTIVES[name]


def sample_permutations(scores: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Sample from Plackett–Luce by Gumbel-sort: int64 `[agents, count, m]`, first token first."""
    uniform = torch.rand(len(scores), count, scores.shape[-1], generator=generator, device=generator.device)
    gumbel = -(-uniform.clamp(min=_tiny(uniform)).log()).log()
    return (scores.unsqueeze(1) + gumbel.to(scores.device)).argsort(dim=-1, descending=True)


def log_probability(scores: Tensor, permutations: Tensor) -> Tensor:
    """Return log P(σ) = Σ_b (s_{σ_b} − log Σ_{c≥b} exp s_{σ_c}) under Plackett–Luce, `[agents, K]`.

    Args:
        scores: `[agents, m]`.
        permutations: int64 `[agents, K, m]`.
    """
    sorted_scores = scores.unsqueeze(1).expand(permutations.shape).gather(-1, permutations)
    remaining = sorted_scores.flip(-1).logcumsumexp(dim=-1).flip(-1)
    return (sorted_scores - remaining).sum(dim=-1)


def cost(permutations: Tensor, draw: Draw) -> Tensor:
    """Return C(σ) = Σ_b b · u_{σ_b}, where a drawn token takes up as many ranks as it stands for tokens.

    Args:
        permutations: int64 `[agents, K, m]`.
        draw: The drawn tokens.

    Returns:
        `[agents, K]`.
    """
    weights = draw.weights[permutations]
    future = draw.future.unsqueeze(1).expand(permutations.shape).gather(-1, permutations)
    ranks = weights.cumsum(dim=-1) - (weights - 1) / 2  # a token's own copies hold the ranks around its own
    return (weights * future * ranks).sum(dim=-1)


def leave_one_out(rewards: Tensor) -> Tensor:
    """Return each reward less the mean of the others, `[…, K]`."""
    count = rewards.shape[-1]
    return (rewards - rewards.mean(dim=-1, keepdim=True)) * count / (count - 1)


def soft_ranks(scores: Tensor) -> Tensor:
    """Return differentiable ranks, from 1, by SoftSort (Prillo and Eisenschlos, ICML 2020).

    The b-th row of its matrix is softmax_i(−|s_(b) − s_i|), s_(b) the b-th largest score: which token is the
    b-th. A token's rank is the mean of b over its column.
    """
    sorted_scores = scores.sort(dim=-1, descending=True).values
    matrix = (-(sorted_scores.unsqueeze(-1) - scores.unsqueeze(-2)).abs()).softmax(dim=-1)  # [agents, b, i]
    ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    return torch.einsum("abi,b->ai", matrix, ranks) / matrix.sum(dim=-2)


def _rank_loss(scores: Tensor, weights: Tensor, draw: Draw) -> Tensor:
    order = draw.future.argsort(dim=-1, descending=True, stable=True)
    ranks = torch.empty_like(scores).scatter_(
        -1, order, torch.arange(1, draw.m + 1, device=scores.device, dtype=scores.dtype).expand_as(order)
    )
    errors = ((soft_ranks(scores) - ranks) / draw.m) ** 2
    return (weights * errors).sum(dim=-1) / weights.sum(dim=-1).clamp(min=_tiny(weights))


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
