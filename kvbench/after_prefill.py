"""The schedule "after-prefill": one prefill, one ranking per press, then all presses × budgets answer together.

Layers are ranked as the prefill passes through them, so a layer's queries live no longer than its own
attention. What a press keeps is gathered in rank order at once; the whole cache stays only where the full cache
or the oracle is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvbench.answering import Answer, AnsweringStep, Cell, CompressedContext, SlidingTail, answer
from kvbench.attention import AttentionCall
from kvbench.errors import KvbenchError
from kvbench.future import future_attention
from kvbench.models import Model
from kvbench.press import LayerCache, Press, Reads
from kvbench.prompts import Prompt
from kvbench.ranked_cache import Kept, RankedCache
from kvbench.task import Question


@dataclass(frozen=True)
class Variant:
    """A press at a budget of tokens per KV head, or (no press) the full cache."""

    press: str | None
    budget: int


@dataclass(frozen=True)
class Protect:
    """How many first and last tokens stand in front of every ranking."""

    first: int
    last: int


@dataclass
class Timings:
    """Seconds spent on one prompt."""

    prefill: float = 0.0
    ranking: dict[str, float] = field(default_factory=dict)
    """Per press, all layers."""
    gathering: float = 0.0
    answering: float = 0.0


@dataclass
class Outcome:
    """What came of one prompt.

    Attributes:
        answers: Per variant the answers to the prompt's questions, in their order.
        kept: Per variant what was left of the cache, measured.
        failures: Per press that failed, why.
        timings: Where the time went.
    """

    answers: dict[Variant, list[Answer]]
    kept: dict[Variant, Kept]
    failures: dict[str, str]
    timings: Timings


def protect(ranking: Tensor, protected: Protect) -> Tensor:
    """Put the protected tokens in front of a ranking: the first ones, then the last from the end backwards.

    Args:
        ranking: int64 `[batch, kv_heads, n]`.
        protected: How many.

    Returns:
        A permutation again, int64 `[batch, kv_heads, n]`; the other tokens keep their order.
    """
    batch, kv_heads, n = ranking.shape
    first = min(protected.first, n)
    last = min(protected.last, n - first)
    front = torch.cat([torch.arange(first), torch.arange(n - 1, n - 1 - last, -1)]).to(ranking.device)
    others = ranking[(ranking >= first) & (ranking < n - last)].view(batch, kv_heads, n - first - last)
    return torch.cat([front.expand(batch, kv_heads, -1), others], dim=-1)


@torch.inference_mode()
def run_prompt(
    model: Model,
    prompt: Prompt,
    questions: list[Question],
    presses: Mapping[str, Press],
    variants: Collection[Variant],
    protected: Protect,
    seed: int,
) -> Outcome:
    """Answer one prompt under every variant.

    Args:
        model: The model.
        prompt: Context and questions.
        questions: The prompt's questions, in its order.
        presses: By label; a press that fails does not stop the others.
        variants: What to answer; budgets below the context's length, and the full cache.
        protected: What stands in front of every ranking.
        seed: The sample's seed.
    """
    run = _Run(model, prompt, questions, presses, variants, protected, seed)
    run.prefill()
    answers = run.answer_all()
    return Outcome(answers, run.kept, run.failures, run.timings)


class _Run:
    """One prompt on its way through prefill, ranking and answering."""

    def __init__(
        self,
        model: Model,
        prompt: Prompt,
        questions: list[Question],
        presses: Mapping[str, Press],
        variants: Collection[Variant],
        protected: Protect,
        seed: int,
    ):
        self.model = model
        self.prompt = prompt
        self.questions = questions
        self.protected = protected
        self.seed = seed
        self.n = len(prompt.context)
        self.full = Variant(None, self.n)
        self.wanted = set(variants)
        asked = {variant.press for variant in variants}
        self.presses = {label: press for label, press in presses.items() if label in asked}
        self.budgets = tuple(sorted({variant.budget for variant in variants if variant.press is not None}))
        self.grid = RankedCache(len(self.presses), self.budgets)
        self.whole = RankedCache.of_full_cache(self.n)
        self.context = CompressedContext(self.n, [self.whole, self.grid])
        self.scaling: dict[int, float] = {}
        self.failures: dict[str, str] = {}
        self.timings = Timings(ranking=dict.fromkeys(self.presses, 0.0))
        self.foreseeing = [label for label, press in self.presses.items() if Reads.FUTURE in press.reads]
        self.keeps_whole = bool(self.foreseeing) or self.full in self.wanted

    def prefill(self) -> None:
        """Run the context through the model, ranking and gathering each layer on the way."""
        started = self._now()
        self.model.forward(self.prompt.context.unsqueeze(0).to(self.model.device), 0, self)
        elsewhere = sum(self.timings.ranking.values()) + self.timings.gathering
        self.timings.prefill = self._now() - started - elsewhere
        if not self.scaling:
            raise KvbenchError(
                f"{self.model.facts.name} has no full-attention layer: there is nothing that a press could rank"
            )

    def attend(self, call: AttentionCall) -> Tensor:
        """Be the prefill's `AttentionStep`: run the kernel, then compress the layer."""
        out = call.kernel()
        if call.window is not None:
            tail = min(max(call.window - 1, 1), self.n)
            self.context.tails[call.layer] = SlidingTail(
                call.key[:, :, -tail:].clone(), call.value[:, :, -tail:].clone(), call.window
            )
            return out
        self.scaling[call.layer] = call.scaling
        if self.keeps_whole:
            self.whole.put_all(call.layer, call.key, call.value)
        for label, press in self.presses.items():
            if label not in self.foreseeing:
                queries = call.query if Reads.QUERIES in press.reads else None
                self._rank(label, self._layer(call.layer, call.key, call.value, queries=queries))
        return out

    def answer_all(self) -> dict[Variant, list[Answer]]:
        """Answer every question under every variant; the full cache first where the oracle needs its answers."""
        answers: dict[Variant, list[Answer]] = {variant: [] for variant in self.wanted}
        if self.foreseeing:
            foreseen: dict[int, Tensor] = {}
            for number in range(len(self.questions)):
                self._answer(number, [self.full], answers, foreseen)
            for layer, received in foreseen.items():
                keys, values = self.whole.whole(layer)
                for label in self.foreseeing:
                    self._rank(label, self._layer(layer, keys, values, future=received))
        rest = [variant for variant in self._rows() if not (self.foreseeing and variant == self.full)]
        for number in range(len(self.questions)):
            self._answer(number, rest, answers)
        return {variant: given for variant, given in answers.items() if variant in self.wanted and given}

    @property
    def kept(self) -> dict[Variant, Kept]:
        """What was left of the cache, measured per variant."""
        tails = sum(tail.bytes for tail in self.context.tails.values())
        cells = {variant: self._cell(variant) for variant in self._rows()}
        return {
            variant: self.context.grids[cell.grid].kept(cell.press, cell.budget).plus(tails)
            for variant, cell in cells.items()
        }

    def _rows(self) -> list[Variant]:
        """Return the variants to answer, grouped by grid: the full cache, then press by press, ascending."""
        order = list(self.presses)
        live = [variant for variant in self.wanted if variant.press not in self.failures]
        return sorted(live, key=lambda v: (-1 if v.press is None else order.index(v.press), v.budget))

    def _cell(self, variant: Variant) -> Cell:
        if variant.press is None:
            return Cell(0, 0, 0)
        return Cell(1, list(self.presses).index(variant.press), self.budgets.index(variant.budget))

    def _layer(
        self,
        index: int,
        keys: Tensor,
        values: Tensor,
        queries: Tensor | None = None,
        future: Tensor | None = None,
    ) -> LayerCache:
        positions = torch.arange(self.n, device=keys.device).expand(*keys.shape[:2], -1)
        return LayerCache(index, keys, values, positions, self.scaling[index], self.seed, queries, future)

    def _rank(self, label: str, layer: LayerCache) -> None:
        if label in self.failures:
            return
        started = self._now()
        try:
            ranking = self.presses[label].sort(layer)
            _check_ranking(ranking, layer)
        except Exception as error:  # a press may fail with anything; the others go on
            self.failures[label] = f"layer {layer.index}: {type(error).__name__}: {error}"
            return
        ranking = protect(ranking, self.protected)
        ranked = self._now()
        self.timings.ranking[label] += ranked - started
        self.grid.put(layer.index, list(self.presses).index(label), layer.keys, layer.values, ranking)
        self.timings.gathering += self._now() - ranked

    def _answer(
        self,
        number: int,
        variants: list[Variant],
        answers: dict[Variant, list[Answer]],
        foreseen: dict[int, Tensor] | None = None,
    ) -> None:
        if not variants:
            return
        started = self._now()
        question = self.questions[number]
        cells = [self._cell(variant) for variant in variants]
        step = AnsweringStep(self.context, cells, self.model.device, keep_queries=foreseen is not None)
        given = answer(self.model, step, self.prompt.fed[number], question.max_new_tokens, question.stop)
        for variant, one in zip(variants, given, strict=True):
            answers.setdefault(variant, []).append(one)
        self.timings.answering += self._now() - started
        if foreseen is not None and step.queries is not None:
            for layer, scaling in self.scaling.items():
                query = torch.cat(step.queries[layer], dim=2)
                keys, _ = self.whole.whole(layer)
                received = future_attention(query, keys, step.own[layer].keys, scaling)
                foreseen[layer] = foreseen.get(layer, torch.zeros_like(received)) + received

    def _now(self) -> float:
        if self.model.device.type != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()


def _check_ranking(ranking: Tensor, layer: LayerCache) -> None:
    """Refuse what is not a permutation per KV head.

    Raises:
        ValueError: It is not.
    """
    expected = (*layer.keys.shape[:2], layer.n)
    if tuple(ranking.shape) != expected or ranking.dtype != torch.int64:
        raise ValueError(f"the ranking is {ranking.dtype} {tuple(ranking.shape)}, expected torch.int64 {expected}")
    if layer.n and (int(ranking.min()) < 0 or int(ranking.max()) >= layer.n):
        raise ValueError(f"the ranking names tokens outside 0 … {layer.n - 1}")
    seen = torch.zeros_like(ranking, dtype=torch.bool).scatter_(-1, ranking, True)
    if not bool(seen.all()):
        raise ValueError("the ranking is not a permutation: it repeats tokens")
