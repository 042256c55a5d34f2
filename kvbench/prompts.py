"""Prompts: a sample rendered and tokenised exactly once, then split into what is compressed and what is fed after."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvbench.errors import KvbenchError
from kvbench.task import Question, QuestionPlacement, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SPLIT = "#kvbench-question#"
"""Stands between context and question while the chat template is rendered."""


@dataclass(frozen=True)
class Prompt:
    """A context to compress, and per question the tokens fed after compression.

    Attributes:
        context: int64 `[n]`.
        fed: Per question int64 `[t]`, t ≥ 1.
        questions: Which of the sample's questions these are.
    """

    context: Tensor
    fed: tuple[Tensor, ...]
    questions: tuple[int, ...]

    def longest(self, sample: Sample) -> int:
        """Return the most positions that answering can take: context, question and new tokens."""
        return len(self.context) + max(
            len(fed) + sample.questions[question].max_new_tokens
            for fed, question in zip(self.fed, self.questions, strict=True)
        )


def prompts_of(
    tokenizer: PreTrainedTokenizerBase, sample: Sample, placement: QuestionPlacement, chat_template: bool
) -> list[Prompt]:
    """Render a sample.

    With the question inside, each question needs a prompt of its own: all of it but the last token is the
    context, and that token is fed after compression, so that no answer token has seen what was evicted. With the
    question after, all questions share one context. The tokens of a prompt are the same either way.
    """
    rendered = [_tokens(tokenizer, sample.context, question, chat_template) for question in sample.questions]
    if placement == "inside":
        return [Prompt(tokens[:-1], (tokens[-1:],), (number,)) for number, (tokens, _) in enumerate(rendered)]
    shared = _common_prefix([tokens[:boundary].tolist() for tokens, boundary in rendered])
    if shared == 0:
        raise KvbenchError(f"sample '{sample.id}' has no context before its question: there is nothing to compress")
    return [
        Prompt(
            rendered[0][0][:shared],
            tuple(tokens[shared:] for tokens, _ in rendered),
            tuple(range(len(rendered))),
        )
    ]


def _tokens(
    tokenizer: PreTrainedTokenizerBase, context: str, question: Question, chat_template: bool
) -> tuple[Tensor, int]:
    """Tokenise the whole prompt at once; return its tokens and how many of them end within the context."""
    before, after = _render(tokenizer, context, question, chat_template)
    encoded = tokenizer(
        before + after,
        add_special_tokens=not chat_template,  # a template writes its own
        return_offsets_mapping=True,
        return_attention_mask=False,
    )
    ends = [end for _, end in encoded["offset_mapping"]]
    boundary = sum(1 for _ in takewhile(lambda end: end <= len(before), ends))
    return torch.tensor(encoded["input_ids"]), boundary


def _render(
    tokenizer: PreTrainedTokenizerBase, context: str, question: Question, chat_template: bool
) -> tuple[str, str]:
    """Return the prompt's text up to the end of the context, and the rest."""
    if not chat_template:
        return context, question.text + question.answer_prefix
    turn = [{"role": "user", "content": context + _SPLIT + question.text}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    before, _, after = str(text).partition(_SPLIT)
    return before, after + question.answer_prefix


def _common_prefix(sequences: list[list[int]]) -> int:
    return sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*sequences, strict=False)))
