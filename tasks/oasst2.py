"""Perplexity of conversations from OASST2 (Köpf et al., "OpenAssistant Conversations", arXiv 2304.07327).

The KVP paper (arXiv 2602.10238) does not publish how it makes its OASST2-4k; this is kvbench's own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import BaseModel

from kvbench.errors import UsageError, unknown
from kvbench.records import ShownAs
from kvbench.sources import Dataset, Files, Source, Sources, need, rows
from kvbench.task import Answer, Question, Sample, Task, render_turns
from kvbench.token_lengths import parse_length, spell_length

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OASST2 = Dataset("oasst2", "OASST2", "OpenAssistant/oasst2", "data/*.parquet", "trees")
DEFAULT_LENGTH = 4096
TRAIN = "train"
"""The subset of the trees that the benchmark never reads: what learned presses may be trained on."""


class Message(BaseModel):
    """What a conversation is made of, in both published forms: trees, and one row per message."""

    text: str
    role: str
    lang: str
    review_result: bool | None = None
    deleted: bool = False
    rank: float | None = None
    replies: list[Message] = []

    @property
    def is_fit(self) -> bool:
        """Whether it is English, reviewed and there."""
        return self.lang == "en" and self.review_result is True and not self.deleted


class Row(BaseModel):
    """What a row of either form says of its tree."""

    message_tree_id: str
    tree_state: str


class TreeRow(Row):
    """A line of the published `…trees.jsonl`."""

    prompt: Message


class MessageRow(Row, Message):
    """A row of the hub's parquet files."""

    message_id: str
    parent_id: str | None


@dataclass(frozen=True)
class Thread:
    """A conversation that begins with a prompter and ends with an assistant, `{role, content}` per turn."""

    tree: str
    turns: tuple[dict[str, str], ...]


class OASST2Perplexity(Task):
    """OASST2 conversations: the perplexity of an assistant's last reply, teacher-forced after compression.

    Whole threads are put behind each other until the chat has about 4,096 tokens (`oasst2-2k`: 2,048); the last thread
    is another one in every sample, its last reply is what is scored, all before it is the context. A thread follows
    the best-ranked replies of a tree that is English, reviewed, not deleted and ready for export.

    Half of the trees, by a hash of their ids, are left for training: `oasst2:train`.
    """

    metric: ClassVar[str] = "perplexity"
    lower_is_better: ClassVar[bool] = True
    shown_as: ClassVar[ShownAs] = "exp"
    sources: ClassVar[tuple[str, ...]] = (OASST2.name,)
    datasets: ClassVar[tuple[Dataset, ...]] = (OASST2,)

    def __init__(self, length: int = DEFAULT_LENGTH, source: Source | None = None, train: bool = False) -> None:
        """Make the task of chats of `length` tokens."""
        self.length = length
        self._source = source
        self._train = train

    @classmethod
    def create(cls, variant: str | None, subset: str | None, sources: Sources) -> Self:
        """Make the task of a length (`2k`, `1000`), of the benchmark's trees or of those for training."""
        if subset not in (None, TRAIN):
            raise unknown("subset of oasst2", subset, [TRAIN])
        length = parse_length(variant) if variant else DEFAULT_LENGTH
        if length is None:
            raise UsageError(f"oasst2-{variant}: '{variant}' is no length, write oasst2-2k for 2 × 1024 tokens")
        return cls(length, sources.get(OASST2.name), subset == TRAIN)

    @classmethod
    def spellings(cls) -> Sequence[str]:
        """Return the default length and the trees for training; any other length can be asked for too."""
        return ["oasst2", f"oasst2:{TRAIN}"]

    @property
    def name(self) -> str:
        """`oasst2`, with its length unless it is the default, and whether it is of the trees for training."""
        length = "" if self.length == DEFAULT_LENGTH else f"-{spell_length(self.length)}"
        return f"oasst2{length}{f'-{TRAIN}' if self._train else ''}"

    def data_of(self, subtask: str) -> str:
        """Name the copy of the trees."""
        return self._files.origin

    def remarks(self) -> Sequence[str]:
        """Look for the trees.

        Raises:
            UsageError: They are nowhere.
        """
        need(OASST2, self._source)
        return ()

    def samples(self, tokenizer: PreTrainedTokenizerBase, limit: int | None, seed: int) -> Sequence[Sample]:
        """Return as many samples as there are threads that fit, each ending in another one.

        Raises:
            UsageError: The trees cannot be read, none of them fits, or the tokenizer has no chat template.
        """
        threads = sorted(self._threads, key=lambda thread: thread.tree)
        sizes = {thread.tree: _tokens(tokenizer, thread.turns) for thread in threads}
        fitting = [thread for thread in threads if sizes[thread.tree] <= self.length]
        if not fitting:
            raise UsageError(f"{self.name}: none of the {len(threads)} threads of {self._files.origin} fits its length")
        Random(seed).shuffle(fitting)
        return tuple(
            _sample(tokenizer, last, _before(last, threads, sizes, self.length, seed)) for last in fitting[:limit]
        )

    def score(self, answer: Answer, question: Question, subtask: str) -> float:
        """Return the reply's negative log-likelihood per token, in nats."""
        return -answer.log_likelihoods[0] / answer.continuation_tokens[0]

    def weight(self, answer: Answer) -> float:
        """Return the reply's tokens."""
        return float(answer.continuation_tokens[0])

    @cached_property
    def _files(self) -> Files:
        return need(OASST2, self._source)

    @cached_property
    def _threads(self) -> list[Thread]:
        trees = ((tree, prompt) for tree, prompt in _trees(self._files) if is_for_training(tree) == self._train)
        return [thread for tree, prompt in trees if (thread := _thread(tree, prompt))]


