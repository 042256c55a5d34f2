"""Where a task's source data comes from: a copy that the user gives with `--data NAME=PATH`, or the hub.

A task names its data set, `Dataset`, and a pydantic model of a row; `find` says which copy of it there is, `rows`
reads it. Of the hub only parquet files are read; `--revision NAME=REVISION` pins the commit, branch or tag.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from hashlib import file_digest, sha256
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from kvbench.errors import UsageError

_ANSWER_SECONDS = 5
"""How long the hub may take to answer before its cache is used."""
_LINES = (".jsonl", ".jsonl.gz", ".json")
_PARQUET = ".parquet"
_BATCH = 64
"""Rows of a parquet file that are read at once."""
_BUFFER = 1 << 20
"""Bytes of each of its columns that are read at once."""

Row = TypeVar("Row", bound=BaseModel)


class Revision(str):
    """A commit, branch or tag of a dataset repository on the hub."""

    __slots__ = ()


Source = Path | Revision
Sources = Mapping[str, Source]
"""What a user says of a task's data, by the task's own names for it: a local copy, or which revision of the hub's."""


@dataclass(frozen=True)
class Dataset:
    """Rows that a dataset repository on the hub holds as parquet files.

    Attributes:
        name: What it is called on the command line.
        title: What it is called in a sentence.
        repository: `organisation/name`.
        pattern: Which of the repository's files.
        part: What a local folder calls its file of these rows, without the ending.
    """

    name: str
    title: str
    repository: str
    pattern: str
    part: str


class Files(ABC):
    """The files that hold a data set's rows."""

    origin: str
    """Says which copy this is: `hub <repository>@<revision>`, or `sha256:<digest>` of local files."""

    @abstractmethod
    def paths(self) -> Sequence[Path]:
        """Return the files, whole and on this machine, in name order.

        Raises:
            UsageError: They cannot be downloaded.
        """

    def to_download(self) -> Sequence[int]:
        """Return the sizes of the files that are not on this machine yet, in bytes; 0 where the hub does not say."""
        return ()

    @abstractmethod
    def open(self, partly: bool) -> Iterator[tuple[str, IO[bytes]]]:
        """Open one after the other; yield its name and its bytes.

        Args:
            partly: Only the first rows are wanted: read them from the hub without downloading the files.
        """


@dataclass(frozen=True)
class LocalFiles(Files):
    """Files on this machine."""

    origin: str
    local: tuple[Path, ...]

    def paths(self) -> Sequence[Path]:
        """Return the files."""
        return self.local

    def open(self, partly: bool) -> Iterator[tuple[str, IO[bytes]]]:
        """Open one after the other."""
        for path in self.local:
            with path.open("rb") as stream:
                yield str(path), stream


@dataclass(frozen=True)
class HubFiles(Files):
    """Files of a dataset repository on the hub, perhaps not in its cache yet.

    Attributes:
        repository: `organisation/name`.
        revision: The commit.
        names: Of the files, within the repository.
        asked: The branch, tag or commit by which the hub was asked just now; none if its cache was.
        sizes: In bytes, as far as the hub says.
    """

    repository: str
    revision: str
    names: tuple[str, ...]
    asked: str | None = field(default=None, compare=False)
    sizes: tuple[int | None, ...] = field(default=(), compare=False)

    @property
    def origin(self) -> str:  # type: ignore[override]
        """The repository and its commit."""
        return f"hub {self.repository}@{self.revision}"

    def cached(self) -> list[Path | None]:
        """Return where each file is in the hub's cache; none for those that are not."""
        from huggingface_hub import try_to_load_from_cache

        found = (
            try_to_load_from_cache(self.repository, name, repo_type="dataset", revision=self.revision)
            for name in self.names
        )
        return [Path(path) if isinstance(path, str) else None for path in found]

    def to_download(self) -> Sequence[int]:
        """Return the sizes of the files that are not in the hub's cache."""
        sizes = self.sizes or (None,) * len(self.names)
        return [size or 0 for size, path in zip(sizes, self.cached(), strict=True) if path is None]

    def paths(self) -> Sequence[Path]:
        """Return the files, downloaded into the hub's cache where they are not there yet."""
        if self.asked is None:
            return [path for path in self.cached() if path]
        with _of_hub(self.origin):
            return [self._downloaded(name, self.asked) for name in self.names]

    def _downloaded(self, name: str, asked: str) -> Path:
        """Fetch a file if the cache lacks it; asked by branch or tag, for the cache then knows what that was."""
        from huggingface_hub import hf_hub_download

        path = Path(hf_hub_download(self.repository, name, repo_type="dataset", revision=asked))
        if self.revision not in path.parts:
            raise UsageError(f"the hub's {self.repository} was changed while it was read: run the command again")
        return path

    def open(self, partly: bool) -> Iterator[tuple[str, IO[bytes]]]:
        """Open one after the other: in the cache, or on the hub if only the first rows are wanted."""
        cached = self.cached() if partly else self.paths()
        for name, path in zip(self.names, cached, strict=True):
            if path:
                with path.open("rb") as stream:
                    yield str(path), stream
            else:
                with self._on_hub(name) as stream:
                    yield f"{self.origin}/{name}", stream

    @contextmanager
    def _on_hub(self, name: str) -> Iterator[IO[bytes]]:
        from huggingface_hub import HfFileSystem

        with (
            _of_hub(self.origin),
            HfFileSystem().open(
                f"datasets/{self.repository}@{self.revision}/{name}", "rb", block_size=_BUFFER
            ) as stream,
        ):
            yield stream


