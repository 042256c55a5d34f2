"""LongBench (Bai et al., "LongBench: A Bilingual, Multitask Benchmark for Long Context Understanding", 2308.14508)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self, TypeGuard

from kvbench.errors import UsageError, unknown
from kvbench.records import content_hash
from kvbench.sources import Dataset, Files, Source, Sources, need, rows
from kvbench.task import Answer, Question, Sample, Task

from .prompts import limit_for, parsed_limit, prompt_of, shortened
from .schema import AnyRow, FormattedRow, Row
from .subsets import SUBSETS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kvbench.models import ModelFacts

NAME = "longbench"
REPOSITORY = "Xnhyacinth/LongBench"
KINDS: tuple[type[AnyRow], ...] = (Row, FormattedRow)


def dataset_of(subset: str) -> Dataset:
    """Return the hub's rows of a subset."""
    return Dataset(NAME, f"LongBench's {subset}", REPOSITORY, f"{subset}/test-*.parquet", subset)


class LongBench(Task):
    """LongBench: 21 subsets of question answering, summaries, few-shot learning, retrieval and code, in two languages.

    The score of each subset is LongBench's own metric of it, from 0 to 1 (published figures are 100 times that); the
    headline is the unweighted mean of the 21. Prompts, limits of new tokens and metrics are the benchmark's; trec,
    triviaqa, samsum, lsht, lcc and repobench-p are asked without chat template.

    Prompts longer than the model's window in thousands of tokens, less 500 (3,500 for 4k), lose their middle;
    `longbench-3500` sets the limit itself. How many tokens a sample lost is recorded.

    An answer to samsum ends at its first newline. The benchmark's own code forbids a newline as the first token;
    here an answer that begins with one is empty.

    The KVP paper compresses the two passage retrieval subsets after every chunk and the others once: run those two
    by themselves, `longbench:passage_retrieval_en+passage_retrieval_zh`, with `--schedule chunked`.

    Its rows come from the hub's parquet copy, or from `--data longbench=PATH`: a folder with a file for each subset
    (narrativeqa.jsonl, or .parquet), or one file of rows that say in `dataset` which subset they belong to.
    """

    metric: ClassVar[str] = "LongBench score"
    sources: ClassVar[tuple[str, ...]] = (NAME,)
    datasets: ClassVar[Sequence[Dataset]] = tuple(map(dataset_of, SUBSETS))

    def __init__(self, subset: Sequence[str] | None = None, sources: Sources | None = None, limit: int | None = None):
        """Make the task, of all subsets for which there is data unless some are asked for.

        Args:
            subset: Which.
            sources: A local copy, or the hub's revision.
            limit: The most tokens of a prompt; from the model's window if none.
        """
        self._asked = subset
        self._source = (sources or {}).get(NAME)
        self._found: dict[str, Files] = {}
        self._own_limit = limit
        self._limit = limit

    @classmethod
    def create(cls, variant: str | None, subset: str | None, sources: Sources) -> Self:
        """Make the task of all subsets or those named, joined by "+"; a variant is the limit of a prompt's tokens."""
        names = subset.split("+") if subset else None
        for name in names or ():
            if name not in SUBSETS:
                raise unknown("subset of longbench", name, SUBSETS)
        return cls(names, sources, parsed_limit(NAME, variant))

    @classmethod
    def spellings(cls) -> Sequence[str]:
        """Return its name; a limit can be added."""
        return [NAME]

    @property
    def name(self) -> str:
        """`longbench`, with the limit where it was given: other prompts are another task."""
        return NAME if self._own_limit is None else f"{NAME}-{self._own_limit}"

    @property
    def subtasks(self) -> Sequence[str]:
        """All 21."""
        return tuple(SUBSETS)

    def needed(self) -> Sequence[Dataset]:
        """Return the rows of the subsets asked for."""
        return [dataset_of(name) for name in self._asked or SUBSETS]

    def data_of(self, subtask: str) -> str:
        """Say which copy of the rows this is."""
        return f"{NAME} {self._files(subtask).origin if self._is_here(subtask) else 'none'}"

    def for_model(self, model: ModelFacts) -> Self:
        """Return the task with the limit that the benchmark has for the model's window, unless one was given."""
        ready = copy(self)
        if self._own_limit is None:
            ready._limit = limit_for(model.window)
        return ready

    def remarks(self) -> Sequence[str]:
        """Say which subsets are missing.

        Raises:
            UsageError: One was asked for by name, or all are missing.
        """
        drawn = self._drawn
        missing = [name for name in self._asked or SUBSETS if name not in drawn]
        return [f"{self.name} goes without {', '.join(missing)}: there are no rows of them"] if missing else []

    def samples(self, tokenizer: PreTrainedTokenizerBase, limit: int | None, seed: int) -> Sequence[Sample]:
        """Return the samples: the first row of every subset, then the second, and so on.

        Raises:
            UsageError: A row is not LongBench's, or a subset asked for has none.
        """
        of_subsets = [
            [self._sample(name, number, row, tokenizer) for number, row in enumerate(self._rows(name, limit))]
            for name in self._drawn
        ]
        longest = max(map(len, of_subsets))
        return tuple(samples[number] for number in range(longest) for samples in of_subsets if number < len(samples))

    def score(self, answer: Answer, question: Question, subtask: str) -> float:
        """Return the subset's metric of the answer, the best over the targets; of some, only the first line counts."""
        subset = SUBSETS[subtask]
        text = answer.text.lstrip("\n").split("\n")[0] if subset.first_line else answer.text
        return max(subset.metric(text, target) for target in question.targets)

    @cached_property
    def _drawn(self) -> Sequence[str]:
        """The subsets that samples are drawn of."""
        here = [name for name in self._asked or SUBSETS if self._is_here(name)]
        missing = [name for name in self._asked or () if name not in here]
        if missing or not here:
            self._refuse([*missing, *SUBSETS][0])
        return here

    def _is_here(self, name: str) -> bool:
        if _is_file(self._source):
            return name in _subsets_in(self._source)
        try:
            self._files(name)
        except UsageError:  # the folder has no file of it, or the hub has none
            return False
        return True

    def _files(self, name: str) -> Files:
        if name not in self._found:
            self._found[name] = need(dataset_of(name), self._source)
        return self._found[name]

    def _refuse(self, name: str) -> NoReturn:
        if not _is_file(self._source):
            self._files(name)
        raise UsageError(f"--data {NAME}={self._source} has no row whose dataset is '{name}'")

    def _rows(self, name: str, limit: int | None) -> Iterator[Row]:
        subset = SUBSETS[name]
        files = self._files(name)
        mixed = _is_file(self._source)
        found: Iterator[AnyRow] = rows(files, *KINDS, limit=None if mixed else limit)
        mine = (row for row in found if row.dataset in (None, name)) if mixed else found
        for number, row in enumerate(islice(mine, limit), start=1):
            if row.all_classes and tuple(row.all_classes) != tuple(subset.classes):
                raise UsageError(f"row {number} of {name} in {files.origin}: all_classes are not LongBench's")
            try:
                yield row.row_of(subset)
            except UsageError as error:
                raise UsageError(f"row {number} of {name} in {files.origin}: {error}") from None

    def _sample(self, name: str, number: int, row: Row, tokenizer: PreTrainedTokenizerBase) -> Sample:
        subset = SUBSETS[name]
        prompt = prompt_of(subset, row)
        if self._limit is not None:
            prompt = shortened(prompt, self._limit, tokenizer)
        question = Question(
            text=prompt.question,
            targets=tuple(row.answers),
            max_new_tokens=subset.max_new_tokens,
            stop=subset.stop,
        )
        return Sample(
            id=f"{name}/{number}",
            subtask=name,
            context=prompt.context,
            questions=(question,),
            source=f"{name}/{content_hash(row.context)}",  # several questions may be about one document
            template="chat" if subset.chat else "none",
            truncated_tokens=prompt.truncated_tokens,
        )


def _is_file(source: Source | None) -> TypeGuard[Path]:
    """Whether all subsets' rows are in one file."""
    return isinstance(source, Path) and not source.is_dir()


@cache
def _subsets_in(file: Path) -> frozenset[str]:
    """Return which subsets a file has rows of; all of them if its rows do not say."""
    files = need(dataset_of(next(iter(SUBSETS))), file)
    named = {row.dataset for row in rows(files, *KINDS)}
    return frozenset(SUBSETS) if None in named else frozenset(SUBSETS) & {str(name) for name in named}
