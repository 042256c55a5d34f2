"""BoolQ (Clark et al., "BoolQ: Exploring the Surprising Difficulty of Natural Yes/No Questions", arXiv 1905.10044)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import BaseModel

from kvbench.errors import UsageError
from kvbench.sources import Dataset, Files, Source, Sources, need, rows
from kvbench.task import Answer, Question, QuestionPlacement, Sample, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BOOLQ = Dataset("boolq", "BoolQ", "google/boolq", "data/validation-*.parquet", "validation")
CHOICES = (" no", " yes")


class Row(BaseModel):
    """A row of the hub's `google/boolq`."""

    question: str
    passage: str
    answer: bool


class BoolQ(Task):
    """BoolQ: a short passage and a question that it answers with yes or no, chosen by log-likelihood.

    The prompt is lm-eval's, without a chat template. Passages have about 110 tokens in the median: budgets from 16 to
    256 tell presses apart. The larger class is 62 % of the validation set.
    """

    metric: ClassVar[str] = "accuracy"
    binary: ClassVar[bool] = True
    question: ClassVar[QuestionPlacement] = "after"
    sources: ClassVar[tuple[str, ...]] = (BOOLQ.name,)
    datasets: ClassVar[Sequence[Dataset]] = (BOOLQ,)

    def __init__(self, source: Source | None = None) -> None:
        """Take the rows from a local copy, a revision of the hub's, or the hub's newest."""
        self._source = source

    @classmethod
    def create(cls, variant: str | None, subset: str | None, sources: Sources) -> Self:
        """Make the task; it has neither variants nor subsets."""
        if variant or subset:
            raise UsageError(f"boolq has no {f'variant {variant!r}' if variant else f'subset {subset!r}'}: write boolq")
        return cls(sources.get(BOOLQ.name))

    @classmethod
    def spellings(cls) -> Sequence[str]:
        """Return the one name it has."""
        return ["boolq"]

    @property
    def name(self) -> str:
        """The one name it has."""
        return "boolq"

    def data_of(self, subtask: str) -> str:
        """Name the copy of the validation set."""
        return self._files.origin

    def remarks(self) -> Sequence[str]:
        """Look for the rows.

        Raises:
            UsageError: They are nowhere.
        """
        need(BOOLQ, self._source)
        return ()

    def samples(self, tokenizer: PreTrainedTokenizerBase, limit: int | None, seed: int) -> Sequence[Sample]:
        """Return the first rows. Questions about one passage are one cluster.

        Raises:
            UsageError: The rows cannot be read.
        """
        return tuple(_sample(number, row) for number, row in enumerate(rows(self._files, Row, limit=limit)))

    def score(self, answer: Answer, question: Question, subtask: str) -> float:
        """Return 1 if the more likely choice is the right one."""
        return float((answer.text,) == question.targets)

    @cached_property
    def _files(self) -> Files:
        return need(BOOLQ, self._source)


def _sample(number: int, row: Row) -> Sample:
    question = Question(
        text=f"\nQuestion: {row.question}?\nAnswer:", targets=(CHOICES[row.answer],), continuations=CHOICES
    )
    return Sample(
        id=f"boolq/{number}",
        subtask="boolq",
        context=row.passage,
        questions=(question,),
        source=f"passage {sha256(row.passage.encode()).hexdigest()[:16]}",
        template="none",
    )
