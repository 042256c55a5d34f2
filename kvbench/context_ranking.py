"""A context ranked by presses as the prefill passes through its layers, and by what the future says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from kvbench.attention import AttentionCall
from kvbench.full_cache import FullCache, Rollout
from kvbench.models import Model
from kvbench.press import LayerCache, Press, Reads
from kvbench.ranking import Protect, Rankers, whole_layer
from kvbench.task import Question


class ContextRanking:
    """The rankings of a context on the full cache, of all presses, layers and KV heads.

    Attributes:
        cache: The context's whole cache.
        rankers: The presses at work; one that failed is in `rankers.failures`.
        rankings: By press and layer, int64 `[1, kv_heads, n]`; of presses that read the future after `roll_out`.
    """

    def __init__(self, model: Model, context: Tensor, presses: Mapping[str, Press], protected: Protect, seed: int):
        """Run the prefill of `context`, int64 `[n]`, and rank each layer on the way.

        Raises:
            KvbenchError: The model has no full-attention layer.
        """
        self.rankers = Rankers(presses, protected)
        self.rankings: dict[tuple[str, int], Tensor] = {}
        self._seed = seed
        self.cache = FullCache(model, context, self._watch)

    def roll_out(self, question: Question, fed: Tensor, continuations: Sequence[Tensor] = ()) -> Rollout:
        """Answer a question, and rank by its attention where a press reads the future; see `FullCache.roll_out`."""
        rollout = self.cache.roll_out(question, fed, continuations)
        for layer, future in rollout.future.items():
            keys, values = self.cache.layer(layer)
            cache = whole_layer(layer, keys, values, self.cache.scaling[layer], self._seed, future=future)
            for label, press in self.rankers.presses.items():
                if Reads.FUTURE in press.reads:
                    self._rank(label, cache)
        return rollout

    def _watch(self, call: AttentionCall) -> None:
        for label, press in self.rankers.presses.items():
            if Reads.FUTURE not in press.reads:
                queries = call.query if Reads.QUERIES in press.reads else None
                self._rank(label, whole_layer(call.layer, call.key, call.value, call.scaling, self._seed, queries))

    def _rank(self, label: str, layer: LayerCache) -> None:
        ranking = self.rankers.rank(label, layer)
        if ranking is not None:
            self.rankings[label, layer.index] = ranking
