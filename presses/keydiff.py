"""KeyDiff: keys unlike the others."""

from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from kvbench.press import LayerCache, Reads, ScorePress


class KeyDiff(ScorePress):
    """Tokens whose keys differ most from the average direction of all keys.

    The anchor is the mean of the normalised keys, `a = mean_j(k_j / ‖k_j‖)`; a token's score is the negative
    cosine between its key and the anchor.
    """

    paper: ClassVar[str] = (
        "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in "
        "Resource-Constrained Environments, arXiv:2504.15364 (NeurIPS 2025)"
    )
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS})

    def score(self, layer: LayerCache) -> Tensor:
        """Return the negative cosine to the anchor."""
        keys = layer.keys.float()
        anchor = functional.normalize(keys, dim=-1).mean(dim=-2, keepdim=True)
        return -functional.cosine_similarity(keys, anchor, dim=-1)
