"""A prompt cut at the end of its context, and shortened to what a model takes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from kvbench.errors import UsageError

from .schema import Row
from .subsets import Subset

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RESERVE = 500
"""Tokens of the window that are left to the chat template and the answer."""


@dataclass(frozen=True)
class CutPrompt:
    """A prompt's text up to the end of the context, the rest, and how many tokens were cut out of its middle."""

    context: str
    question: str
    truncated_tokens: int = 0


def prompt_of(subset: Subset, row: Row) -> CutPrompt:
    """Fill a row into its subset's prompt."""
    return CutPrompt(subset.before + row.context, subset.tail(row.input))


def shortened(prompt: CutPrompt, limit: int, tokenizer: PreTrainedTokenizerBase) -> CutPrompt:
    """Return a prompt of at most `limit` tokens: the first and the last half of them, decoded.

    They are the tokens of the whole prompt before the chat template, special ones included, as in the benchmark. The
    question is what is left of it: where it is itself longer than half the limit, it has lost its beginning.
    """
    tokens = tokenizer(prompt.context + prompt.question, return_attention_mask=False)["input_ids"]
    if len(tokens) <= limit:
        return prompt
    half = limit // 2
    first, last = (str(tokenizer.decode(part, skip_special_tokens=True)) for part in (tokens[:half], tokens[-half:]))
    from_end = zip(reversed(last), reversed(prompt.question), strict=False)
    kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], from_end))
    boundary = len(last) - kept
    return CutPrompt(first + last[:boundary], last[boundary:], len(tokens) - 2 * half)


def limit_for(window: int) -> int:
    """Return the benchmark's limit for a model's window: 3,500 tokens for 4k, 7,500 for 8k, 31,500 for 32k.

    Raises:
        UsageError: The window is shorter than 1,024.
    """
    if window < 1024:
        raise UsageError(
            f"the model's window of {window} tokens is shorter than 1024: give LongBench's limit yourself, "
            "as in longbench-200"
        )
    return window // 1024 * 1000 - RESERVE


def parsed_limit(task: str, variant: str | None) -> int | None:
    """Return the tokens that a variant asks for; none if there is no variant.

    Raises:
        UsageError: It is not a number from 2 up.
    """
    if variant is None:
        return None
    if not variant.isdecimal() or int(variant) < 2:
        raise UsageError(
            f"{task}-{variant}: '{variant}' is no limit, write {task}-3500 for prompts of at most 3500 tokens"
        )
    return int(variant)
