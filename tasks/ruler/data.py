"""RULER's source data: where it is looked for, and what stands in for the essays where they are not here."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nltk
from huggingface_hub import constants
from nltk.tokenize.punkt import PunktTokenizer

from kvbench.errors import UsageError
from kvbench.records import content_hash
from kvbench.sources import Dataset, Files, Sources, find

from .essays import SentenceSpans, Text, own_prose
from .question_answering import Corpus, read_hotpotqa, read_squad
from .words import word_list_fingerprint

ESSAYS, NLTK, SQUAD, HOTPOTQA = "essays", "nltk", "squad", "hotpotqa"


@dataclass(frozen=True)
class PublishedCorpus:
    """A question answering set as it is published.

    Attributes:
        dataset: The hub's copy; its part is what the published file is called.
        read: Reads either file.
    """

    dataset: Dataset
    read: Callable[[Path], Corpus]

    @property
    def file(self) -> str:
        """What the published file is called."""
        return f"{self.dataset.part}.json"


CORPORA = {
    SQUAD: PublishedCorpus(
        Dataset(SQUAD, "SQuAD 2.0", "rajpurkar/squad_v2", "squad_v2/validation-*.parquet", "dev-v2.0"), read_squad
    ),
    HOTPOTQA: PublishedCorpus(
        Dataset(
            HOTPOTQA,
            "HotpotQA",
            "hotpotqa/hotpot_qa",
            "distractor/validation-*.parquet",
            "hotpot_dev_distractor_v1",
        ),
        read_hotpotqa,
    ),
}


@dataclass(frozen=True)
class FoundCorpus:
    """A corpus that is here or on the hub: which one exactly, and how to read it."""

    files: Files
    published: PublishedCorpus

    @cached_property
    def corpus(self) -> Corpus:
        """Its documents and questions.

        Raises:
            UsageError: The file is not what is published.
        """
        path, *_ = self.files.paths()
        dataset = self.published.dataset
        try:
            return self.published.read(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"'{path}' cannot be read as {dataset.title} ({self.published.file}, or the parquet file "
                f"of the hub's {dataset.repository}): {type(error).__name__}: {error}"
            ) from None


class Data:
    """The data of one task, each part found when it is first asked for."""

    def __init__(self, given: Sources, prose_asked: bool, reads_essays: bool) -> None:
        """Look among `given` first.

        Args:
            given: The local copies.
            prose_asked: Use kvbench's own prose; the essays are not looked for at all.
            reads_essays: Whether a subtask hides its needles in essays. If none does, nothing has to stand in for
                essays that are not here.
        """
        self._given = given
        self._prose_asked = prose_asked
        self._reads_essays = reads_essays
        self._found: dict[str, FoundCorpus | None] = {}

    @property
    def is_own_prose(self) -> bool:
        """Whether kvbench's own prose is the haystack instead of the essays."""
        return self._prose_asked or (self._reads_essays and self._essays is None)

    @property
    def haystack(self) -> Text:
        """The essays, or what stands in for them."""
        return self._essays or own_prose()

    @property
    def why_own_prose(self) -> str | None:
        """What the essays would need; none if they are here or were not wanted."""
        if not self.is_own_prose or self._prose_asked:
            return None
        if ESSAYS not in self._given:
            return "RULER's essays are not here (--data essays=PATH, a folder of .txt files or PaulGrahamEssays.json)"
        return "nltk's punkt_tab, which splits the essays into sentences, is not here (--data nltk=PATH)"

    @property
    def words_origin(self) -> str:
        """Says which word lists keys and values are drawn from."""
        return f"wonderwords {word_list_fingerprint()}"

    @property
    def haystack_origin(self) -> str:
        """Says which text the haystack is."""
        return f"{'prose' if self.is_own_prose else ESSAYS} {self.haystack.fingerprint}"

    def corpus_origin(self, name: str) -> str:
        """Say which copy of a corpus this is; `none` if it is not here."""
        found = self.find(name)
        return f"{name} {found.files.origin if found else 'none'}"

    def find(self, name: str) -> FoundCorpus | None:
        """Return the corpus called `name`, none if it is neither given nor on the hub.

        Raises:
            UsageError: It was given and cannot be read.
        """
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name]

    def corpus(self, name: str) -> Corpus:
        """Return the documents and questions of the corpus called `name`.

        Raises:
            UsageError: It is not here, or not what is published.
        """
        found = self.find(name)
        if found is None:
            raise UsageError(self.lacks(name))
        return found.corpus

    def lacks(self, name: str) -> str:
        """Return what is to be done about a corpus that is not here."""
        published = CORPORA[name]
        return (
            f"{published.dataset.title} is neither on this machine nor to be had from the hub: "
            f"give its {published.file} with --data {name}=PATH"
        )

    def _find(self, name: str) -> FoundCorpus | None:
        published = CORPORA[name]
        files = find(published.dataset, self._given.get(name))
        return FoundCorpus(files, published) if files else None

    def _copy(self, name: str) -> Path | None:
        given = self._given.get(name)
        return given if isinstance(given, Path) else None

    @cached_property
    def _essays(self) -> Text | None:
        essays = self._copy(ESSAYS)
        if self._prose_asked or essays is None:
            return None
        text = read_essays(essays)
        punkt = find_punkt(self._copy(NLTK))
        return (
            Text(text, punkt.spans_of, fingerprint=f"{content_hash(text)}+punkt:{punkt.fingerprint}") if punkt else None
        )