def parse_sources(texts: Sequence[str], revisions: Sequence[str] = ()) -> dict[str, Source]:
    """Read `NAME=PATH` and `NAME=REVISION` assignments.

    Raises:
        UsageError: One is written otherwise, a name comes twice, or there is nothing at a path.
    """
    sources: dict[str, Source] = {}
    for text in texts:
        name, given = _assignment("--data", text, "NAME=PATH, essays=~/essays for example")
        if name in sources:
            raise UsageError(f"--data {name} is given twice: {sources[name]} and {given}")
        sources[name] = path = Path(given).expanduser()
        if not path.exists():
            raise UsageError(f"--data {text}: there is nothing at '{given}'")
    for text in revisions:
        name, given = _assignment("--revision", text, "NAME=REVISION, boolq=main for example")
        if isinstance(sources.get(name), Path):
            raise UsageError(f"--revision {text} and --data {name}={sources[name]}: a local copy has no revision")
        if name in sources:
            raise UsageError(f"--revision {name} is given twice: {sources[name]} and {given}")
        sources[name] = Revision(given)
    return sources


def find(dataset: Dataset, source: Source | None) -> Files | None:
    """Return where a data set's rows are, downloading nothing; none if neither the hub nor its cache has them.

    Args:
        dataset: What is looked for.
        source: A local copy (a file, or a folder with the hub's files or one called after the part), a revision of
            the hub's, or none for the hub's newest.

    Raises:
        UsageError: The local copy holds no such file, or there is no such revision.
    """
    if isinstance(source, Path):
        return _local(dataset, source)
    files = _on_hub(dataset, source)
    if files is None and source is not None:
        raise UsageError(
            f"--revision {dataset.name}={source}: neither the hub's {dataset.repository} nor its cache has "
            f"'{dataset.pattern}' at that revision"
        )
    return files


def need(dataset: Dataset, source: Source | None) -> Files:
    """Return where a data set's rows are; see `find`.

    Raises:
        UsageError: They are nowhere.
    """
    files = find(dataset, source)
    if files is None:
        raise UsageError(lacks(dataset))
    return files


def lacks(dataset: Dataset) -> str:
    """Return what is to be done about a data set that is neither on this machine nor on the hub."""
    return (
        f"{dataset.title} is neither on this machine nor to be had from the hub's {dataset.repository}: "
        f"give a copy with --data {dataset.name}=PATH, or run `kvbench data fetch` where there is a network"
    )


def rows(files: Files, *kinds: type[Row], limit: int | None = None) -> Iterator[Row]:
    """Read rows in order.

    Args:
        files: JSON lines or parquet.
        kinds: What a row may be; it is the first kind all of whose required fields the row has.
        limit: How many rows are wanted; of files that are only on the hub no more is fetched than they take.

    Raises:
        UsageError: A file is something else, or a row lacks a field or holds something else in it; the message names
            file, line and field.
    """
    return islice(_rows(files, kinds, partly=limit is not None), limit)


def fingerprint(*paths: Path) -> str:
    """Return `sha256:<digest>` of files' contents, one after the other.

    Raises:
        UsageError: One cannot be read.
    """
    digests = []
    for path in paths:
        try:
            with path.open("rb") as stream:
                digests.append(file_digest(stream, "sha256"))
        except OSError as error:
            raise UsageError(f"'{path}' cannot be read: {error.strerror}") from None
    whole = digests[0] if len(digests) == 1 else sha256(b"".join(digest.digest() for digest in digests))
    return f"sha256:{whole.hexdigest()[:16]}"


def _assignment(option: str, text: str, example: str) -> tuple[str, str]:
    name, _, given = text.partition("=")
    if not name or not given:
        raise UsageError(f"{option} {text}: write it as {example}")
    return name, given


def _local(dataset: Dataset, path: Path) -> LocalFiles:
    paths = [path]
    if path.is_dir():
        named = (path / f"{dataset.part}{ending}" for ending in (*_LINES, _PARQUET))
        paths = sorted(path.glob(dataset.pattern)) or [file for file in named if file.is_file()][:1]
        if not paths:
            names = ", ".join(f"{dataset.part}{ending}" for ending in (*_LINES, _PARQUET))
            raise UsageError(f"--data {dataset.name}={path} holds none of {names} and no {dataset.pattern}")
    return LocalFiles(fingerprint(*paths), tuple(paths))


