"""Future attention against the attention weights of plain transformers, in float64."""

import pytest
import torch
from torch import Tensor

from attention_weights import attention_weights, received_after
from kvbench import future
from kvbench.attention import AttentionCall
from kvbench.full_cache import FullCache
from kvbench.future import attention_after_cuts, future_attention
from kvbench.models import Model
from kvbench.task import Question
from tiny_models import tiny_model
from tiny_runs import FED, N, question, random_prompt

CUTS = (1, 7, 30, N)


class Cutter:
    """Watches a prefill and takes every layer's attention after some cuts."""

    def __init__(self, cuts: tuple[int, ...]):
        self.cuts = cuts
        self.parts: dict[int, list[Tensor]] = {}

    def __call__(self, call: AttentionCall) -> None:
        query = call.query[:, :, self.cuts[0] :]
        self.parts[call.layer] = attention_after_cuts(query, call.key, call.scaling, self.cuts)


def foreseen(model: Model, asked: Question, cuts: tuple[int, ...]) -> tuple[dict[int, list[Tensor]], Tensor]:
    """u of every layer and cut, and the whole sequence."""
    prompt = random_prompt()
    cutter = Cutter(cuts)
    cache = FullCache(model, prompt.context, cutter)
    rollout = cache.roll_out(asked, prompt.fed[0])
    fed = torch.cat([prompt.context, prompt.fed[0], torch.tensor(rollout.answer.tokens[:-1], dtype=torch.int64)])
    return {
        layer: [part + rollout.future[layer][..., : part.shape[-1]] for part in parts]
        for layer, parts in cutter.parts.items()
    }, fed


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_u_of_every_cut_is_what_the_eager_attention_weights_say(family: str) -> None:
    received, sequence = foreseen(tiny_model(family), question(6), CUTS)
    weights = attention_weights(family, sequence)
    assert len(sequence) == N + FED + 5
    assert received.keys() == weights.keys()  # of gemma3 only the layer without a sliding window
    for layer in weights:
        for cut, u in zip(CUTS, received[layer], strict=True):
            torch.testing.assert_close(u[0].double(), received_after(weights[layer], cut), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("logits", [1, 500, 5_000])
def test_blocks_of_any_size_give_the_same(logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    query, keys = torch.randn(1, 6, 40, 8), torch.randn(1, 2, 40, 8)
    visible = (torch.rand(10, 10) < 0.5).tril()
    visible |= torch.eye(10, dtype=torch.bool)

    def both() -> list[Tensor]:
        branches = future_attention(query[:, :, 30:], keys[:, :, :30], keys[:, :, 30:], 0.4, visible)
        return [*attention_after_cuts(query[:, :, 3:], keys, 0.4, (3, 17, 40)), branches]

    expected = both()
    monkeypatch.setattr(future, "_LOGITS", {"cpu": logits})
    for one, other in zip(both(), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_a_cut_at_the_end_has_no_future_within_the_context() -> None:
    [received] = attention_after_cuts(torch.randn(1, 6, 0, 8), torch.randn(1, 2, 5, 8), 0.4, (5,))
    assert torch.equal(received, torch.zeros(1, 2, 5))


def test_tokens_of_another_branch_are_not_seen() -> None:
    torch.manual_seed(0)
    query, keys = torch.randn(1, 2, 4, 8), torch.randn(1, 1, 9, 8)
    visible = torch.ones(4, 4, dtype=torch.bool).tril()
    visible[2:, 1] = False  # token 1 is a branch of its own
    received = future_attention(query, keys[:, :, :5], keys[:, :, 5:], 0.4, visible)
    expected = torch.zeros(5, dtype=torch.float64)
    for row in range(4):
        seen = [*range(5), *(5 + own for own in range(4) if visible[row, own])]
        logits = query[0, :, row].double() @ keys[0, 0, seen].double().T * 0.4
        expected += logits.softmax(-1).amax(0)[:5]
    torch.testing.assert_close(received[0, 0].double(), expected, atol=1e-6, rtol=1e-5)
