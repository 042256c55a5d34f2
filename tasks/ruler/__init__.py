"""RULER (Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context Language Models?", arXiv 2404.06654).

Its samples are drawn for the tokenizer and the length asked for. They are, byte for byte, those that the official
generator writes for the same tokenizer, length, seed and source data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

from kvbench.errors import UsageError, unknown
from kvbench.sources import Dataset, Sources
from kvbench.task import Answer, Question, Sample, Task
from kvbench.token_lengths import parse_length, spell_length

from .data import CORPORA, ESSAYS, HOTPOTQA, NLTK, SQUAD, Data
from .fitting import DoesNotFitError, shortest_length
from .scoring import any_contained, share_contained
from .subtask import Prompt, Subtask, TokenCount
from .subtasks import CORPUS_OF, ESSAY_SUBTASKS, SUBTASKS
from .token_counts import TokenCounter, remembered

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_SAMPLES = 500
CHUNKED_FROM = 64 * 1024
"""Lengths from here on are compressed after every chunk unless the user says otherwise."""
PUBLISHED_LENGTHS = [4096, 8192, 16384, 32768, 65536, 131072]
PROSE = "-prose"
"""Ends the name where the haystack is kvbench's own prose: another task than RULER's own."""


class Ruler(Task):
    """RULER at any length: needles, variable tracking, common and frequent words, question answering.

    Its essays have to be given: `--data essays=PATH`, a folder of .txt files or the official PaulGrahamEssays.json.
    Without them the subtasks that need them hide their needles in a text of kvbench's own, and the task is another one,
    `ruler-4k-prose` instead of `ruler-4k`.

    SQuAD (`squad`) and HotpotQA (`hotpotqa`) come from the hub or its cache unless their published files are given,
    and nltk's punkt_tab (`nltk`, a folder nltk_data) from where nltk finds or downloads it.
    """

    metric: ClassVar[str] = "fraction of targets contained"
    sources: ClassVar[tuple[str, ...]] = (ESSAYS, NLTK, SQUAD, HOTPOTQA)
    datasets: ClassVar[Sequence[Dataset]] = tuple(corpus.dataset for corpus in CORPORA.values())

    def __init__(
        self, length: int, subset: Sequence[str] | None = None, sources: Sources | None = None, own_prose: bool = False
    ) -> None:
        """Make the task, of all subtasks for which there is data unless a subset is asked for."""
        self.length = length
        self.schedule = "after-prefill" if length < CHUNKED_FROM else "chunked"
        self._subset = subset
        self._data = Data(sources or {}, own_prose, reads_essays=bool(ESSAY_SUBTASKS.intersection(subset or SUBTASKS)))

    @classmethod
    def create(cls, variant: str | None, subset: str | None, sources: Sources) -> Self:
        """Make the task of a length (`4k`, `2048`), with all subtasks or those named, joined by "+".

        A length that ends in "-prose" leaves the essays for kvbench's own prose.
        """
        names = subset.split("+") if subset else None
        for name in names or ():
            if name not in SUBTASKS:
                raise unknown("subtask of ruler", name, SUBTASKS)
        length = (variant or "").removesuffix(PROSE)
        return cls(_parsed(length or None), names, sources, own_prose=length != (variant or ""))

    @classmethod
    def spellings(cls) -> Sequence[str]:
        """Return the lengths of the published results; any other can be asked for too."""
        return [_spelled(length) for length in PUBLISHED_LENGTHS]

    @property
    def name(self) -> str:
        """The length's shortest spelling: `ruler-4k`, never `ruler-4096`; and whether it is of RULER's own essays."""
        return _spelled(self.length) + (PROSE if self._data.is_own_prose else "")

    @property
    def subtasks(self) -> Sequence[str]:
        """All thirteen."""
        return tuple(SUBTASKS)

    def data_of(self, subtask: str) -> str:
        """Name what a subtask is drawn from: word lists, essays, or a question answering set."""
        if subtask in CORPUS_OF:
            return self._data.corpus_origin(CORPUS_OF[subtask])
        if subtask in ESSAY_SUBTASKS:
            return f"{self._data.words_origin}, {self._data.haystack_origin}"
        return self._data.words_origin

    def needed(self) -> Sequence[Dataset]:
        """Return the question answering sets that the subtasks asked for draw from."""
        return [CORPORA[corpus].dataset for name, corpus in CORPUS_OF.items() if name in (self._subset or SUBTASKS)]

    def remarks(self) -> Sequence[str]:
        """Say what stands in for the essays, and which subtasks are missing.

        Raises:
            UsageError: A subtask asked for by name has no data.
        """
        drawn = self._drawn
        remarks = []
        if why := self._data.why_own_prose:
            remarks.append(f"{why}: a text of kvbench's own is the haystack, which makes the task {self.name}")
        for name, corpus in CORPUS_OF.items():
            if self._subset is None and name not in drawn:
                remarks.append(f"{self.name} goes without {name}: {self._data.lacks(corpus)}")
        return remarks

    def samples(self, tokenizer: PreTrainedTokenizerBase, limit: int | None, seed: int) -> Sequence[Sample]:
        """Draw the samples: the first of every subtask, then the second, and so on.

        Raises:
            UsageError: The length is too short, or too long, for one of the subtasks; or one asked for has no data.
        """
        rounds = DEFAULT_SAMPLES if limit is None else limit
        counter = TokenCounter(tokenizer)
        drawn: list[Sample] = []
        with ExitStack() as caches, ThreadPoolExecutor(os.cpu_count()) as pool:
            sources = {}
            for name, subtask in self._drawn.items():
                count = caches.enter_context(remembered(counter, f"{name}-{self.length}-seed{seed}"))
                sources[name] = subtask.prompts(self.length, seed, count)
            try:
                for number in range(rounds):
                    prompts = pool.map(lambda source: next(source, None), sources.values())
                    drawn += [
                        self._sample(name, number, prompt)
                        for name, prompt in zip(sources, prompts, strict=True)
                        if prompt is not None
                    ]
            except DoesNotFitError:
                raise self._too_short(rounds, seed, counter) from None
        return tuple(drawn)

    def score(self, answer: Answer, question: Question, subtask: str) -> float:
        """Return the fraction of the targets that the answer contains; of a question's answers, any will do."""
        score = any_contained if subtask in CORPUS_OF else share_contained
        return score(answer.text, question.targets)

    @cached_property
    def _drawn(self) -> dict[str, Subtask]:
        """The subtasks that samples are drawn of."""
        wanted = self._subset or [
            name for name in SUBTASKS if name not in CORPUS_OF or self._data.find(CORPUS_OF[name])
        ]
        return {name: make(self._data) for name, make in SUBTASKS.items() if name in wanted}

    def _sample(self, subtask: str, number: int, prompt: Prompt) -> Sample:
        name = f"{subtask}/{number}"
        question = Question(
            text=prompt.question,
            answer_prefix=prompt.answer_prefix,
            targets=prompt.answers,
            max_new_tokens=self._drawn[subtask].max_new_tokens,
        )
        return Sample(
            id=name, subtask=subtask, context=prompt.context, questions=(question,), source=prompt.source or name
        )

    def _too_short(self, rounds: int, seed: int, count: TokenCount) -> UsageError:
        shortest = {
            name: shortest_length(subtask, self.length, rounds, seed, count) for name, subtask in self._drawn.items()
        }
        needs = [f"{name} needs {length} tokens" for name, length in shortest.items() if length > self.length]
        return UsageError(
            f"{_spelled(self.length)} is too short for this tokenizer: {', '.join(needs)}; "
            f"the shortest length that fits is {_spelled(max(shortest.values()))}"
        )


def _spelled(length: int) -> str:
    """Return the task's name for a length in tokens."""
    return f"ruler-{spell_length(length)}"


def _parsed(variant: str | None) -> int:
    """Return the tokens of `4k` or `4096`.

    Raises:
        UsageError: The variant is not a length.
    """
    if variant is None:
        raise UsageError("ruler needs a length: write ruler-4k for 4 × 1024 tokens, or ruler-2000 for 2000")
    length = parse_length(variant)
    if length is None:
        raise UsageError(
            f"ruler-{variant}: '{variant}' is no length, write ruler-4k for 4 × 1024 tokens, or ruler-2000 for 2000"
        )
    return length
