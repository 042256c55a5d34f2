"""The full cache of one context, and the future that it leads to: what u, and with it the oracle, come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.answering import AnsweringStep, Cell, CompressedContext, SlidingTail, answer_question
from kvbench.attention import AttentionCall
from kvbench.models import Model
from kvbench.ranked_cache import RankedCache
from kvbench.ranking import now
from kvbench.task import Answer, Question


@dataclass(frozen=True)
class Rollout:
    """What follows a context.

    Attributes:
        answer: The answer that the full cache gives.
        tokens: How many tokens followed the context: the prompt's last ones, and the answer's but the last.
        future: Per full-attention layer u, float32 `[1, kv_heads, n]`.
    """

    answer: Answer
    tokens: int
    future: dict[int, Tensor]


class FullCache:
    """A context's whole cache.

    Attributes:
        n: Tokens of the context.
        logits: After the context's last token, `[1, vocabulary]`.
        scaling: Per full-attention layer what it multiplies query·key by.
        prefill_seconds: Of the prefill, without what `watch` took.
    """

    def __init__(self, model: Model, context: Tensor, watch: Callable[[AttentionCall], None]) -> None:
        """Run the prefill.

        Args:
            model: The model.
            context: int64 `[n]`.
            watch: Called for each full-attention layer as the prefill passes through it.

        Raises:
            KvbenchError: The model has no full-attention layer.
        """
        self.model = model
        self.n = len(context)
        self.scaling: dict[int, float] = {}
        self._watch = watch
        self._watching = 0.0
        self._whole = RankedCache.of_full_cache(self.n)
        self._context = CompressedContext(self.n, [self._whole])
        started = now(model.device)
        self.logits = model.forward(context.unsqueeze(0).to(model.device), 0, self)
        self.prefill_seconds = now(model.device) - started - self._watching
        model.refuse_without_full_attention(self.scaling)

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers of the full-attention layers, ascending."""
        return tuple(sorted(self.scaling))

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a full-attention layer's keys and values, `[1, kv_heads, n, d]` each."""
        return self._whole.whole(number)

    def attend(self, call: AttentionCall) -> Tensor:
        """Be the prefill's `AttentionStep`: run the kernel and keep what it was given."""
        out = call.kernel()
        if call.window is not None:
            self._context.tails[call.layer] = SlidingTail.of_context(call)
            return out
        self.scaling[call.layer] = call.scaling
        self._whole.put_all(call.layer, call.key, call.value)
        started = now(self.model.device)
        self._watch(call)
        self._watching += now(self.model.device) - started
        return out

    @torch.inference_mode()
    def roll_out(self, question: Question, fed: Tensor, continuations: Sequence[Tensor] = ()) -> Rollout:
        """Answer a question, and add up what the context's tokens get from all that follows it.

        Args:
            question: Answered greedily, unless it has continuations.
            fed: The prompt's tokens after the context, int64 `[t]`, t ≥ 1.
            continuations: The question's, int64 `[m]` each; they see the prompt, but not each other.
        """
        step = AnsweringStep(self._context, [Cell(0, 0, 0)], self.model.device, keep_queries=True)
        [answer] = answer_question(self.model, step, question, fed, continuations)
        future = {
            layer: step.future_attention(layer, self.layer(layer)[0], self.scaling[layer]) for layer in self.layers
        }
        return Rollout(answer, step.places.shape[1], future)
