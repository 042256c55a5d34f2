"""Answering from compressed caches: all variants of a sample as the rows of one batch.

A question is answered greedily, or by the log-likelihoods of given continuations. Each row attends to what its press
and budget kept of the context, and to its own new tokens. No scored token is ever computed from an evicted entry: the
prompt's last token is fed after compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvbench.attention import AttentionCall, merge, partial_attention
from kvbench.future import future_attention
from kvbench.models import Model
from kvbench.ranked_cache import GridRows, RankedCache
from kvbench.task import Answer, Question

TOKENS_PER_PASS = 8192
"""Most tokens, over all rows, that one forward pass takes."""
_LOGITS_PER_PASS = 2048
"""Most tokens, over all rows, of which one forward pass gives the logits."""
_GROWTH = 32
"""Tokens by which the rows' own caches grow."""


@dataclass(frozen=True)
class Cell:
    """One variant of a batch: a grid's number, and a press's and a budget's index in that grid."""

    grid: int
    press: int
    budget: int


@dataclass
class SlidingTail:
    """What a sliding-window layer still sees of the context.

    Attributes:
        keys: `[1, kv_heads, tail, d]` if it is the same for every variant, else `[grids, kv_heads, tail, d]`.
        values: Of the same shape.
        window: Tokens that a query looks back over, itself included.
    """

    keys: Tensor
    values: Tensor
    window: int

    @classmethod
    def of_context(cls, call: AttentionCall) -> SlidingTail:
        """Copy what the tokens after a whole context's prefill can still see of a sliding-window layer."""
        assert call.window is not None
        tail = slice(-max(call.window - 1, 1), None)
        return cls(call.key[:, :, tail].clone(), call.value[:, :, tail].clone(), call.window)

    @property
    def bytes(self) -> int:
        """Bytes of one variant's keys and values."""
        return sum(tensor[0].numel() * tensor.element_size() for tensor in (self.keys, self.values))


@dataclass
class CompressedContext:
    """A sample's context after compression.

    Attributes:
        n: Tokens of the context.
        grids: The ranked caches; a batch may hold rows of several.
        tails: The sliding-window layers by number.
    """

    n: int
    grids: list[RankedCache]
    tails: dict[int, SlidingTail] = field(default_factory=dict)


