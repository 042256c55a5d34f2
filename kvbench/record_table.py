"""Reading a file of records: as fast as Arrow, as strict as the `Record` schema line by line."""

from __future__ import annotations

import re
import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import from_json

from kvbench.errors import UsageError, unknown
from kvbench.record_files import open_records
from kvbench.records import Record

ANSWERS = (
    "prediction",
    "targets",
    "log_likelihoods",
    "continuation_tokens",
    "greedy",
    "other_metrics",
    "other_scores",
)
"""The fields that a table leaves out: they are most of a file, and no statistic reads them."""

COLUMNS = tuple(name for name in Record.model_fields if name not in ANSWERS)

_CHUNK = 16 << 20  # bytes parsed at a time: what bounds the memory that the texts need
_BLOCK = 2 << 20  # bytes that Arrow parses at a time
_NEWLINE, _BRACE = ord("\n"), ord("{")


def read_records(path: Path, columns: Iterable[str] = COLUMNS, strict: bool = True) -> pa.Table:
    """Read a file of records into a table of the given columns, one row per line, in the file's order.

    Strings other than the key are dictionary-encoded. A torn last line, left by a killed writer, is ignored.

    Args:
        path: The file.
        columns: Names of fields.
        strict: Whether to check all fields of every record, not only those of the given columns.

    Raises:
        UsageError: The file cannot be read, or a line is not a record; the message says which line and field.
    """
    columns = list(columns)
    tables = [_encoded(_SCHEMA.empty_table().select(columns))]
    try:
        schema = _SCHEMA if strict else pa.schema([_SCHEMA.field(name) for name in columns])
        tables += _in_threads(
            lambda line, chunk: _encoded(_parse(path, line, chunk, schema).select(columns)), _chunks(path)
        )
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}") from error
    return pa.concat_tables(tables).unify_dictionaries()


def reason(error: OSError) -> str:
    """Return what the system says about a failed file operation, as the end of a sentence."""
    return (error.strerror or str(error)).lower()


def is_torn(line: bytes) -> bool:
    """Whether an unterminated last line is the beginning of a record that was never finished."""
    try:
        from_json(line)
    except ValueError:  # no proper prefix of a JSON object is JSON
        return True
    return False


def _in_threads(parse: Callable[[int, bytes], pa.Table], chunks: Iterable[tuple[int, bytes]]) -> Iterator[pa.Table]:
    """Yield what `parse` makes of each chunk, in order, with no more chunks in memory than there are processors."""
    workers = pa.cpu_count()
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[pa.Table]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(parse, *chunk))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


