"""What training minimises: closed forms against sampling and enumeration, draws without bias."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kvbench.cost import total_cost
from kvbench.errors import UsageError
from kvbench.press import by_score
from kvbench.training.draws import Draw, draw_tokens
from kvbench.training.objectives import (
    OBJECTIVES,
    cost,
    exact,
    find_objective,
    leave_one_out,
    log_probability,
    rloo,
    sample_permutations,
    soft_ranks,
)


def least_cost(future: Tensor) -> Tensor:
    return total_cost(future, by_score(future))


def whole(future: Tensor, seed: int = 0) -> Draw:
    """All tokens in order of position."""
    agents, n = future.shape
    tokens = torch.arange(n).expand(agents, n)
    return Draw(tokens, future, n, least_cost(future), n, torch.Generator().manual_seed(seed))


def random_case(agents: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores and u in float64."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(agents, n, generator=generator, dtype=torch.float64)
    return scores, torch.rand(agents, n, generator=generator, dtype=torch.float64) ** 4


@given(st.integers(1, 12), st.integers(0, 1000))
def test_the_cost_is_what_all_budgets_evict(n: int, seed: int) -> None:
    _, future = random_case(1, n, seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    sorted_future = future[0, order]
    by_budget = sum(float(sorted_future[budget:].sum()) for budget in range(n))  # C_b for b = 0 … n − 1
    assert cost(order.view(1, 1, -1), whole(future)).item() == pytest.approx(by_budget)
    assert least_cost(future).item() <= by_budget + 1e-9


def test_the_best_cost_is_the_least_of_all_permutations() -> None:
    _, future = random_case(1, 5)
    orders = torch.tensor(list(permutations(range(5)))).unsqueeze(0)
    assert cost(orders, whole(future)).min().item() == pytest.approx(least_cost(future).item())


def test_permutations_have_their_plackett_luce_probabilities() -> None:
    scores, _ = random_case(2, 5)
    orders = torch.tensor(list(permutations(range(5)))).expand(2, -1, -1)
    for agent in range(2):
        strengths = scores[agent].exp()
        for order, found in zip(orders[agent], log_probability(scores, orders)[agent], strict=True):
            left, expected = strengths.sum(), 1.0
            for token in order:
                expected *= float(strengths[token] / left)
                left = left - strengths[token]
            assert found.exp().item() == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(log_probability(scores, orders).exp().sum(-1), torch.ones(2, dtype=torch.float64))


def test_gumbel_sort_samples_from_plackett_luce() -> None:
    scores, _ = random_case(1, 4)
    sampled = sample_permutations(scores, 100_000, torch.Generator().manual_seed(1))[0]
    orders, counts = sampled.unique(dim=0, return_counts=True)
    expected = log_probability(scores, orders.unsqueeze(0))[0].exp()
    assert len(orders) == 24
    torch.testing.assert_close(counts / 100_000, expected.float(), rtol=0, atol=0.006)  # 4 standard deviations


def test_the_expected_rank_in_closed_form_is_the_mean_over_sampled_permutations() -> None:
    scores, _ = random_case(1, 8)
    sampled = sample_permutations(scores, 100_000, torch.Generator().manual_seed(1))[0]
    ranks = sampled.argsort(dim=-1).double() + 1
    error = ranks.std(dim=0) / 100_000**0.5
    for token in range(8):
        future = torch.zeros(1, 8, dtype=torch.float64)
        future[0, token] = 1  # C(σ*) = 1, so that the loss is the token's expected rank
        assert abs(exact(scores, whole(future)).item() - ranks[:, token].mean().item()) < 4 * error[token]


def gradient(loss: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """The gradient of a loss with respect to the scores."""
    scores = scores.clone().requires_grad_()
    return torch.autograd.grad(loss(scores).sum(), scores)[0]


def test_the_exact_gradient_is_that_of_its_formula() -> None:
    scores, future = random_case(3, 9)
    draw = draw_tokens(future, 6, 0.5, np.random.default_rng(0))
    own = scores[:, :6].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: exact(s, draw), own)
    pairs = torch.einsum(
        "aij,ij,ai->a", (own.unsqueeze(1) - own.unsqueeze(2)).sigmoid(), draw.pair_weights, draw.future
    )
    expected = ((draw.weights * draw.future).sum(-1) + pairs) / draw.best
    torch.testing.assert_close(exact(own, draw), expected)


def test_the_exact_gradient_is_the_mean_of_reinforce_with_a_leave_one_out_baseline() -> None:
    scores, future = random_case(1, 6)
    draw = whole(future)
    rounds, k = 20_000, 8
    sampled = sample_permutations(scores, rounds * k, torch.Generator().manual_seed(2))
    advantages = leave_one_out((-cost(sampled, draw) / draw.best).view(rounds, k)).flatten()

    def policy_gradient(s: Tensor) -> Tensor:
        return -(advantages * log_probability(s, sampled)[0]).mean()

    torch.testing.assert_close(
        gradient(policy_gradient, scores), gradient(lambda s: exact(s, draw), scores), rtol=0.03, atol=0.003
    )


def test_the_mean_rloo_gradient_points_where_the_exact_one_does() -> None:
    """Normalising and clamping change its length, not the direction."""
    scores, future = random_case(1, 6)
    draw = whole(future)
    mean = torch.stack([gradient(lambda s: rloo(s, draw), scores) for _ in range(1500)]).mean(dim=0)
    wanted = gradient(lambda s: exact(s, draw), scores)
    assert torch.cosine_similarity(mean, wanted).item() > 0.99


def test_drawn_tokens_cost_on_average_what_all_of_them_do() -> None:
    scores, future = random_case(2, 40)
    wanted = exact(scores, whole(future))
    gradients = torch.zeros_like(scores)
    values = []
    rng = np.random.default_rng(3)
    for _ in range(1500):
        draw = draw_tokens(future, 16, 0.5, rng)
        assert draw.m == 16
        own = scores.gather(1, draw.tokens).requires_grad_()
        values.append(exact(own, draw))
        gradients.scatter_add_(1, draw.tokens, torch.autograd.grad(values[-1].sum(), own)[0] / 1500)
    found = torch.stack(values).detach()
    assert ((found.mean(0) - wanted).abs() < 4 * found.std(0) / 1500**0.5).all()
    expected = gradient(lambda s: exact(s, whole(future)), scores)
    torch.testing.assert_close(gradients, expected, rtol=0.1, atol=0.05 * float(expected.abs().max()))


@given(st.integers(1, 30), st.integers(4, 40), st.integers(0, 100))
def test_a_draw_has_each_token_once_and_the_largest_for_certain(n: int, m: int, seed: int) -> None:
    _, future = random_case(2, n, seed)
    draw = draw_tokens(future, m, 0.5, np.random.default_rng(seed))
    assert draw.m == min(n, m)
    assert float(draw.weights.sum()) == pytest.approx(n)
    assert float(draw.pair_weights.sum()) == pytest.approx(n * (n - 1))
    for agent in range(2):
        tokens = draw.tokens[agent].tolist()
        assert len(set(tokens)) == len(tokens)
        torch.testing.assert_close(future[agent, draw.tokens[agent]], draw.future[agent])
        if n > m:
            largest = future[agent].argsort(descending=True)[: draw.certain]
            assert tokens[: draw.certain] == largest.tolist()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_objective_learns_to_rank(name: str) -> None:
    """Free scores, no network: every objective comes close to the best order of twelve tokens."""
    _, future = random_case(3, 12)
    draw = whole(future)
    scores = random_case(3, 12, seed=9)[0].requires_grad_()  # SoftSort has no gradient among equals
    optimiser = torch.optim.Adam([scores], lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        loss = OBJECTIVES[name](scores, draw)
        assert loss.shape == (3,)
        loss.sum().backward()
        optimiser.step()
    order = scores.detach().argsort(dim=-1, descending=True).unsqueeze(1)
    assert (cost(order, draw)[:, 0] / draw.best).max().item() < 1.1


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_objective_divides_by_zero(name: str) -> None:
    for future in (torch.zeros(1, 4), torch.tensor([[1.0, 0, 0, 0]])):
        if not future.any() and name in ("exact", "rloo"):
            continue  # C(σ*) is 0: there is nothing to normalise by
        scores = torch.tensor([[80.0, -80, 0, 0]]).requires_grad_()
        loss = OBJECTIVES[name](scores, whole(future))
        loss.sum().backward()
        assert loss.isfinite().all()
        assert scores.grad is not None
        assert scores.grad.isfinite().all()


def test_soft_ranks_of_well_separated_scores_are_their_ranks() -> None:
    scores = torch.tensor([[10.0, 40.0, -20.0, 70.0]])
    torch.testing.assert_close(soft_ranks(scores), torch.tensor([[3.0, 2.0, 4.0, 1.0]]), rtol=0, atol=1e-3)


def test_an_unknown_objective_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown objective 'ranknt': did you mean 'ranknet'"):
        find_objective("ranknt")