class OwnTokens:
    """Keys and values of the tokens that each row was fed or generated itself, one layer."""

    def __init__(self) -> None:
        """Make it empty."""
        self.length = 0
        self._keys = torch.empty(0)  # [rows, kv_heads, capacity, d]
        self._values = torch.empty(0)

    @property
    def keys(self) -> Tensor:
        """`[rows, kv_heads, length, d]`."""
        return self._keys[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        """`[rows, kv_heads, length, d]`."""
        return self._values[:, :, : self.length]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add the newest tokens, `[rows, kv_heads, t, d]`."""
        stop = self.length + keys.shape[2]
        self._keys = self._roomy(self._keys, keys, stop)
        self._values = self._roomy(self._values, values, stop)
        self._keys[:, :, self.length : stop] = keys
        self._values[:, :, self.length : stop] = values
        self.length = stop

    def select(self, rows: Tensor) -> None:
        """Keep only `rows`, int64."""
        self._keys = self._keys.index_select(0, rows)
        self._values = self._values.index_select(0, rows)

    def _roomy(self, store: Tensor, new: Tensor, needed: int) -> Tensor:
        if self.length and needed <= store.shape[2]:
            return store
        rows, kv_heads, _, d = new.shape
        grown = new.new_empty(rows, kv_heads, -(-needed // _GROWTH) * _GROWTH, d)
        if self.length:
            grown[:, :, : self.length] = store[:, :, : self.length]
        return grown


class AnsweringStep:
    """The attention of a batch of variants: to each row's compressed context and to its own tokens."""

    def __init__(self, context: CompressedContext, cells: list[Cell], device: torch.device, keep_queries: bool = False):
        """Start a batch.

        Args:
            context: The compressed context.
            cells: The rows' variants, grouped by grid.
            device: Where the model is.
            keep_queries: Keep the new tokens' queries, for the oracle.
        """
        self.context = context
        self.device = device
        self.places = torch.empty(2, 0, dtype=torch.int64, device=device)
        """Of each own token how far behind the context it stands, and on which branch; 0 is the trunk, which the
        tokens of every branch see: `[2, length]`."""
        self.own: dict[int, OwnTokens] = {}
        self.queries: dict[int, list[Tensor]] | None = {} if keep_queries else None
        self._set_rows(cells)

    def feed(self, offsets: Tensor, branches: Tensor | int = 0) -> Tensor:
        """Say where the tokens of the next forward pass stand, and return their positions, int64 `[t]`.

        Args:
            offsets: How far behind the context, from 0, int64 `[t]`.
            branches: On which branch.
        """
        offsets = offsets.to(self.device)
        places = torch.stack([offsets, torch.as_tensor(branches, device=self.device).expand(len(offsets))])
        self.places = torch.cat([self.places, places], dim=1)
        return self.context.n + offsets

    def visible_own(self, t: int, window: int | None = None) -> Tensor | None:
        """Return which own tokens each of the newest `t` sees, `[t, length]`; none if all see all."""
        length = self.places.shape[1]
        if t == 1 and (window is None or length <= window) and not self.places[1, -1]:
            return None
        offsets, branches = self.places
        distance = offsets[-t:].unsqueeze(1) - offsets
        visible: Tensor = (distance >= 0) & ((branches == 0) | (branches == branches[-t:].unsqueeze(1)))
        return visible if window is None else visible & (distance < window)

    def future_attention(self, layer: int, keys: Tensor, scaling: float) -> Tensor:
        """Return u of one layer, what the context's `keys` got from all tokens of the one row: `[1, kv_heads, n]`."""
        assert self.queries is not None
        query = torch.cat(self.queries[layer], dim=2)
        return future_attention(query, keys, self.own[layer].keys, scaling, self.visible_own(query.shape[2]))

    def drop_rows(self, keep: list[int]) -> None:
        """Go on with only the rows `keep` (indices into the present rows)."""
        rows = torch.tensor(keep, device=self.device)
        for own in self.own.values():
            own.select(rows)
        self._set_rows([self.cells[row] for row in keep])

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the attention output of one layer, `[rows, t, heads, d]`."""
        rows, heads, t, d = call.query.shape
        kv_heads = call.key.shape[1]
        own = self.own.setdefault(call.layer, OwnTokens())
        own.append(call.key, call.value)
        if self.queries is not None:
            self.queries.setdefault(call.layer, []).append(call.query)
        query = call.query.reshape(rows, kv_heads, -1, d)  # a KV head's queries: its g heads × t tokens
        tail = self.context.tails.get(call.layer)
        to_context = self._to_tail(query, call, tail) if tail else self._to_grids(query, call)
        visible = self.visible_own(t, call.window)
        if visible is not None:
            visible = visible.repeat(heads // kv_heads, 1)
        to_own = partial_attention(query, own.keys, own.values, call.scaling, visible)
        out, _ = merge(to_context, to_own)
        return out.to(call.query.dtype).reshape(rows, heads, t, -1).transpose(1, 2)

    def _set_rows(self, cells: list[Cell]) -> None:
        self.cells = cells
        self._grid_rows = {
            number: GridRows.of([(c.press, c.budget) for c in cells if c.grid == number], self.device)
            for number in sorted({cell.grid for cell in cells})
        }

    def _to_grids(self, query: Tensor, call: AttentionCall) -> tuple[Tensor, Tensor]:
        parts: list[tuple[Tensor, Tensor]] = []
        start = 0
        for number, rows in self._grid_rows.items():
            stop = start + len(rows.presses)
            parts.append(self.context.grids[number].attend(call.layer, query[start:stop], rows, call.scaling))
            start = stop
        return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])

    def _to_tail(self, query: Tensor, call: AttentionCall, tail: SlidingTail) -> tuple[Tensor, Tensor]:
        """Attend to the part of a sliding window that lies in the context; −∞ where it has moved past."""
        rows, kv_heads, q, d = query.shape
        t = call.query.shape[2]
        since_context = 1 + self.places[0, -t:].unsqueeze(1)  # [t, 1]
        age = torch.arange(tail.keys.shape[2] - 1, -1, -1, device=query.device)  # [tail]
        visible = since_context + age < tail.window  # [t, tail]
        past = ~visible.any(dim=1, keepdim=True)
        if len(tail.keys) > 1:  # each variant has its own
            grids = torch.tensor([cell.grid for cell in self.cells], device=query.device)
            own_tail = SlidingTail(tail.keys[grids], tail.values[grids], tail.window)
            out, lse = partial_attention(
                query, own_tail.keys, own_tail.values, call.scaling, (visible | past).repeat(q // t, 1)
            )
            return out, lse.masked_fill(past.repeat(q // t, 1).squeeze(1), -torch.inf)
        folded = query.transpose(0, 1).reshape(1, kv_heads, rows * q, d)
        repeats = rows * q // t
        out, lse = partial_attention(folded, tail.keys, tail.values, call.scaling, (visible | past).repeat(repeats, 1))
        lse = lse.masked_fill(past.repeat(repeats, 1).squeeze(1), -torch.inf)
        return out.view(kv_heads, rows, q, -1).transpose(0, 1), lse.view(kv_heads, rows, q).transpose(0, 1)


def answer_question(
    model: Model, step: AnsweringStep, question: Question, fed: Tensor, continuations: Sequence[Tensor]
) -> list[Answer]:
    """Answer a question with every row of `step`, in the order of its rows.

    Args:
        model: The model.
        step: A batch that has been fed nothing yet.
        question: Answered greedily, unless it has continuations.
        fed: int64 `[t]`, t ≥ 1: the prompt's tokens after the compressed context, the same for all rows.
        continuations: The question's, int64 `[m]` each, m ≥ 1.
    """
    logits = _feed_prompt(model, step, fed)
    if question.continuations:
        return _weigh_continuations(model, step, question, len(fed), continuations, logits)
    return _generate(model, step, question, len(fed), logits)


def _feed_prompt(model: Model, step: AnsweringStep, fed: Tensor) -> Tensor:
    """Feed the prompt's last tokens to every row; return the logits after them, `[rows, vocabulary]`."""
    rows = len(step.cells)
    start = 0
    logits = torch.empty(0)
    for piece in fed.to(model.device).split(max(1, TOKENS_PER_PASS // rows)):
        step.feed(torch.arange(start, start + len(piece)))
        logits = model.forward(piece.expand(rows, -1), step.context.n + start, step)
        start += len(piece)
    return logits


def _generate(model: Model, step: AnsweringStep, question: Question, fed: int, logits: Tensor) -> list[Answer]:
    """Answer greedily; rows that have stopped leave the batch."""
    rows = len(step.cells)
    generated: list[list[int]] = [[] for _ in range(rows)]
    answers: dict[int, Answer] = {}
    active = list(range(rows))
    while True:
        newest = logits.argmax(dim=-1)  # [active rows]
        going_on: list[int] = []
        for index, (row, token) in enumerate(zip(active, newest.tolist(), strict=True)):
            generated[row].append(token)
            finished = _finish(model, generated[row], question.max_new_tokens, question.stop)
            if finished:
                answers[row] = finished
            else:
                going_on.append(index)
        if not going_on:
            return [answers[row] for row in range(rows)]
        if len(going_on) < len(active):
            step.drop_rows(going_on)
            active = [active[index] for index in going_on]
            newest = newest[going_on]
        offset = fed + len(generated[active[0]]) - 1
        step.feed(torch.tensor([offset]))
        logits = model.forward(newest.unsqueeze(1), step.context.n + offset, step)


def _weigh_continuations(
    model: Model,
    step: AnsweringStep,
    question: Question,
    fed: int,
    continuations: Sequence[Tensor],
    logits: Tensor,
) -> list[Answer]:
    """Return the log-likelihoods of all continuations, teacher-forced.

    All of them are fed to a row together, end to end, as branches that see the prompt and themselves but not each
    other: whatever their lengths, nothing is padded.
    """
    first = torch.stack([tokens[0] for tokens in continuations])
    rest = [tokens[1:] for tokens in continuations]
    found = [_weigh(logits.unsqueeze(1).expand(-1, len(first), -1), first.to(model.device))]
    inputs = torch.cat([tokens[:-1] for tokens in continuations]).to(model.device)
    targets = torch.cat(rest).to(model.device)
    offsets = torch.cat([fed + torch.arange(len(tokens)) for tokens in rest])
    branches = torch.repeat_interleave(torch.arange(len(rest)) + 1, torch.tensor([len(tokens) for tokens in rest]))
    rows = len(step.cells)
    for piece in torch.arange(len(inputs)).split(max(1, _LOGITS_PER_PASS // rows)):
        if not len(piece):
            break
        positions = step.feed(offsets[piece], branches[piece].to(model.device))
        logits = model.forward_all(inputs[piece].expand(rows, -1), positions, step)
        found.append(_weigh(logits, targets[piece]))
    weights, greedy = (torch.cat(parts, dim=1).cpu() for parts in zip(*found, strict=True))  # [rows, tokens]
    owners = torch.cat([torch.arange(len(first)), branches - 1])  # which continuation a token belongs to
    sums = weights.new_zeros(rows, len(first)).index_add_(1, owners, weights)
    misses = torch.zeros(rows, len(first), dtype=torch.int64).index_add_(1, owners, (~greedy).long())
    lengths = tuple(len(tokens) for tokens in continuations)
    return [
        Answer(
            text=question.continuations[int(row.argmax())] if len(row) > 1 else "",
            log_likelihoods=tuple(row.tolist()),
            continuation_tokens=lengths,
            greedy=tuple((missed == 0).tolist()),
        )
        for row, missed in zip(sums, misses, strict=True)
    ]


def _weigh(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the targets' log-probabilities, float64 `[rows, t]`, and whether each is the most likely token.

    Args:
        logits: `[rows, t, vocabulary]`.
        targets: int64 `[t]`.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    index = targets.expand(len(wide), -1).unsqueeze(-1)
    chosen = wide.gather(-1, index).squeeze(-1)
    return (chosen - wide.logsumexp(-1)).double(), wide.argmax(-1) == targets


def _finish(model: Model, tokens: list[int], max_new_tokens: int, stop: tuple[str, ...]) -> Answer | None:
    """Return the finished answer, or none if it goes on."""
    if tokens[-1] in model.end_tokens:
        return Answer(_text(model, tokens[:-1]), tuple(tokens), "end")
    if stop:
        text = _text(model, tokens)
        places = [text.find(mark) for mark in stop if mark in text]
        if places:
            return Answer(text[: min(places)], tuple(tokens), "stop")
    if len(tokens) == max_new_tokens:
        return Answer(_text(model, tokens), tuple(tokens), "length")
    return None


def _text(model: Model, tokens: list[int]) -> str:
    return str(model.tokenizer.decode(tokens, skip_special_tokens=True))
