"""GovReport (Huang et al., "Efficient Attentions for Long Document Summarization", arXiv 2104.02112)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

from kvbench.errors import unknown
from kvbench.records import content_hash
from kvbench.sources import Dataset, Files, Sources, need, rows
from kvbench.task import Answer, Question, QuestionPlacement, Sample, Task

from .longbench import KINDS, REPOSITORY
from .longbench.metrics import rouge_l
from .longbench.prompts import limit_for, parsed_limit, prompt_of, shortened
from .longbench.schema import ReportRow, Row
from .longbench.subsets import SUBSETS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kvbench.models import ModelFacts

NAME = "govreport"
SUBSET = SUBSETS["gov_report"]
DATASET = Dataset(NAME, "GovReport", REPOSITORY, "gov_report/test-*.parquet", "gov_report")
OTHER_METRIC = "ROUGE-L F (rouge_score)"


class GovReport(Task):
    """GovReport: summaries of reports by the United States' government agencies, in up to 512 new tokens.

    The rows are LongBench's 200, with its prompt, unless `--data govreport=PATH` gives others: in LongBench's schema
    or in that of ccdv/govreport-summarization, `report` and `summary`. Prompts longer than LongBench's limit for the
    model's window lose their middle; `govreport-3500` sets the limit itself.

    The score is ROUGE-L F of the `rouge` package, LongBench's metric; ROUGE-L F of Google's `rouge_score`, with
    stemming, stands beside it in each record. The two differ: figures of one are not comparable with the other's.
    """

    metric: ClassVar[str] = "ROUGE-L F (rouge)"
    question: ClassVar[QuestionPlacement] = "after"
    sources: ClassVar[tuple[str, ...]] = (NAME,)
    datasets: ClassVar[Sequence[Dataset]] = (DATASET,)

    def __init__(self, sources: Sources | None = None, limit: int | None = None) -> None:
        """Make the task; `limit` is the most tokens of a prompt, by default from the model's window."""
        self._source = (sources or {}).get(NAME)
        self._own_limit = limit
        self._limit = limit

    @classmethod
    def create(cls, variant: str | None, subset: str | None, sources: Sources) -> Self:
        """Make the task; a variant is the limit of a prompt's tokens, and there are no subsets."""
        if subset is not None:
            raise unknown("subset of govreport", subset, [])
        return cls(sources, parsed_limit(NAME, variant))

    @classmethod
    def spellings(cls) -> Sequence[str]:
        """Return its name; a limit can be added."""
        return [NAME]

    @property
    def name(self) -> str:
        """`govreport`, with the limit where it was given: other prompts are another task."""
        return NAME if self._own_limit is None else f"{NAME}-{self._own_limit}"

    def data_of(self, subtask: str) -> str:
        """Say which copy of the rows this is."""
        return f"{NAME} {self._files.origin}"

    def for_model(self, model: ModelFacts) -> Self:
        """Return the task with LongBench's limit for the model's window, unless one was given."""
        ready = copy(self)
        if self._own_limit is None:
            ready._limit = limit_for(model.window)
        return ready

    def remarks(self) -> Sequence[str]:
        """Look for the rows.

        Raises:
            UsageError: They are nowhere.
        """
        need(DATASET, self._source)
        return ()

    def samples(self, tokenizer: PreTrainedTokenizerBase, limit: int | None, seed: int) -> Sequence[Sample]:
        """Return the samples, in the order of the rows.

        Raises:
            UsageError: A row is malformed, or there are none.
        """
        found = rows(self._files, *KINDS, ReportRow, limit=limit)
        return tuple(self._sample(number, row.row_of(SUBSET), tokenizer) for number, row in enumerate(found))

    def score(self, answer: Answer, question: Question, subtask: str) -> float:
        """Return the best ROUGE-L F over the targets, as LongBench computes it."""
        return max(rouge_l(answer.text, target) for target in question.targets)

    def other_scores(self, answer: Answer, question: Question, subtask: str) -> dict[str, float]:
        """Return the best ROUGE-L F over the targets, as `rouge_score` computes it with stemming."""
        from rouge_score.rouge_scorer import RougeScorer

        scores = RougeScorer(["rougeL"], use_stemmer=True).score_multi(question.targets, answer.text)
        return {OTHER_METRIC: float(scores["rougeL"].fmeasure)}

    @cached_property
    def _files(self) -> Files:
        return need(DATASET, self._source)

    def _sample(self, number: int, row: Row, tokenizer: PreTrainedTokenizerBase) -> Sample:
        prompt = prompt_of(SUBSET, row)
        if self._limit is not None:
            prompt = shortened(prompt, self._limit, tokenizer)
        question = Question(text=prompt.question, targets=tuple(row.answers), max_new_tokens=SUBSET.max_new_tokens)
        return Sample(
            id=f"{NAME}/{number}",
            subtask=NAME,
            context=prompt.context,
            questions=(question,),
            source=f"{NAME}/{content_hash(row.context)}",
            truncated_tokens=prompt.truncated_tokens,
        )
