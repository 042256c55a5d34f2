"""The results folder: append-only records on disk, one file per protocol, one writer at a time.

    records/<model>_<task>_<protocol>.jsonl            one record per line
    records/<model>_<task>_<protocol>.jsonl.gz         or the same compressed, until a run adds to it
    records/<model>_<task>_<protocol>.protocol.json    what all records of that file share
    environments/<hash>.json                           what the records were computed with

A cell that was computed again has several lines: the last one counts.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from filelock import FileLock, Timeout
from pydantic import ValidationError

from kvbench.errors import KvbenchError, UsageError, unknown
from kvbench.record_files import (
    RECORDS,
    compressing,
    in_form,
    is_compressed,
    one_that_counts,
    open_records,
    protocol_file,
    record_files,
    stem_of,
)
from kvbench.record_table import COLUMNS, is_torn, read_records, reason
from kvbench.records import SCHEMA, Environment, Protocol, Record

LOCK = ".lock"


@dataclass(frozen=True)
class Results:
    """All results of one folder.

    Attributes:
        frame: One row per cell: `protocol` (the protocol's hash) and the columns of `Record` but its texts.
        protocols: The protocols that have records, by hash.
    """

    frame: pd.DataFrame
    protocols: dict[str, Protocol]

    def rows(self, protocol: Protocol) -> pd.DataFrame:
        """Return the cells of one protocol."""
        return self.frame[self.frame["protocol"] == protocol.hash]

    def of_tasks(self, tasks: Sequence[str]) -> Results:
        """Return the results of some tasks, in their order; of all if none is named.

        Raises:
            UsageError: A task has no results.
        """
        if not tasks:
            return self
        known = {protocol.task for protocol in self.protocols.values()}
        for task in tasks:
            if task not in known:
                raise unknown("task with results", task, sorted(known))
        protocols = {
            key: protocol for task in tasks for key, protocol in self.protocols.items() if protocol.task == task
        }
        return Results(self.frame[self.frame["protocol"].isin(list(protocols))], protocols)


def file_stem(protocol: Protocol) -> str:
    """Return the name, safe in every file system, that a protocol's files begin with."""
    return f"{safe_name(protocol.model)}_{safe_name(protocol.task)}_{protocol.hash[:12]}"


def load(path: Path, columns: Collection[str] | None = None) -> Results:
    """Read a results folder, for each cell its last record.

    Args:
        path: The folder.
        columns: The columns of the frame, beside the protocol, and the fields of records to check; all by default.

    Raises:
        UsageError: There is no such folder, it holds no records, or a file in it is not what kvbench writes.
    """
    tables, protocols = [], {}
    for file in record_files(path):
        protocol = _read_protocol(file)
        wanted = columns or COLUMNS
        table = _last_per_key(read_records(file, {*wanted, "key"}, strict=not columns)).select(list(wanted))
        if table.num_rows:
            tables.append(table.add_column(0, "protocol", _repeated(protocol.hash, table.num_rows)))
            protocols[protocol.hash] = protocol
    if not tables:
        raise UsageError(f"results folder '{path}' holds no records yet: `kvbench run` writes them")
    whole = pa.concat_tables(tables).unify_dictionaries()
    del tables, table  # lets to_pandas free each column as soon as it is converted
    return Results(whole.to_pandas(split_blocks=True, self_destruct=True), protocols)


class ResultsFolder:
    """A results folder that a run resumes and adds to."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def records_file(self, protocol: Protocol) -> Path:
        """Return the file that holds the records of a protocol, or will: compressed if only that is there."""
        return one_that_counts(self.path / "records" / f"{file_stem(protocol)}{RECORDS}")

    def finished(self, protocol: Protocol) -> set[str]:
        """Return the keys whose last record is `ok`; a failed cell is tried again.

        Raises:
            UsageError: The protocol's files are not what kvbench writes.
        """
        file = self.records_file(protocol)
        if not file.exists():
            return set()
        _read_protocol(file)
        table = read_records(file, ["key", "status"])
        last = dict(zip(table["key"].to_pylist(), table["status"].to_pylist(), strict=True))
        return {key for key, status in last.items() if status == "ok"}

    def sample_hashes(self, protocol: Protocol) -> dict[str, str]:
        """Return the content hash of every sample that has records, by the sample's id.

        Raises:
            UsageError: The protocol's files are not what kvbench writes.
        """
        file = self.records_file(protocol)
        if not file.exists():
            return {}
        table = read_records(file, ["sample", "sample_hash"])
        return dict(zip(table["sample"].to_pylist(), table["sample_hash"].to_pylist(), strict=True))

    @contextmanager
    def writer(self) -> Iterator[ResultsWriter]:
        """Make the folder if it is not there and hold it for writing; a lock dies with its process.

        Raises:
            UsageError: The folder cannot be written, or somebody else is writing to it.
        """
        what = f"results folder '{self.path}'"
        try:
            for part in ("records", "environments"):
                (self.path / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{what} cannot be written to: {reason(error)}") from error
        with held(self.path / LOCK, what):
            yield ResultsWriter(self)


class ResultsWriter:
    """The one writer of a results folder, from `ResultsFolder.writer`."""

    def __init__(self, folder: ResultsFolder) -> None:
        self.folder = folder

    def add_environment(self, environment: Environment) -> None:
        """Keep an environment under its hash, by which records refer to it."""
        file = self.folder.path / "environments" / f"{environment.hash}.json"
        if not file.exists():
            write_atomically(file, environment.model_dump_json(indent=2) + "\n")

    def append(self, protocol: Protocol, records: Sequence[Record]) -> None:
        """Add the records of one sample in one write that is on disk when this returns.

        A compressed file is unpacked first.

        Raises:
            KvbenchError: The system refuses (a full disk, say); records appended before are not touched.
        """
        file = in_form(self.folder.records_file(protocol), compressed=False)
        lines = "".join(f"{record.model_dump_json()}\n" for record in records).encode()
        try:
            _unpack(file)
            if not file.exists():
                write_atomically(protocol_file(file), protocol.model_dump_json(indent=2) + "\n")
            with file.open("a+b") as stream:
                _mend(stream)
                stream.write(lines)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise KvbenchError(f"cannot write to {file}: {reason(error)}") from error


def _unpack(file: Path) -> None:
    """Leave a plain file where there is a compressed one; killed at any point, it goes on from there."""
    compressed = in_form(file, compressed=True)
    if not compressed.exists():
        return
    if not file.exists():
        with open_records(compressed) as lines:
            write_partial(file, lines).replace(file)
    compressed.unlink()


def _mend(stream: BinaryIO) -> None:
    """End the file with a whole line: cut off a torn one, terminate one that lacks only its newline."""
    tail = _unterminated(stream)
    if tail and is_torn(tail):
        stream.truncate(stream.seek(0, os.SEEK_END) - len(tail))
    elif tail:
        stream.write(b"\n")


def _unterminated(stream: BinaryIO, block: int = 1 << 16) -> bytes:
    """Return what follows the last newline."""
    start = stream.seek(0, os.SEEK_END)
    tail = b""
    while start and b"\n" not in tail:
        size = min(block, start)
        start = stream.seek(start - size)
        tail = stream.read(size) + tail
    return tail.rpartition(b"\n")[2]


def _read_protocol(records: Path) -> Protocol:
    file = protocol_file(records)
    try:
        content = json.loads(file.read_bytes())
        schema = content["schema_version"]
        if schema != SCHEMA:
            raise UsageError(
                f"{file} has schema version {schema} and this kvbench reads version {SCHEMA}: use one as new "
                f"as the kvbench that wrote it"
            )
        protocol = Protocol.model_validate(content)
    except OSError as error:
        raise UsageError(f"{records} has no readable protocol beside it, {file.name}: {reason(error)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = f"field '{first['loc'][0]}'" if first["loc"] else "it"  # a name of a field may itself be no text
        raise UsageError(f"{file}: {where}: {first['msg'].lower()}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{file} does not hold a protocol: expected a JSON object with its fields") from None
    if not stem_of(records).endswith(f"_{protocol.hash[:12]}"):
        raise UsageError(f"{file} was changed after it was written: its hash is now {protocol.hash[:12]}")
    return protocol


def _last_per_key(table: pa.Table) -> pa.Table:
    if pc.count_distinct(table["key"]).as_py() == table.num_rows:  # the usual case
        return table
    return table.filter(pa.array(~table["key"].to_pandas().duplicated(keep="last")))


def _repeated(value: str, times: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), times), pa.array([value]))


@contextmanager
def held(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock, which dies with its process; process id and host are beside it, in `.writer.json`.

    Args:
        lock: A file whose name ends with `.lock`.
        what: What is held: what an error's sentence begins with.

    Raises:
        UsageError: Somebody else holds it, or its folder cannot be written to.
    """
    holder, own = holder_file(lock), FileLock(lock)
    try:
        own.acquire(blocking=False)
        write_atomically(holder, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    except Timeout:
        raise UsageError(f"{what} is being written to by {_holder(holder)}") from None
    except OSError as error:
        own.release()
        raise UsageError(f"{what} cannot be written to: {reason(error)}") from error
    try:
        yield
    finally:
        own.release()


def holder_file(lock: Path) -> Path:
    """Return the file that says who holds a lock, or held it last."""
    return lock.with_name(f"{lock.name.removesuffix(LOCK)}.writer.json")


def _holder(file: Path) -> str:
    try:
        holder = json.loads(file.read_text())
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def write_atomically(file: Path, content: str) -> None:
    """Write a whole file or none of it."""
    write_partial(file, [content.encode()]).replace(file)


def write_partial(file: Path, lines: Iterable[bytes]) -> Path:
    """Write, beside a file, what is to replace it, compressed if its name says so, and return where that is.

    Raises:
        OSError: The system refuses (a full disk, say); nothing is left beside the file.
    """
    partial = file.with_name(f"{file.name}.partial")
    with ExitStack() as undo:
        undo.callback(partial.unlink, missing_ok=True)
        with partial.open("wb") as stream:
            if is_compressed(file):
                with compressing(stream) as packed:
                    packed.writelines(lines)
            else:
                stream.writelines(lines)
            stream.flush()
            os.fsync(stream.fileno())
        undo.pop_all()
    return partial


def safe_name(name: str) -> str:
    """Return a name, shortened if need be, that is one in every file system."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", name)[-64:].strip(".-") or "unnamed"
