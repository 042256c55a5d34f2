"""TOVA: what the last token looks at."""

from typing import ClassVar

import torch
from torch import Tensor

from kvbench.press import LayerCache, Press, Reads, by_score


class TOVA(Press):
    """Tokens that the last query attends to most, one order for all heads of a layer.

    The score is the last query's attention, averaged over all query heads of the layer, so that all its KV
    heads share one order. The last token, which has just been read, comes first.
    """

    paper: ClassVar[str] = "Transformers are Multi-State RNNs, arXiv:2401.06104 (EMNLP 2024)"
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS, Reads.QUERIES})

    def sort(self, layer: LayerCache) -> Tensor:
        """Rank the last token first, then by its attention."""
        _, logits = next(layer.logits(last=1))
        attention = logits.softmax(dim=-1).mean(dim=(1, 2, 3))  # [batch, n]
        last = layer.n - 1
        order = by_score(attention[:, :last]).unsqueeze(1).expand(-1, layer.kv_heads, -1)
        return torch.cat([layer.newest_first(last), order], dim=-1)
