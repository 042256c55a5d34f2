"""Question answering (qa): a question of a published set, its documents hidden among those of other questions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow.parquet as pq

from .fitting import Room, draw_fitting, fitted_size, upper_size
from .subtask import Prompt, Subtask, TokenCount

STEP = 10
INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
)
CONTEXT = INSTRUCTION + "\n\nThe following are given documents.\n\n{documents}"
QUESTION = "\n\n" + INSTRUCTION + "\n\nQuestion: {question}"
ANSWER_PREFIX = " Answer:"


@dataclass(frozen=True)
class CorpusQuestion:
    """A question of a corpus.

    Attributes:
        text: The question itself.
        answers: Any of which is right.
        own: The documents that belong to it, by their places in the corpus.
        nearer: Documents that are used before any other.
        source: Names what its own documents come from.
    """

    text: str
    answers: tuple[str, ...]
    own: tuple[int, ...]
    nearer: tuple[int, ...]
    source: str


@dataclass(frozen=True)
class Corpus:
    """Documents without repeats, in sorted order, and the questions about them in the order they are asked in."""

    documents: tuple[str, ...]
    questions: tuple[CorpusQuestion, ...]


@dataclass(frozen=True)
class QuestionAnswering(Subtask):
    """The questions of a corpus, one a prompt, until there are no more."""

    max_new_tokens: ClassVar[int] = 32

    corpus: Corpus

    def prompts(self, length: int, seed: int, count: TokenCount) -> Iterator[Prompt]:
        """Draw prompts whose size is the number of documents, found for the first question."""
        random = Random(seed)
        room = Room(length, self.max_new_tokens, count)
        first, *_ = self.corpus.questions

        def draw_first(size: int) -> Prompt:
            return self._draw(first, size, random, seed)

        size = fitted_size(draw_first, room, step=STEP, upper=upper_size(draw_first, room, STEP))
        for question in self.corpus.questions:

            def draw(size: int, question: CorpusQuestion = question) -> Prompt:
                return self._draw(question, size, random, seed)

            yield draw_fitting(draw, room, size=size, step=STEP, smallest=len(question.own))

    def _draw(self, question: CorpusQuestion, size: int, random: Random, seed: int) -> Prompt:
        documents = self._documents(question, size, random)
        Random(seed).shuffle(documents)
        numbered = (f"Document {number}:\n{document}" for number, document in enumerate(documents, start=1))
        return Prompt(
            context=CONTEXT.format(documents="\n\n".join(numbered)),
            question=QUESTION.format(question=question.text),
            answer_prefix=ANSWER_PREFIX,
            answers=question.answers,
            source=question.source,
        )

    def _documents(self, question: CorpusQuestion, size: int, random: Random) -> list[str]:
        """Choose `size` documents: the question's own, then nearer ones, then any; all of them where they are few."""
        documents = self.corpus.documents
        if size >= len(documents):
            return [documents[i % len(documents)] for i in range(size)]
        own, nearer = question.own, question.nearer
        missing = max(0, size - len(own))
        if missing > len(nearer):
            used = {*own, *nearer}
            rest = [i for i in range(len(documents)) if i not in used]
            chosen = [*own, *nearer, *random.sample(rest, missing - len(nearer))]
        else:
            chosen = [*own, *random.sample(nearer, missing)]
        return [documents[i] for i in chosen]


def read_squad(path: Path) -> Corpus:
    """Read SQuAD from the published JSON, or from the hub's parquet file.

    Raises:
        ValueError, KeyError, TypeError, OSError: The file is neither.
    """
    articles = _squad_articles(pq.read_table(path).to_pylist()) if _is_parquet(path) else _json(path)["data"]
    paragraphs = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    documents = tuple(sorted(set(paragraphs)))
    places = {document: place for place, document in enumerate(documents)}
    questions = []
    for article in articles:
        of_article = [places[paragraph["context"]] for paragraph in article["paragraphs"]]
        for number, (paragraph, place) in enumerate(zip(article["paragraphs"], of_article, strict=True)):
            nearer = tuple(other for other in of_article if other != place)
            source = f"squad/{article['title']}/{number}"
            questions += [
                CorpusQuestion(question["question"], _texts(question["answers"]), (place,), nearer, source)
                for question in paragraph["qas"]
                if not question.get("is_impossible", False)
            ]
    return _checked(Corpus(documents, tuple(questions)))


def read_hotpotqa(path: Path) -> Corpus:
    """Read HotpotQA's distractor setting from the published JSON, or from the hub's parquet file.

    Raises:
        ValueError, KeyError, TypeError, OSError: The file is neither.
    """
    rows = [_hotpotqa_row(row) for row in pq.read_table(path).to_pylist()] if _is_parquet(path) else _json(path)
    of_rows = [[f"{title}\n{''.join(sentences)}" for title, sentences in row["context"]] for row in rows]
    documents = tuple(sorted({document for of_row in of_rows for document in of_row}))
    places = {document: place for place, document in enumerate(documents)}
    questions = tuple(
        CorpusQuestion(row["question"], (row["answer"],), tuple(places[own] for own in of_row), (), f"hotpotqa/{i}")
        for i, (row, of_row) in enumerate(zip(rows, of_rows, strict=True))
    )
    return _checked(Corpus(documents, questions))


def _squad_articles(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the hub's rows, one a question in the published order, back into articles of paragraphs.

    Neighbours of one title are an article, and of one text a paragraph; a paragraph without questions has no row.
    """
    return [
        {
            "title": title,
            "paragraphs": [
                {
                    "context": context,
                    "qas": [
                        {
                            "question": row["question"],
                            "answers": [{"text": text} for text in row["answers"]["text"]],
                            "is_impossible": not row["answers"]["text"],
                        }
                        for row in of_paragraph
                    ],
                }
                for context, of_paragraph in groupby(of_article, key=lambda row: row["context"])
            ],
        }
        for title, of_article in groupby(rows, key=lambda row: row["title"])
    ]


def _hotpotqa_row(row: dict[str, Any]) -> dict[str, Any]:
    """Put a row of the hub into the published form, where a title and its sentences are a pair."""
    return {**row, "context": list(zip(row["context"]["title"], row["context"]["sentences"], strict=True))}


def _is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet"


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _texts(answers: list[dict[str, str]]) -> tuple[str, ...]:
    return tuple(answer["text"] for answer in answers)


def _checked(corpus: Corpus) -> Corpus:
    if not corpus.questions:
        raise ValueError("it holds no question with an answer")
    return corpus