def is_for_training(tree: str) -> bool:
    """Tell the half of the trees that the benchmark never reads, by the tree's id."""
    return sha256(tree.encode()).digest()[0] % 2 == 1


def _trees(files: Files) -> Iterator[tuple[str, Message]]:
    """Yield the id and the first message of every tree that is ready for export."""
    messages: dict[str | None, list[MessageRow]] = {}
    for row in rows(files, TreeRow, MessageRow):
        if row.tree_state != "ready_for_export":
            continue
        if isinstance(row, TreeRow):
            yield row.message_tree_id, row.prompt
        elif isinstance(row, MessageRow):
            messages.setdefault(row.parent_id, []).append(row)
    for root in messages.get(None, []):
        yield root.message_tree_id, _grown(root, messages)


def _grown(message: MessageRow, by_parent: dict[str | None, list[MessageRow]]) -> Message:
    replies: list[Message] = [_grown(reply, by_parent) for reply in by_parent.get(message.message_id, [])]
    return message.model_copy(update={"replies": replies})


def _thread(tree: str, prompt: Message) -> Thread | None:
    """Follow the best-ranked replies up to the last assistant's; none if there is no such reply."""
    turns: list[dict[str, str]] = []
    message: Message | None = prompt if prompt.is_fit else None
    while message is not None:
        role = "assistant" if message.role == "assistant" else "user"
        turns.append({"role": role, "content": message.text})
        message = _best(message.replies)
    while turns and turns[-1]["role"] != "assistant":
        turns.pop()
    return Thread(tree, tuple(turns)) if turns else None


def _best(replies: Iterable[Message]) -> Message | None:
    fit = [reply for reply in replies if reply.is_fit]
    return min(fit, key=lambda reply: float("inf") if reply.rank is None else reply.rank, default=None)


def _before(last: Thread, threads: Sequence[Thread], sizes: dict[str, int], length: int, seed: int) -> list[Thread]:
    """Draw the threads before the last one: whichever still fit, in a random order."""
    others = [thread for thread in threads if thread.tree != last.tree]
    Random(f"{seed} {last.tree}").shuffle(others)
    left = length - sizes[last.tree]
    drawn: list[Thread] = []
    for thread in others:
        if sizes[thread.tree] <= left:
            drawn.append(thread)
            left -= sizes[thread.tree]
    return drawn


def _sample(tokenizer: PreTrainedTokenizerBase, last: Thread, before: Sequence[Thread]) -> Sample:
    turns = [turn for thread in (*before, last) for turn in thread.turns]
    prompt = render_turns(tokenizer, turns[:-1], reply_follows=True)
    before_question = (
        render_turns(tokenizer, turns[:-2]) if len(turns) > 2 else ""
    )  # the question of a chat is the user's last turn
    context = before_question if prompt.startswith(before_question) else ""
    question = Question(text=prompt[len(context) :], targets=(), continuations=(turns[-1]["content"],))
    return Sample(
        id=f"oasst2/{last.tree}",
        subtask="oasst2",
        context=context,
        questions=(question,),
        source=last.tree,
        template="rendered",
    )


def _tokens(tokenizer: PreTrainedTokenizerBase, turns: Sequence[dict[str, str]]) -> int:
    return len(tokenizer(render_turns(tokenizer, turns), add_special_tokens=False)["input_ids"])
