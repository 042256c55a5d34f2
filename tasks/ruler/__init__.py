"""RULER (Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context Language Models?", arXiv 2404.06654).

Its samples are drawn for the tokenizer and the length asked for. They are, byte for byte, those that the official
generator writes for the same tokenizer, length and seed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar, Self

from kvbench.errors import UsageError, unknown
from kvbench.sources import Sources
from kvbench.task import Question, Sample, Task

from .common_words import CommonWords
from .fitting import DoesNotFitError, shortest_length
from .frequent_words import FrequentWords
from .niah import IDENTIFIER, NUMBER, WORD, Niah, distractors, noise
from .subtask import Prompt, Subtask, TokenCount
from .token_counts import TokenCounter, remembered
from .variable_tracking import VariableTracking
from .words import word_list_fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SUBTASKS: dict[str, Subtask] = {
    "niah_single_1": Niah(noise(), key=WORD, value=NUMBER),
    "niah_multikey_2": Niah(distractors(WORD, NUMBER), key=WORD, value=NUMBER),
    "niah_multikey_3": Niah(distractors(IDENTIFIER, IDENTIFIER), key=IDENTIFIER, value=IDENTIFIER),
    "vt": VariableTracking(),
    "cwe": CommonWords(),
    "fwe": FrequentWords(),
}
DEFAULT_SAMPLES = 500
PUBLISHED_LENGTHS = [4096, 8192, 16384, 32768, 65536, 131072]


class Ruler(Task):
    """RULER at any length: needles, variable tracking, common and frequent words."""

    metric: ClassVar[str] = "fraction of targets contained"

    def __init__(self, length: int, asked: Sequence[str] = tuple(SUBTASKS)) -> None:
        self.length = length
        self.asked = tuple(asked)

    @classmethod
    def create(cls, variant: str | None, subset: str | None, sources: Sources) -> Self:  # noqa: ARG003
        """Make the task of a length (`4k`, `2048`), with all subtasks or those named, joined by "+"."""
        names = subset.split("+") if subset else list(SUBTASKS)
        for name in names:
            if name not in SUBTASKS:
                raise unknown("subtask of ruler", name, SUBTASKS)
        return cls(_parsed(variant), [name for name in SUBTASKS if name in names])

    @classmethod
    def spellings(cls) -> Sequence[str]:
        """Return the lengths of the published results; any other can be asked for too."""
        return [_spelled(length) for length in PUBLISHED_LENGTHS]

    @property
    def name(self) -> str:
        """The length's shortest spelling: `ruler-4k`, never `ruler-4096`."""
        return _spelled(self.length)

    @property
    def subtasks(self) -> Sequence[str]:
        """All of RULER's."""
        return tuple(SUBTASKS)

    @property
    def data(self) -> str:
        """A fingerprint of the word lists."""
        return f"wonderwords:{word_list_fingerprint()}"

    def samples(self, tokenizer: PreTrainedTokenizerBase, limit: int | None, seed: int) -> Sequence[Sample]:
        """Draw the samples: the first of every subtask, then the second, and so on.

        Raises:
            UsageError: The length is too short, or too long, for one of the subtasks.
        """
        rounds = DEFAULT_SAMPLES if limit is None else limit
        counter = TokenCounter(tokenizer)
        drawn: list[Sample] = []
        with ExitStack() as caches, ThreadPoolExecutor(os.cpu_count()) as pool:
            sources = []
            for name in self.asked:
                count = caches.enter_context(remembered(counter, f"{name}-{self.length}-seed{seed}"))
                sources.append(SUBTASKS[name].prompts(self.length, seed, count))
            try:
                for number in range(rounds):
                    prompts = pool.map(lambda source: next(source), sources)
                    drawn += [_sample(name, number, prompt) for name, prompt in zip(self.asked, prompts, strict=True)]
            except DoesNotFitError:
                raise self._too_short(seed, counter) from None
        return tuple(drawn)

    def score(self, prediction: str, question: Question, subtask: str) -> float:
        """Return the fraction of the targets that the prediction contains."""
        return SUBTASKS[subtask].score(prediction, question.targets)

    def _too_short(self, seed: int, count: TokenCount) -> UsageError:
        shortest = {name: shortest_length(SUBTASKS[name], self.length, seed, count) for name in self.asked}
        needs = [f"{name} needs {length} tokens" for name, length in shortest.items() if length > self.length]
        return UsageError(
            f"{self.name} is too short for this tokenizer: {', '.join(needs)}; "
            f"the shortest length that fits is {_spelled(max(shortest.values()))}"
        )


def _spelled(length: int) -> str:
    """Return the task's name for a length in tokens."""
    thousands, rest = divmod(length, 1024)
    return f"ruler-{length}" if rest else f"ruler-{thousands}k"


def _parsed(variant: str | None) -> int:
    """Return the tokens of `4k` or `4096`.

    Raises:
        UsageError: The variant is not a length.
    """
    if variant is None:
        raise UsageError("ruler needs a length: write ruler-4k for 4 × 1024 tokens, or ruler-2000 for 2000")
    match = re.fullmatch("([1-9][0-9]*)(k?)", variant.lower())
    if match is None:
        raise UsageError(
            f"ruler-{variant}: '{variant}' is no length, write ruler-4k for 4 × 1024 tokens, or ruler-2000 for 2000"
        )
    return int(match[1]) * (1024 if match[2] else 1)


def _sample(subtask: str, number: int, prompt: Prompt) -> Sample:
    name = f"{subtask}/{number}"
    question = Question(
        text=prompt.question,
        answer_prefix=prompt.answer_prefix,
        targets=prompt.answers,
        max_new_tokens=SUBTASKS[subtask].max_new_tokens,
    )
    return Sample(id=name, subtask=subtask, context=prompt.context, questions=(question,), source=name)
