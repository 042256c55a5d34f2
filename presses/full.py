"""The full cache: what every press is measured against."""

from typing import ClassVar

from torch import Tensor

from kvbench.press import LayerCache, Press, Reads


class Full(Press):
    """No eviction: the reference line.

    Runs with the budget `full`, which holds every token. The order is that of positions.
    """

    paper: ClassVar[str] = "None: the reference line"
    reads: ClassVar[frozenset[Reads]] = frozenset()
    evicts: ClassVar[bool] = False

    def sort(self, layer: LayerCache) -> Tensor:
        """Keep the order of positions."""
        return layer.oldest_first()
