"""The files of records in a results folder: JSON lines, plain as a run appends to them or compressed with gzip.

Where a protocol has both, as a writer that was killed leaves them, the plain one counts.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import BinaryIO

from kvbench.errors import UsageError

RECORDS = ".jsonl"
COMPRESSED = ".gz"

_BUFFER = 1 << 16  # bytes decompressed at a time: the default of 8192 costs half as much time again


def record_files(folder: Path) -> list[Path]:
    """Return the files of records in a results folder, one for each protocol, in the order of their stems.

    Raises:
        UsageError: It is no results folder.
    """
    if folder.is_file():
        raise UsageError(f"'{folder}' is a file: expected a results folder that `kvbench run` wrote")
    if not folder.is_dir():
        raise UsageError(f"there is no results folder '{folder}': `kvbench run` makes one")
    if not (folder / "records").is_dir():
        raise UsageError(f"'{folder}' is not a results folder: there is no folder 'records' in it")
    found = (folder / "records").glob(f"*{RECORDS}*")
    return sorted({one_that_counts(file) for file in found if file.name.endswith((RECORDS, RECORDS + COMPRESSED))})


def one_that_counts(file: Path) -> Path:
    """Return which of the two forms of a file of records to read: the plain one if neither is there."""
    plain, compressed = in_form(file, compressed=False), in_form(file, compressed=True)
    return compressed if compressed.exists() and not plain.exists() else plain


def in_form(file: Path, compressed: bool) -> Path:
    """Return the path of the plain or the compressed form of a file of records."""
    return file.with_name(stem_of(file) + RECORDS + (COMPRESSED if compressed else ""))


def is_compressed(file: Path) -> bool:
    """Whether a file of records is compressed."""
    return file.suffix == COMPRESSED


def stem_of(file: Path) -> str:
    """Return what the names of a protocol's files begin with, from a file of its records."""
    return file.name.removesuffix(COMPRESSED).removesuffix(RECORDS)


def protocol_file(file: Path) -> Path:
    """Return the file of the protocol that belongs to a file of records."""
    return file.with_name(f"{stem_of(file)}.protocol.json")


@contextmanager
def open_records(file: Path) -> Iterator[BufferedIOBase]:
    """Open a file of records to read its lines, which are decompressed as they are read.

    Raises:
        OSError: The file cannot be read or, found out on the way, its compressed content is not whole.
    """
    with file.open("rb") as stream:
        if not is_compressed(file):
            yield stream
            return
        try:
            if not stream.peek(1):
                raise EOFError("it is empty")  # gzip takes it for no records
            with BufferedReader(gzip.GzipFile(fileobj=stream), _BUFFER) as lines:
                yield lines
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(f"its compressed content is damaged: {error}") from error


def compressing(stream: BinaryIO) -> gzip.GzipFile:
    """Return what compresses into a stream: the same bytes for the same records, whatever the clock and the name."""
    return gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0)
