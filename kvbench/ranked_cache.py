"""Caches stored in rank order, so that every budget of a press is a prefix of the same tensors.

The variants of a sample form a grid, presses × budgets. A ranking is cut at the budgets into nested segments:
segment j lies between budget j−1 and budget j, and belongs to every variant of budget j or more. A query attends
to each segment once for all budgets that hold it, and the parts are merged by their log-sum-exp. No variant's
cache is ever copied out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.attention import merge, partial_attention


@dataclass(frozen=True)
class Kept:
    """What is left of the cache under one variant, measured on the tensors that are attended to."""

    least: int
    most: int
    bytes: int

    def plus(self, other: int) -> Kept:
        """Return the same with `other` more bytes that every variant holds (sliding-window layers)."""
        return Kept(self.least, self.most, self.bytes + other)


class RankedCache:
    """The compressed caches of all presses × budgets of one sample, every full-attention layer.

    Attributes:
        presses: How many presses the grid has.
        budgets: Tokens per KV head, ascending and distinct.
    """

    def __init__(self, presses: int, budgets: tuple[int, ...]):
        """Make an empty grid; `put` fills it press by press and layer by layer."""
        self.presses = presses
        self.budgets = budgets
        self._keys: dict[int, Tensor] = {}  # per layer [presses, kv_heads, largest budget, d]
        self._values: dict[int, Tensor] = {}

    @classmethod
    def of_full_cache(cls, n: int) -> RankedCache:
        """Make the grid of one variant that holds the whole context of `n` tokens, in order of position."""
        return cls(presses=1, budgets=(n,))

    def put_all(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Take a layer's whole keys and values `[1, kv_heads, n, d]` as they are (the full cache's grid)."""
        self._keys[layer], self._values[layer] = keys, values

    def whole(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values, `[presses, kv_heads, largest budget, d]`."""
        return self._keys[layer], self._values[layer]

    def put(self, layer: int, press: int, keys: Tensor, values: Tensor, ranking: Tensor) -> None:
        """Store what the largest budget of a press keeps of a layer, in rank order.

        Args:
            layer: The layer's number.
            press: The press's row of the grid.
            keys: `[1, kv_heads, n, d]`.
            values: `[1, kv_heads, n, d]`.
            ranking: int64 `[1, kv_heads, n]`, first kept first.
        """
        _, kv_heads, n, _ = keys.shape
        kept = ranking[0, :, : self.budgets[-1]]
        rows = (kept + n * torch.arange(kv_heads, device=kept.device).unsqueeze(1)).flatten()
        for store, tensor in ((self._keys, keys), (self._values, values)):
            d = tensor.shape[-1]
            if layer not in store:
                store[layer] = tensor.new_zeros(self.presses, kv_heads, self.budgets[-1], d)
            store[layer][press] = tensor[0].reshape(kv_heads * n, d).index_select(0, rows).view(kv_heads, -1, d)

    def kept(self, press: int, budget: int) -> Kept:
        """Measure one variant: entries per KV head over all layers, and bytes of its keys and values."""
        views = [
            store[layer][press, :, : self.budgets[budget]] for store in (self._keys, self._values) for layer in store
        ]
        entries = [view.shape[-2] for view in views]
        return Kept(min(entries), max(entries), sum(view.numel() * view.element_size() for view in views))

    def attend(self, layer: int, query: Tensor, rows: GridRows, scaling: float) -> tuple[Tensor, Tensor]:
        """Attend from the new tokens of some variants to what each of them kept of the context.

        Args:
            layer: The layer's number.
            query: `[rows, kv_heads, q, d]`: per KV head all queries of its group and of the new tokens.
            rows: Which variant each row is.
            scaling: What query·key is multiplied by.

        Returns:
            Output `[rows, kv_heads, q, d]` and log-sum-exp `[rows, kv_heads, q]`, to merge with the rows' own
            tokens.
        """
        presses, budgets = rows.press_range, rows.budget_range
        queries = query.new_zeros(len(presses), len(budgets), *query.shape[1:])
        queries[rows.presses - presses.start, rows.budgets - budgets.start] = query
        queries = queries.transpose(1, 2)  # [presses, kv_heads, budgets, q, d]
        keys = self._keys[layer][presses.start : presses.stop]
        values = self._values[layer][presses.start : presses.stop]
        out, lse = self._attend_nested(queries, keys, values, budgets, scaling)
        chosen = (rows.presses - presses.start, slice(None), rows.budgets - budgets.start)
        return out[chosen], lse[chosen]

    def _attend_nested(
        self, queries: Tensor, keys: Tensor, values: Tensor, budgets: range, scaling: float
    ) -> tuple[Tensor, Tensor]:
        start = 0
        for held, budget in enumerate(budgets):
            stop = self.budgets[budget]
            holders = queries[:, :, held:]  # every variant whose budget reaches this segment
            part = partial_attention(holders.flatten(2, 3), keys[:, :, start:stop], values[:, :, start:stop], scaling)
            part_out, part_lse = (tensor.unflatten(2, holders.shape[2:4]) for tensor in part)
            if held == 0:
                out, lse = part_out, part_lse
            else:
                out[:, :, held:], lse[:, :, held:] = merge((out[:, :, held:], lse[:, :, held:]), (part_out, part_lse))
            start = stop
        return out, lse


@dataclass(frozen=True)
class GridRows:
    """Which variants of a grid the rows of a batch are: row i is press `presses[i]` at budget `budgets[i]`."""

    presses: Tensor  # int64 [rows]
    budgets: Tensor  # int64 [rows]
    press_range: range
    budget_range: range

    @classmethod
    def of(cls, cells: list[tuple[int, int]], device: torch.device) -> GridRows:
        """Make the rows of `cells`, pairs of a press's and a budget's index in the grid."""
        presses, budgets = zip(*cells, strict=True)
        return cls(
            torch.tensor(presses, device=device),
            torch.tensor(budgets, device=device),
            range(min(presses), max(presses) + 1),
            range(min(budgets), max(budgets) + 1),
        )