def _on_hub(dataset: Dataset, revision: str | None) -> Files | None:
    listing = _listing(dataset.repository, revision)
    if listing is None:
        return _in_cache(dataset, revision)
    commit, sizes = listing
    names = tuple(sorted(name for name in sizes if fnmatchcase(name, dataset.pattern)))
    if not names:
        return None
    return HubFiles(dataset.repository, commit, names, revision or "main", tuple(sizes[name] for name in names))


@cache
def _listing(repository: str, revision: str | None) -> tuple[str, dict[str, int | None]] | None:
    """Return a repository's commit and its files with their sizes; none if the hub does not answer."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        info = HfApi().dataset_info(repository, revision=revision, timeout=_ANSWER_SECONDS, files_metadata=True)
    except Exception:  # no network, no such repository, a hub that refuses: what is left is the cache
        return None
    return str(info.sha), {file.rfilename: file.size for file in info.siblings or ()}


def _in_cache(dataset: Dataset, revision: str | None) -> HubFiles | None:
    from huggingface_hub import snapshot_download

    try:
        with _quiet("huggingface_hub"):
            folder = Path(
                snapshot_download(
                    dataset.repository,
                    repo_type="dataset",
                    revision=revision,
                    allow_patterns=dataset.pattern,
                    local_files_only=True,
                )
            )
    except Exception:  # the cache has nothing of it
        return None
    names = tuple(sorted(path.relative_to(folder).as_posix() for path in folder.glob(dataset.pattern)))
    return HubFiles(dataset.repository, folder.name, names) if names and _complete(names) else None


def _complete(names: Sequence[str]) -> bool:
    """Whether none of the shards `…-00000-of-00002.parquet` is missing, as after a download that was cut off."""
    shards = re.search(r"-of-(\d+)\.parquet$", names[0])
    return shards is None or int(shards[1]) == len(names)


def _rows(files: Files, kinds: Sequence[type[Row]], partly: bool) -> Iterator[Row]:
    for name, stream in files.open(partly):
        kind = None
        for place, values in _values(name, stream):
            kind = kind or _kind_of(values, kinds)
            try:
                yield kind.model_validate(values, strict=True)
            except ValidationError as error:
                raise UsageError(f"{place}: {_complaint(error)}") from None
        if kind is None:
            raise UsageError(f"'{name}' holds no rows")


def _values(name: str, stream: IO[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each row stands and what it holds."""
    try:
        if name.endswith(_PARQUET):
            yield from _parquet_values(name, stream)
        elif name.endswith(_LINES):
            yield from _json_values(name, stream)
        else:
            raise UsageError(f"'{name}' is no file of rows: give one that ends in {', '.join(_LINES)} or {_PARQUET}")
    except UsageError:
        raise
    except Exception as error:  # of the file system, gzip, pyarrow, or the network between here and the hub
        raise UsageError(f"'{name}' cannot be read: {type(error).__name__}: {_first_line(error)}") from None


def _parquet_values(name: str, stream: IO[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow.parquet as pq

    number = 0
    with pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER) as file:  # only what the rows asked for take
        for batch in file.iter_batches(_BATCH, use_threads=False):  # columns read at once would fetch ranges twice
            for values in batch.to_pylist():
                number += 1
                yield f"'{name}', row {number}", values


def _json_values(name: str, stream: IO[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = gzip.GzipFile(fileobj=stream) if name.endswith(".gz") else stream
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"'{name}', line {number}"
        try:
            values = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{place}: it is not JSON: {_first_line(error)}") from None
        if not isinstance(values, dict):
            raise UsageError(f"{place}: it is a JSON {type(values).__name__}, not an object with a row's fields")
        yield place, values


def _kind_of(values: Mapping[str, Any], kinds: Sequence[type[Row]]) -> type[Row]:
    for kind in kinds:
        if all(name in values for name, field in kind.model_fields.items() if field.is_required()):
            return kind
    return kinds[0]


def _complaint(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"the field '{where}' is missing"
    given = repr(first["input"])
    return f"the field '{where}' is {given if len(given) <= 60 else given[:60] + '…'}: {first['msg'].lower()}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@contextmanager
def _of_hub(origin: str) -> Iterator[None]:
    """Turn what can go wrong between here and the hub into one sentence."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{origin} cannot be read: {type(error).__name__}: {_first_line(error)}") from None


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Keep a library's own words about a failure from the terminal: the task has a sentence for it."""
    level = logging.getLogger(logger).level
    logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logging.getLogger(logger).setLevel(level)
