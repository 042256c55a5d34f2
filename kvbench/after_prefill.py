"""The schedule "after-prefill": one prefill, one ranking per press, then all presses × budgets answer together.

Layers are ranked as the prefill passes through them, so a layer's queries live no longer than its own
attention. What a press keeps is gathered in rank order at once; the whole cache stays only where the full cache
or the oracle is asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvbench.answering import AnsweringStep, Cell, CompressedContext, SlidingTail, answer_question
from kvbench.attention import AttentionCall
from kvbench.models import Model
from kvbench.press import LayerCache, Reads
from kvbench.ranked_cache import Kept, RankedCache
from kvbench.ranking import now, whole_layer
from kvbench.task import Answer
from kvbench.variants import Job, Outcome, Timings, Variant


@torch.inference_mode()
def run_prompt(model: Model, job: Job) -> Outcome:
    """Answer one prompt under every variant, compressing once after the prefill."""
    run = _Run(model, job)
    run.prefill()
    answers = run.answer_all()
    peaks = dict.fromkeys(answers, run.n)  # the whole prompt is cached before it is compressed
    return Outcome(answers, run.kept, peaks, run.rankers.failures, run.timings)


class _Run:
    """One prompt on its way through prefill, ranking and answering."""

    def __init__(self, model: Model, job: Job):
        self.model = model
        self.prompt = job.prompt
        self.questions = job.questions
        self.seed = job.seed
        self.n = len(job.prompt.context)
        self.full = Variant(None, self.n)
        self.wanted = set(job.variants)
        self.rankers = job.rankers()
        self.presses = list(self.rankers.presses)
        self.budgets = tuple(sorted({variant.budget for variant in self.wanted if variant.press is not None}))
        self.grid = RankedCache(len(self.presses), self.budgets)
        self.whole = RankedCache.of_full_cache(self.n)
        self.context = CompressedContext(self.n, [self.whole, self.grid])
        self.scaling: dict[int, float] = {}
        self.timings = Timings(ranking=self.rankers.seconds)
        self.foreseeing = [label for label, press in self.rankers.presses.items() if Reads.FUTURE in press.reads]
        self.keeps_whole = bool(self.foreseeing) or self.full in self.wanted

    def prefill(self) -> None:
        """Run the context through the model, ranking and gathering each layer on the way."""
        started = self._now()
        self.model.forward(self.prompt.context.unsqueeze(0).to(self.model.device), 0, self)
        elsewhere = sum(self.timings.ranking.values()) + self.timings.gathering
        self.timings.prefill = self._now() - started - elsewhere
        self.model.refuse_without_full_attention(self.scaling)

    def attend(self, call: AttentionCall) -> Tensor:
        """Be the prefill's `AttentionStep`: run the kernel, then compress the layer."""
        out = self._unread(call) if call.layer == self.model.facts.layers - 1 else call.kernel()
        if call.window is not None:
            self.context.tails[call.layer] = SlidingTail.of_context(call)
            return out
        self.scaling[call.layer] = call.scaling
        if self.keeps_whole:
            self.whole.put_all(call.layer, call.key, call.value)
        for label, press in self.rankers.presses.items():
            if label not in self.foreseeing:
                queries = call.query if Reads.QUERIES in press.reads else None
                self._rank(label, whole_layer(call.layer, call.key, call.value, call.scaling, self.seed, queries))
        return out

    @staticmethod
    def _unread(call: AttentionCall) -> Tensor:
        """Return what the last layer may hand on: only the logits after the context, which nobody reads, need more."""
        batch, heads, n, _ = call.query.shape
        return call.value.new_zeros(batch, n, heads, call.value.shape[-1])

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
                    self._rank(label, whole_layer(layer, keys, values, self.scaling[layer], self.seed, future=received))
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
        live = [variant for variant in self.wanted if variant.press not in self.rankers.failures]
        return sorted(live, key=lambda v: (-1 if v.press is None else self.presses.index(v.press), v.budget))

    def _cell(self, variant: Variant) -> Cell:
        if variant.press is None:
            return Cell(0, 0, 0)
        return Cell(1, self.presses.index(variant.press), self.budgets.index(variant.budget))

    def _rank(self, label: str, layer: LayerCache) -> None:
        ranking = self.rankers.rank(label, layer)
        if ranking is None:
            return
        started = self._now()
        self.grid.put(layer.index, self.presses.index(label), layer.keys, layer.values, ranking)
        self.timings.gathering += self._now() - started

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
        cells = [self._cell(variant) for variant in variants]
        step = AnsweringStep(self.context, cells, self.model.device, keep_queries=foreseen is not None)
        fed, continuations = self.prompt.fed[number], self.prompt.continuations[number]
        given = answer_question(self.model, step, self.questions[number], fed, continuations)
        for variant, one in zip(variants, given, strict=True):
            answers.setdefault(variant, []).append(one)
        self.timings.answering += self._now() - started
        if foreseen is not None:
            for layer, scaling in self.scaling.items():
                keys, _ = self.whole.whole(layer)
                received = step.future_attention(layer, keys, scaling)
                foreseen[layer] = foreseen.get(layer, torch.zeros_like(received)) + received

    def _now(self) -> float:
        return now(self.model.device)
