"""LongBench's rows: in the benchmark's own schema, or as the hub's parquet copy holds them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from kvbench.errors import UsageError

from .subsets import Subset

Answers = Annotated[list[str], Field(min_length=1)]


class AnyRow(BaseModel):
    """What every kind of row may have."""

    all_classes: list[str] | None = None
    dataset: str | None = None

    def row_of(self, subset: Subset) -> Row:
        """Return it in the benchmark's own schema.

        Raises:
            UsageError: It was not made with the subset's prompt.
        """
        raise NotImplementedError


class Row(AnyRow):
    """A row in the benchmark's own schema."""

    context: str
    input: str
    answers: Answers

    def row_of(self, subset: Subset) -> Row:
        """Return it as it is."""
        return self


class FormattedRow(AnyRow):
    """A row of the hub's parquet copy: the prompt has been filled in, and cut at another place than `{context}`.

    What stands in its three texts, one after the other, is the benchmark's own prompt.
    """

    context: str
    question: str
    answer_prefix: str
    answers: Answers

    def row_of(self, subset: Subset) -> Row:
        """Return the row that it was made of."""
        between = subset.between
        ends = [between[:length] for length in range(len(between), -1, -1)]
        end = next(end for end in ends if self.context.endswith(end))
        context = self.context.removeprefix(subset.before).removesuffix(end)
        tail = end + self.question + self.answer_prefix
        given = tail.removeprefix(between).removesuffix(subset.after) if subset.asks else ""
        if subset.before + context + subset.tail(given) != self.context + self.question + self.answer_prefix:
            raise UsageError("context, question and answer_prefix are not LongBench's prompt")
        return Row(context=context, input=given, answers=self.answers, all_classes=self.all_classes)


class ReportRow(AnyRow):
    """A row of `ccdv/govreport-summarization`."""

    report: str
    summary: str

    def row_of(self, subset: Subset) -> Row:
        """Return the report as the context and the summary as the answer."""
        return Row(context=self.report, input="", answers=[self.summary])
