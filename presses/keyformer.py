"""Keyformer: attention under Gumbel noise, and recent tokens."""

from functools import cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from kvbench.press import LayerCache, Press, Reads, by_score, split_budget


class KeyFormer(Press):
    """Most attended tokens under Gumbel noise, balanced with the most recent ones.

    The score is `f_i = Σ_t softmax_t((logit_ti + G_ti) / τ_t)_i`: to every logit comes fresh standard Gumbel
    noise, the temperature flattens the softmax to make up for the tokens that eviction takes out of it, and
    the sum over the queries t is averaged over the query heads that share the KV head. Of a budget of b the
    ⌊recent · b⌋ most recent tokens stay, the rest are the best scored of the others; both parts grow in step,
    which makes the splits of all budgets one order.

    The paper raises τ evenly from `tau_init` to `tau_end` over the steps of generation. A cache ranked once
    has seen no such steps, so here the prompt's queries are the steps: the first has `tau_init`, the last
    `tau_end`. The authors' code reads the prompt at `tau_init` throughout; `tau_end=1` is that reading.
    """

    paper: ClassVar[str] = (
        "Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative Inference, "
        "arXiv:2403.09054 (MLSys 2024)"
    )
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS, Reads.QUERIES})

    recent: float = Field(0.3, ge=0, le=1, description="The most recent tokens' share of every budget.")
    tau_init: float = Field(1.0, gt=0, description="The temperature of the first query.")
    tau_end: float = Field(2.0, gt=0, description="The temperature of the last query.")
    seed: int = Field(0, ge=0, description="Which noise, beside what the run's own seed decides.")

    def sort(self, layer: LayerCache) -> Tensor:
        """Split every budget between the most recent and the best scored tokens."""
        generator = layer.generator(self.seed)
        tau = torch.linspace(self.tau_init, self.tau_end, layer.n, device=layer.keys.device).unsqueeze(-1)
        tau = tau[layer.n - layer.queries.shape[-2] :]  # [m, 1]
        accumulated = torch.zeros_like(layer.positions, dtype=torch.float32)
        for rows, logits in layer.logits():
            noise = gumbel(generator, logits.shape[1:]).to(logits.device)
            attention = logits.add_(noise).div_(tau[rows]).softmax(dim=-1)  # [batch, kv_heads, g, rows, visible]
            accumulated[..., : logits.shape[-1]] += attention.sum(dim=-2).mean(dim=2)
        return split_budget(layer.newest_first(), by_score(accumulated), self.recent)


def gumbel(generator: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Draw standard Gumbel noise, float32, each value one of 65,536 equally likely quantiles.

    Every pair of query and key needs its own noise, which costs as much as the attention: 16 random bits and a
    table take half the time of a random float and two logarithms.
    """
    *rows, columns = shape
    words = generator.integers(2**64, size=(*rows, -(-columns // 4)), dtype=np.uint64)
    return torch.from_numpy(_quantiles().take(words.view(np.uint16)[..., :columns]))


@cache
def _quantiles() -> NDArray[np.float32]:
    levels = (np.arange(2**16) + 0.5) / 2**16
    return (-np.log(-np.log(levels))).astype(np.float32)
