"""The task interface: what a benchmark task gives to the sweep and gets back from it.

A task knows nothing of presses or budgets. To add one, subclass `Task` in a file of its own and name it in an
entry point of the group `kvbench.tasks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvbench.errors import UsageError
from kvbench.records import Schedule, ShownAs, Stopped
from kvbench.sources import Dataset, Sources

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kvbench.models import ModelFacts

QuestionPlacement = Literal["inside", "after"]
Template = Literal["chat", "none", "rendered"]


class Question(BaseModel):
    """One question about a sample's context, and what a right answer holds.

    It is answered greedily with up to `max_new_tokens`, or, where it has `continuations`, by their log-likelihoods.
    """

    model_config = ConfigDict(frozen=True)

    text: str
    """What follows the context in the user's turn, verbatim (its own leading separator included)."""
    answer_prefix: str = ""
    """The words put into the assistant's mouth, after the template's assistant header."""
    targets: tuple[str, ...]
    """The reference answers; the task's `score` says how many of them a full mark needs."""
    max_new_tokens: int = Field(default=0, ge=0)
    stop: tuple[str, ...] = ()
    """Texts that end an answer, beside the model's own end-of-turn tokens."""
    continuations: tuple[str, ...] = ()
    """Texts whose log-likelihoods are wanted in place of a generated answer: choices, or a reference reply."""

    @model_validator(mode="after")
    def _one_kind_of_answer(self) -> Self:
        if bool(self.continuations) == bool(self.max_new_tokens):
            raise ValueError("a question has either max_new_tokens or continuations")
        return self


@dataclass(frozen=True)
class Answer:
    """What a model gave to one question.

    Attributes:
        text: The generated answer; of continuations, the most likely one.
        tokens: The generated tokens.
        stopped: What ended the generated answer.
        log_likelihoods: Per continuation the natural logarithm of its probability, summed over its tokens.
        continuation_tokens: Per continuation how many tokens it has.
        greedy: Per continuation whether greedy decoding would have given it.
    """

    text: str
    tokens: tuple[int, ...] = ()
    stopped: Stopped | None = None
    log_likelihoods: tuple[float, ...] = ()
    continuation_tokens: tuple[int, ...] = ()
    greedy: tuple[bool, ...] = ()


class Sample(BaseModel):
    """A context to compress and the questions asked about it."""

    model_config = ConfigDict(frozen=True)

    id: str
    """Unique within the task, the same in every run."""
    subtask: str
    context: str
    questions: tuple[Question, ...] = Field(min_length=1)
    source: str
    """The document the sample comes from: samples of one source are one cluster in the statistics."""
    template: Template = "chat"
    """How the prompt is rendered: as the user's turn of a chat; as plain text, with the special tokens that the
    tokenizer adds by itself; or not at all, where the task has rendered several turns in the model's template."""
    truncated_tokens: int = Field(default=0, ge=0)
    """How many tokens of the original the task has left out to make it fit."""


def render_turns(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[dict[str, str]], reply_follows: bool = False
) -> str:
    """Return the text of a chat, `{role, content}` per turn, in the model's own template.

    Args:
        tokenizer: The model's.
        turns: User and assistant in turn.
        reply_follows: End with the header of an assistant's turn.

    Raises:
        UsageError: The tokenizer has no chat template, or its template refuses the turns.
    """
    if tokenizer.chat_template is None:
        raise UsageError(f"the tokenizer of {tokenizer.name_or_path} has no chat template, which this task needs")
    try:
        return str(tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=reply_follows))
    except Exception as error:  # a template is a program, and may raise what it likes
        raise UsageError(f"the chat template of {tokenizer.name_or_path} refuses a chat: {error}") from None


class Task(ABC):
    """A benchmark task: samples, and a score for each answer."""

    version: ClassVar[int] = 1
    """Raised when samples or scores change, so that old results are not mixed with new ones."""
    metric: ClassVar[str]
    """The score's name, as an axis label."""
    schedule: Schedule = "after-prefill"
    """When the cache is compressed unless the user says otherwise."""
    question: ClassVar[QuestionPlacement] = "inside"
    """Where the question sits unless the user says otherwise."""
    binary: ClassVar[bool] = False
    """Whether every score is 0 or 1 (its interval is then Wilson's)."""
    lower_is_better: ClassVar[bool] = False
    shown_as: ClassVar[ShownAs] = "mean"
    """"exp" where scores are negative log-likelihoods per token: their mean is shown as a perplexity."""
    sources: ClassVar[tuple[str, ...]] = ()
    """The names under which a user can give the task's data, `--data NAME=PATH`."""
    datasets: ClassVar[Sequence[Dataset]] = ()
    """What the hub has of it: `--revision NAME=REVISION` pins one, and `kvbench data fetch` gets those needed."""

    @classmethod
    @abstractmethod
    def create(cls, variant: str | None, subset: str | None, sources: Sources) -> Self:
        """Make the task from its name on the command line, `<entry point>[-<variant>][:<subset>]`.

        Args:
            variant: As typed.
            subset: As typed.
            sources: Local copies of the task's data; those it can do without, or find itself, may be absent.

        Raises:
            UsageError: There is no such variant or subset; the message says which there are.
        """

    @classmethod
    @abstractmethod
    def spellings(cls) -> Sequence[str]:
        """Return the names under which a user can ask for the task, for lists and messages."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The task's full name without subset (`ruler-4k`): results of one name share a table."""

    @abstractmethod
    def data_of(self, subtask: str) -> str:
        """Say which source data a subtask's samples are drawn from: names with fingerprints or revisions."""

    @property
    def subtasks(self) -> Sequence[str]:
        """All subtasks that the score is the mean of, whichever were asked for; none if there is no such list."""
        return ()

    def for_model(self, model: ModelFacts) -> Self:
        """Return the task made ready for one model; most tasks need only its tokenizer and return themselves."""
        return self

    def needed(self) -> Sequence[Dataset]:
        """Return those of the hub's datasets that the subsets asked for are made of."""
        return self.datasets

    def remarks(self) -> Sequence[str]:
        """Look for the data, and say in a sentence each what is missing or stands in for something else.

        Raises:
            UsageError: What was asked for by name cannot be had without data that is not here.
        """
        return ()

    @abstractmethod
    def samples(self, tokenizer: PreTrainedTokenizerBase, limit: int | None, seed: int) -> Sequence[Sample]:
        """Return the samples, `limit` of each subtask (all by default).

        The first samples of a larger limit are those of a smaller one.
        """

    @abstractmethod
    def score(self, answer: Answer, question: Question, subtask: str) -> float:
        """Score one answer, higher is better unless `lower_is_better`."""

    def other_scores(self, answer: Answer, question: Question, subtask: str) -> dict[str, float]:
        """Return further metrics of an answer by name, recorded beside the score."""
        return {}

    def weight(self, answer: Answer) -> float:
        """Return what an answer's score counts in a mean: its tokens, say, where the score is per token."""
        return 1.0
