"""The schedule "chunked": prefill a chunk, rank what was kept and what is new together, cut to the budget, go on.

Every variant has a cache of its own from the first cut on, and never holds more than its budget and one chunk, so
memory does not grow with the context. Variants go through the model together, as many at a time as a forward
pass takes; the first chunk, where they do not differ yet, is computed once for all of them. Kept tokens keep
their original positions. A press that reads queries is given the chunk's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvbench.answering import (
    TOKENS_PER_PASS,
    AnsweringStep,
    Cell,
    CompressedContext,
    SlidingTail,
    answer_question,
)
from kvbench.attention import AttentionCall, causal_attention, merge, partial_attention
from kvbench.models import Model
from kvbench.press import LayerCache, Reads
from kvbench.ranked_cache import Kept, RankedCache
from kvbench.ranking import now
from kvbench.task import Answer, Question
from kvbench.variants import Job, Outcome, Timings, Variant


@dataclass(frozen=True)
class Entries:
    """What a variant holds of one layer, in order of position.

    Attributes:
        keys: `[1, kv_heads, entries, d]`.
        values: `[1, kv_heads, entries, d]`.
        positions: Original positions, int64 `[1, kv_heads, entries]`.
        scores: The press's scores of the first entries, `[1, kv_heads, scored]`, where they are static.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    scores: Tensor | None = None

    def __len__(self) -> int:
        return self.keys.shape[2]

    def plus(self, newer: Entries) -> Entries:
        """Return these and newer ones."""
        return Entries(
            torch.cat([self.keys, newer.keys], dim=2),
            torch.cat([self.values, newer.values], dim=2),
            torch.cat([self.positions, newer.positions], dim=2),
            self.scores,
        )

    def since(self, start: int) -> Entries:
        """Return a view of the entries from the one numbered `start` on, without scores."""
        return Entries(self.keys[:, :, start:], self.values[:, :, start:], self.positions[:, :, start:])

    def only(self, kept: Tensor, scores: Tensor | None) -> Entries:
        """Return the entries whose indices are `kept`, int64 `[1, kv_heads, k]` ascending, with their `scores`."""
        index = kept.unsqueeze(-1)
        return Entries(
            self.keys.gather(2, index.expand(*kept.shape, self.keys.shape[-1])),
            self.values.gather(2, index.expand(*kept.shape, self.values.shape[-1])),
            self.positions.gather(2, kept),
            None if scores is None else scores.gather(2, kept),
        )

    def last(self, count: int) -> Entries:
        """Return a copy of the newest `count` entries, so that the older ones can leave memory."""
        return Entries(
            self.keys[:, :, -count:].clone(), self.values[:, :, -count:].clone(), self.positions[:, :, -count:].clone()
        )


Ranked = tuple[Tensor | None, Tensor | None]
"""A press's static scores of some entries, if it has such, and its ranking of them, unless it has failed."""


@dataclass
class VariantCache:
    """One variant's cache of all layers, as it goes through the chunks.

    Attributes:
        variant: The press and budget.
        layers: What is kept, per layer.
        peak: The most entries that a full-attention layer held per KV head, before it was cut.
    """

    variant: Variant
    layers: dict[int, Entries] = field(default_factory=dict)
    peak: int = 0


@torch.inference_mode()
def run_prompt_in_chunks(model: Model, job: Job, chunk: int) -> Outcome:
    """Answer one prompt under every variant, compressing after every chunk.

    Args:
        model: The model.
        job: What to answer. No press may read the future; the full cache, if asked for, grows with the context. The
            protected last tokens are the newest so far.
        chunk: Tokens per chunk.
    """
    run = _ChunkedRun(model, job, chunk)
    run.prefill()
    return run.answer_all(job.questions)