def read_essays(path: Path) -> str:
    """Read the essays: a folder of .txt files, a text file, or a JSON file with the text under "text".

    Raises:
        UsageError: It is none of these.
    """
    try:
        if path.is_dir():
            text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(path.glob("*.txt")))
        else:
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".json":
                text = json.loads(text)["text"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"--data essays={path} cannot be read as a folder of .txt files, a text file or a JSON file "
            f'{{"text": …}}: {type(error).__name__}: {error}'
        ) from None
    if not text.strip():
        raise UsageError(f"--data essays={path} holds no text: give a folder of .txt files, a text or a JSON file")
    return text


@dataclass(frozen=True)
class Punkt:
    """nltk's rules for the ends of English sentences."""

    spans_of: SentenceSpans
    fingerprint: str


def find_punkt(given: Path | None) -> Punkt | None:
    """Return nltk's punkt_tab: of the nltk_data folder `given`, else where nltk finds it, or what nltk downloads.

    Raises:
        UsageError: It is not in the folder given.
    """
    if given is None:
        return _load_punkt() or (_load_punkt() if _download_punkt() else None)
    with _nltk_looks_only_in(given):
        punkt = _load_punkt()
    if punkt is None:
        raise UsageError(f"--data nltk={given} is no nltk_data folder with tokenizers/punkt_tab/english in it")
    return punkt


def _load_punkt() -> Punkt | None:
    try:
        tokenizer = PunktTokenizer("english")
    except (LookupError, OSError):
        return None
    rules = tokenizer._params
    return Punkt(
        tokenizer.span_tokenize,
        content_hash(
            [
                sorted(rules.abbrev_types),
                sorted(rules.collocations),
                sorted(rules.sent_starters),
                dict(rules.ortho_context),
            ]
        ),
    )


@contextmanager
def _nltk_looks_only_in(folder: Path) -> Iterator[None]:
    """Give nltk one folder for its data: it opens no file elsewhere."""
    usual = list(nltk.data.path)
    nltk.data.path[:] = [str(folder)]
    try:
        yield
    finally:
        nltk.data.path[:] = usual


def _download_punkt() -> bool:
    """Let nltk download it, unless the network is not to be used."""
    if constants.HF_HUB_OFFLINE:
        return False
    downloaded: bool = nltk.download("punkt_tab", quiet=True, print_error_to=io.StringIO())
    return downloaded
