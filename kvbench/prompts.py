"""Prompts: a sample rendered and tokenised exactly once, then split into what is compressed and what is fed after."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvbench.errors import KvbenchError
from kvbench.task import Question, QuestionPlacement, Sample, render_turns

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
        continuations: Per question its continuations, int64 `[m]` each, m ≥ 1; none where an answer is generated.
    """

    context: Tensor
    fed: tuple[Tensor, ...]
    questions: tuple[int, ...]
    continuations: tuple[tuple[Tensor, ...], ...]

    def longest(self, sample: Sample) -> int:
        """Return the most positions that answering can take: context, question and new tokens or continuation."""
        return len(self.context) + max(
            len(fed) + max((len(tokens) for tokens in continuations), default=sample.questions[question].max_new_tokens)
            for fed, question, continuations in zip(self.fed, self.questions, self.continuations, strict=True)
        )


def prompts_of(tokenizer: PreTrainedTokenizerBase, sample: Sample, placement: QuestionPlacement) -> list[Prompt]:
    """Render a sample.

    With the question inside, each question needs a prompt of its own: all of it but the last token is the
    context, and that token is fed after compression, so that no answer token has seen what was evicted. With the
    question after, all questions share one context. The tokens of a prompt are the same either way.

    Raises:
        KvbenchError: There is nothing to compress, or a continuation has no token of its own.
    """
    rendered = [_tokens(tokenizer, sample, question) for question in sample.questions]
    if placement == "inside":
        return [
            Prompt(_context(sample, one.tokens[:-1]), (one.tokens[-1:],), (number,), (one.continuations,))
            for number, one in enumerate(rendered)
        ]
    shared = _common_prefix([one.tokens[: min(one.boundary, len(one.tokens) - 1)].tolist() for one in rendered])
    return [
        Prompt(
            _context(sample, rendered[0].tokens[:shared]),
            tuple(one.tokens[shared:] for one in rendered),
            tuple(range(len(rendered))),
            tuple(one.continuations for one in rendered),
        )
    ]


def _context(sample: Sample, tokens: Tensor) -> Tensor:
    if not len(tokens):
        raise KvbenchError(f"sample '{sample.id}' has no context before its question: there is nothing to compress")
    return tokens


@dataclass(frozen=True)
class _Rendered:
    """A question's prompt, `boundary` of whose tokens end within the context, and its continuations."""

    tokens: Tensor
    boundary: int
    continuations: tuple[Tensor, ...]


def _tokens(tokenizer: PreTrainedTokenizerBase, sample: Sample, question: Question) -> _Rendered:
    """Tokenise the whole prompt at once, and again with each continuation: no token is cut by where a part ends.

    The prompt is then what all continuations have in common; a token that reaches from the prompt into a
    continuation belongs to the continuation.
    """
    before, after = _render(tokenizer, sample, question)
    prompt = before + after
    encoded = [_encode(tokenizer, prompt + text, sample) for text in question.continuations or ("",)]
    shared = min(_ending_by(len(prompt), ends) for _, ends in encoded)
    shared = min(shared, _common_prefix([ids for ids, _ in encoded]))
    ids, ends = encoded[0]
    boundary = min(_ending_by(len(before), ends), shared)
    if not question.continuations:
        return _Rendered(torch.tensor(ids), boundary, ())
    for text, (one, _) in zip(question.continuations, encoded, strict=True):
        if len(one) == shared:
            raise KvbenchError(f"sample '{sample.id}': the continuation '{text}' adds no token to the prompt")
    return _Rendered(torch.tensor(ids[:shared]), boundary, tuple(torch.tensor(one[shared:]) for one, _ in encoded))


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, sample: Sample) -> tuple[list[int], list[int]]:
    """Return a text's tokens, and where in it each of them ends."""
    encoded = tokenizer(
        text,
        add_special_tokens=sample.template == "none",  # a template writes its own
        return_offsets_mapping=True,
        return_attention_mask=False,
    )
    return encoded["input_ids"], [end for _, end in encoded["offset_mapping"]]


def _ending_by(length: int, ends: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda end: end <= length, ends))


def _render(tokenizer: PreTrainedTokenizerBase, sample: Sample, question: Question) -> tuple[str, str]:
    """Return the prompt's text up to the end of the context, and the rest."""
    if sample.template != "chat":
        return sample.context, question.text + question.answer_prefix
    turn = [{"role": "user", "content": sample.context + _SPLIT + question.text}]
    before, _, after = render_turns(tokenizer, turn, reply_follows=True).partition(_SPLIT)
    return before, after + question.answer_prefix


def _common_prefix(sequences: list[list[int]]) -> int:
    return sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*sequences, strict=False)))
