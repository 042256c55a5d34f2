"""What a ranking costs: the future attention that it evicts, without answering anything.

With u, the future attention of a context of n tokens, and a ranking σ, the cost of the budget b is what the tokens
behind the first b would have got, `C_b(σ) = Σ_{i>b} u_{σ_i}`. Summed over the budgets 0 … n − 1 it is
`C(σ) = Σ_b b·u_{σ_b}`, least for σ*, u in descending order; `C(σ) / C(σ*)` is the normalised area under the curve
(KVP, arXiv:2602.10238, section 3 and figure 5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.budgets import Budget
from kvbench.context_ranking import ContextRanking
from kvbench.models import Model
from kvbench.press import Press, Reads, by_score, sample_seed
from kvbench.ranking import Protect, Rankers, protect, whole_layer
from kvbench.traces import Trace, TraceManifest
from kvbench.tracing import Drawn


def evicted_attention(future: Tensor, ranking: Tensor) -> Tensor:
    """Return C_b of every budget from 0 to n, float64 `[..., n + 1]`.

    Args:
        future: u, `[..., n]`.
        ranking: int64 `[..., n]`, first kept first.
    """
    ranked = future.double().gather(-1, ranking)
    behind = ranked.flip(-1).cumsum(-1).flip(-1)  # summed from the last on: what is left of nothing is exactly 0
    return torch.cat([behind, torch.zeros_like(behind[..., :1])], dim=-1)


def total_cost(future: Tensor, ranking: Tensor) -> Tensor:
    """Return C(σ), float64 `[...]`: C_b summed over the budgets below n.

    Args:
        future: u, `[..., n]`.
        ranking: int64 `[..., n]`, first kept first.
    """
    ranks = torch.arange(1, ranking.shape[-1] + 1, dtype=torch.float64, device=ranking.device)
    return (future.double().gather(-1, ranking) * ranks).sum(-1)


def normalised_cost(future: Tensor, ranking: Tensor, protected: Protect) -> Tensor:
    """Return C(σ) / C(σ*), float64 `[batch, kv_heads]`, at least 1.

    Args:
        future: u, `[batch, kv_heads, n]`, not all 0.
        ranking: int64 `[batch, kv_heads, n]`, first kept first, with the protected tokens in front.
        protected: What stands in front of σ* too, so that 1 is the best that any press can have.
    """
    return total_cost(future, ranking) / total_cost(future, protect(by_score(future), protected))


@dataclass(frozen=True)
class SampleCosts:
    """What the presses' rankings of one context cost.

    Attributes:
        layers: The numbers of the layers with full attention, ascending.
        future_tokens: How many tokens' attention counts.
        normalised: Per press C(σ) / C(σ*), `[layers, kv_heads]`.
        evicted: Per press C_b / Σu at the budgets, `[layers, kv_heads, budgets]`.
        ranking_seconds: Per press, all layers.
        prefill_seconds: None where traces were ranked.
        failures: Per press that failed, why; it has no costs.
    """

    layers: tuple[int, ...]
    future_tokens: int
    normalised: dict[str, Tensor]
    evicted: dict[str, Tensor]
    ranking_seconds: dict[str, float]
    prefill_seconds: float | None
    failures: dict[str, str]


def costs_of_sample(
    model: Model, drawn: Drawn, presses: Mapping[str, Press], protected: Protect, budgets: Sequence[Budget], seed: int
) -> SampleCosts:
    """Run the model once on a context and its future, and rank the context with all presses on the way."""
    ranked = ContextRanking(model, drawn.context, presses, protected, seed)
    rollout = ranked.roll_out(drawn.question, drawn.fed, drawn.continuations)
    seconds = ranked.cache.prefill_seconds
    return _costs(ranked.rankers, ranked.rankings, rollout.future, budgets, rollout.tokens, seconds)


def costs_of_trace(
    trace: Trace,
    manifest: TraceManifest,
    presses: Mapping[str, Press],
    protected: Protect,
    budgets: Sequence[Budget],
) -> SampleCosts:
    """Rank a stored context at its last cut; the presses must not read queries."""
    rankers = Rankers(presses, protected)
    rankings: dict[tuple[str, int], Tensor] = {}
    future = {}
    seed = sample_seed(manifest.seed, trace.entry.sample)
    for row, layer in enumerate(manifest.layers):
        future[layer] = trace.future[trace.entry.tokens][row].unsqueeze(0)
        keys, values = (states[row].unsqueeze(0) for states in (trace.keys, trace.values))
        for label, press in presses.items():
            seen = future[layer] if Reads.FUTURE in press.reads else None
            cache = whole_layer(layer, keys, values, manifest.scaling[row], seed, future=seen)
            ranking = rankers.rank(label, cache)
            if ranking is not None:
                rankings[label, layer] = ranking
    return _costs(rankers, rankings, future, budgets, trace.future_tokens, None)


def _costs(
    rankers: Rankers,
    rankings: Mapping[tuple[str, int], Tensor],
    future: Mapping[int, Tensor],
    budgets: Sequence[Budget],
    future_tokens: int,
    prefill_seconds: float | None,
) -> SampleCosts:
    ranked = [label for label in rankers.presses if label not in rankers.failures]
    layers = sorted(future)
    n = future[layers[0]].shape[-1]
    places = [budget.resolve(n) for budget in budgets]

    def by_layer(label: str) -> Iterator[tuple[Tensor, Tensor]]:
        return ((future[layer], rankings[label, layer]) for layer in layers)

    def shares(u: Tensor, ranking: Tensor) -> Tensor:
        evicted = evicted_attention(u, ranking)
        return evicted[..., places] / evicted[..., :1]

    return SampleCosts(
        layers=tuple(layers),
        future_tokens=future_tokens,
        normalised={
            label: torch.cat([normalised_cost(*one, rankers.protected) for one in by_layer(label)]).cpu()
            for label in ranked
        },
        evicted={label: torch.cat([shares(*one) for one in by_layer(label)]).cpu() for label in ranked},
        ranking_seconds={label: rankers.seconds[label] for label in ranked},
        prefill_seconds=prefill_seconds,
        failures=rankers.failures,
    )