class _ChunkedRun:
    """One prompt on its way through the chunks."""

    def __init__(self, model: Model, job: Job, chunk: int):
        self.model = model
        self.prompt = job.prompt
        self.seed = job.seed
        self.chunks = job.prompt.context.to(model.device).split(chunk)
        self.rankers = job.rankers()
        ordered = sorted(job.variants, key=lambda variant: (variant.press or "", variant.budget))
        self.caches = [VariantCache(variant) for variant in ordered]
        self.windows: dict[int, int] = {}
        self.timings = Timings(ranking=self.rankers.seconds)

    def prefill(self) -> None:
        """Send the first chunk through once, and the others with the variants in groups."""
        started = now(self.model.device)
        first, *others = self.chunks
        self.model.forward(first.unsqueeze(0), 0, _FirstChunk(self))
        self.model.refuse_without_full_attention(self.caches[0].layers.keys() - self.windows.keys())
        size = max(1, TOKENS_PER_PASS // len(first))
        for i in range(0, len(self.caches), size):
            group = self.caches[i : i + size]
            position = len(first)
            for tokens in others:
                self.model.forward(tokens.expand(len(group), -1), position, _LaterChunk(self, group, position))
                position += len(tokens)
        self.timings.prefill = now(self.model.device) - started - sum(self.rankers.seconds.values())

    def answer_all(self, questions: Sequence[Question]) -> Outcome:
        """Answer every question with the variants whose press has not failed, all together."""
        live = [cache for cache in self.caches if cache.variant.press not in self.rankers.failures]
        answers: dict[Variant, list[Answer]] = {cache.variant: [] for cache in live}
        context = self._compressed(live)
        tails = sum(tail.bytes for tail in context.tails.values())
        kept: dict[Variant, Kept] = {
            cache.variant: grid.kept(0, 0).plus(tails) for cache, grid in zip(live, context.grids, strict=True)
        }
        peaks = {cache.variant: cache.peak for cache in live}
        started = now(self.model.device)
        for fed, continuations, question in zip(self.prompt.fed, self.prompt.continuations, questions, strict=True):
            if live:
                step = AnsweringStep(context, [Cell(grid, 0, 0) for grid in range(len(live))], self.model.device)
                given = answer_question(self.model, step, question, fed, continuations)
                for cache, one in zip(live, given, strict=True):
                    answers[cache.variant].append(one)
        self.timings.answering = now(self.model.device) - started
        return Outcome(answers, kept, peaks, self.rankers.failures, self.timings)

    def take(
        self, call: AttentionCall, row: int, cache: VariantCache, position: int, ranked: dict[str, Ranked]
    ) -> None:
        """Add the chunk's entries of one row to a variant's layer and cut it to its budget.

        Args:
            call: The layer's attention call.
            row: The variant's row of it.
            cache: The variant.
            position: The position of the chunk's first token.
            ranked: By press, what has been ranked of these very entries already; added to.
        """
        entries = self.new_entries(call, row, position)
        if call.layer in cache.layers:
            entries = cache.layers[call.layer].plus(entries)
        if call.window is not None:
            self.windows[call.layer] = call.window
            cache.layers[call.layer] = entries.last(max(call.window - 1, 1))
        else:
            cache.peak = max(cache.peak, len(entries))
            cache.layers[call.layer] = self._cut(entries, call, row, cache.variant, ranked)

    def _cut(
        self, entries: Entries, call: AttentionCall, row: int, variant: Variant, ranked: dict[str, Ranked]
    ) -> Entries:
        label, budget = variant.press, variant.budget
        if label is None or len(entries) <= budget:
            return entries
        if label not in ranked:
            ranked[label] = self._rank(label, entries, call, row)
        scores, ranking = ranked[label]
        if ranking is None:  # the press has failed: hold no more than its budget until the others are done
            return entries.last(budget)
        return entries.only(ranking[..., :budget].sort(dim=-1).values, scores)

    def _rank(self, label: str, entries: Entries, call: AttentionCall, row: int) -> Ranked:
        """Rank entries; those that have a static score keep it, and only the others are scored."""
        known = entries.scores
        scored = 0 if known is None else known.shape[2]
        scores = self.rankers.score(label, self._layer(entries.since(scored), call, row, label))
        if known is not None and scores is not None:
            scores = torch.cat([known, scores], dim=2)
        return scores, self.rankers.rank(label, self._layer(entries, call, row, label), scores)

    def new_entries(self, call: AttentionCall, row: int, position: int) -> Entries:
        """Return what a call adds to one row's layer."""
        keys, values = call.key[row : row + 1], call.value[row : row + 1]
        positions = torch.arange(position, position + keys.shape[2], device=keys.device)
        return Entries(keys, values, positions.expand(1, keys.shape[1], -1))

    def _layer(self, entries: Entries, call: AttentionCall, row: int, label: str) -> LayerCache:
        reads = self.rankers.presses[label].reads
        queries = call.query[row : row + 1] if Reads.QUERIES in reads else None
        return LayerCache(call.layer, entries.keys, entries.values, entries.positions, call.scaling, self.seed, queries)

    def _compressed(self, live: list[VariantCache]) -> CompressedContext:
        """Return the variants' caches as the answering batch takes them: one grid of one variant each."""
        grids = []
        for cache in live:
            grid = RankedCache.of_full_cache(cache.variant.budget)
            for layer, entries in cache.layers.items():
                if layer not in self.windows:
                    grid.put_all(layer, entries.keys, entries.values)
            grids.append(grid)
        tails = {
            layer: SlidingTail(
                torch.cat([cache.layers[layer].keys for cache in live]),
                torch.cat([cache.layers[layer].values for cache in live]),
                window,
            )
            for layer, window in self.windows.items()
            if live
        }
        return CompressedContext(len(self.prompt.context), grids, tails)


@dataclass
class _FirstChunk:
    """The first chunk's attention: the model's own, once for all variants."""

    run: _ChunkedRun

    def attend(self, call: AttentionCall) -> Tensor:
        out = call.kernel()
        ranked: dict[str, Ranked] = {}
        for cache in self.run.caches:
            self.run.take(call, 0, cache, 0, ranked)
        return out


@dataclass
class _LaterChunk:
    """A later chunk's attention: each row to what its variant has kept, and causally to the chunk."""

    run: _ChunkedRun
    group: list[VariantCache]
    position: int

    def attend(self, call: AttentionCall) -> Tensor:
        attend_row = self._in_window if call.window is not None else self._to_kept
        out = torch.cat([attend_row(call, row) for row in range(len(self.group))])  # [rows, heads, t, d]
        for row, cache in enumerate(self.group):
            self.run.take(call, row, cache, self.position, {})
        return out.to(call.query.dtype).transpose(1, 2)

    def _to_kept(self, call: AttentionCall, row: int) -> Tensor:
        query, key, value = (tensor[row : row + 1] for tensor in (call.query, call.key, call.value))
        kept = self.group[row].layers[call.layer]
        folded = query.reshape(1, key.shape[1], -1, query.shape[-1])  # a KV head's g heads × t tokens
        out, lse = partial_attention(folded, kept.keys, kept.values, call.scaling)
        before = out.reshape(*query.shape[:3], -1), lse.reshape(query.shape[:3])
        return merge(before, causal_attention(query, key, value, call.scaling))[0]

    def _in_window(self, call: AttentionCall, row: int) -> Tensor:
        query = call.query[row : row + 1]
        t = query.shape[2]
        kept = self.group[row].layers[call.layer]
        entries = kept.plus(self.run.new_entries(call, row, self.position))
        positions = entries.positions[0, 0]
        distance = positions[-t:].unsqueeze(1) - positions  # [t, tail + t]
        visible = (distance >= 0) & (distance < (call.window or 0))
        folded = query.reshape(1, entries.keys.shape[1], -1, query.shape[-1])
        groups = folded.shape[2] // t
        out, _ = partial_attention(folded, entries.keys, entries.values, call.scaling, visible.repeat(groups, 1))
        return out.reshape(*query.shape[:3], -1)