def _chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the file in chunks of whole lines, each with the number of its first line."""
    line = 1
    with open_records(path) as file:
        while chunk := file.read(_CHUNK):
            chunk += file.readline()
            if not chunk.endswith(b"\n"):
                start = chunk.rfind(b"\n") + 1
                chunk = chunk[:start] if is_torn(chunk[start:]) else chunk + b"\n"
            if chunk:
                yield line, chunk
                line += chunk.count(b"\n")


def _parse(path: Path, first_line: int, chunk: bytes, schema: pa.Schema) -> pa.Table:
    """Parse whole lines with Arrow, and those that Arrow has doubts about with the schema of records itself.

    Args:
        path: For messages.
        first_line: For messages.
        chunk: The lines.
        schema: The fields to look at; others are passed over unless it has them all.
    """
    ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE)
    if not _is_safe_for_arrow(chunk, ends):
        return _parse_lines(path, first_line, chunk)
    try:
        table = pj.read_json(
            pa.BufferReader(chunk),
            read_options=pj.ReadOptions(block_size=_BLOCK, use_threads=False),  # chunks have threads of their own
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="error" if schema == _SCHEMA else "ignore"
            ),
        )
        table.validate(full=True)  # Arrow's parser does not look at the encoding
    except pa.ArrowInvalid:
        return _parse_lines(path, first_line, chunk)
    if table.num_rows == len(ends) and _surely_valid(table):
        return table
    return _parse_lines(path, first_line, chunk)


def _is_safe_for_arrow(chunk: bytes, ends: NDArray[np.int64]) -> bool:
    """Whether there is surely no null beside the objects, which crashes Arrow's parser.

    Args:
        chunk: Whole lines.
        ends: Where their newlines are.
    """
    text = np.frombuffer(chunk, np.uint8)
    starts = np.concatenate([[0], ends[:-1] + 1])
    return bool(np.all(text[starts] == _BRACE)) and not re.search(rb"}[^\S\n]*null", chunk)


def _parse_lines(path: Path, first_line: int, chunk: bytes) -> pa.Table:
    records = []
    for number, line in enumerate(chunk.split(b"\n")[:-1], first_line):
        try:
            records.append(Record.model_validate_json(line, strict=True).model_dump())
        except ValidationError as error:
            raise UsageError(f"{path}, line {number}: {_sentence(error)}") from None
    try:
        return pa.Table.from_pylist(records, schema=_SCHEMA)
    except (pa.ArrowInvalid, OverflowError) as error:  # an integer of more than 64 bits
        raise UsageError(f"{path}, line {first_line} or a later one: {error}") from error


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    message = first["msg"].lower()
    if not first["loc"]:
        return f"expected one record as a JSON object: {message}"
    field = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return str(unknown("field", field, Record.model_fields))
    if first["type"] == "missing":
        return f"the record has no field '{field}'"
    return f"field '{field}' is {reprlib.repr(first['input'])}: {message}"


def _surely_valid(table: pa.Table) -> bool:
    """Whether the schema is sure to accept what Arrow has read, judging columns instead of rows."""
    if {"status", "score"} <= set(table.column_names):
        unscored = pc.and_(pc.equal(table["status"], "ok"), pc.is_null(table["score"], nan_is_null=True))
        if pc.any(unscored).as_py():
            return False
    return all(_accepts(name, value) for name in table.column_names for value in _telling_values(name, table[name]))


def _accepts(field: str, value: object) -> bool:
    try:
        _ADAPTERS[field].validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _telling_values(field: str, column: pa.ChunkedArray) -> Iterator[object]:
    """Yield values of a column such that the schema accepts all others if it accepts these."""
    if column.null_count:
        yield None
    if pa.types.is_list(column.type):
        yield from [(None,)] if pc.list_flatten(column).null_count else []
    elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        yield from (value for value in pc.min_max(column).as_py().values() if value is not None)
    elif pa.types.is_string(column.type) and not _takes_any_string(Record.model_fields[field]):
        yield from column.unique().drop_null().to_pylist()


def _takes_any_string(field: FieldInfo) -> bool:
    return str in _options(field) and not field.metadata


def _options(field: FieldInfo) -> tuple[Any, ...]:
    """Return the types that a field's annotation allows, None apart."""
    if get_origin(field.annotation) in (None, Literal, tuple):
        return (field.annotation,)
    return tuple(option for option in get_args(field.annotation) if option is not NoneType)


def _arrow_type(field: FieldInfo) -> pa.DataType:
    (option,) = _options(field)
    arrow = {
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        tuple[str, ...]: pa.list_(pa.string()),
        tuple[int, ...]: pa.list_(pa.int64()),
        tuple[float, ...]: pa.list_(pa.float64()),
        tuple[bool, ...]: pa.list_(pa.bool_()),
    }
    return pa.string() if get_origin(option) is Literal else arrow[option]


def _encoded(table: pa.Table) -> pa.Table:
    for index, column in enumerate(table.schema):
        if pa.types.is_string(column.type) and column.name != "key":
            table = table.set_column(index, column.name, table[column.name].dictionary_encode())
    return table


_SCHEMA = pa.schema([(name, _arrow_type(field)) for name, field in Record.model_fields.items()])
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(field.rebuild_annotation()) for name, field in Record.model_fields.items()
}
