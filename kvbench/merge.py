"""Merging results folders: every cell once, nothing lost, nothing decided in silence.

Of several lines for one cell in a folder the last counts, as everywhere; between folders a finished cell wins over a
failed one, and two finished ones must agree on all that was measured but times.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.errors import KvbenchError, UsageError
from kvbench.record_files import in_form, is_compressed, protocol_file, record_files
from kvbench.record_table import reason
from kvbench.records import Environment, Protocol, Record
from kvbench.store import ResultsFolder, ResultsWriter, write_partial
from kvbench.validate import Report, outcome_of, read_lines, validate


@dataclass(frozen=True)
class Merged:
    """What a merge did.

    Attributes:
        added: Cells that were not in the target.
        replaced: Failed cells of the target that another folder had finished.
        known: Cells of the other folders that the target already had.
        failed: Cells of the result that have no score.
        cells: Cells of the result.
    """

    added: int
    replaced: int
    known: int
    failed: int
    cells: int


@dataclass(frozen=True)
class _Cell:
    """The line that counts for a cell in one folder."""

    file: Path
    number: int
    ok: bool
    outcome: int
    """The hash of what must agree."""
    content: int
    """The hash of the press identity, sample, question and budget."""

    def agrees(self, other: _Cell) -> bool:
        return self.content == other.content and not (self.ok and other.ok and self.outcome != other.outcome)


@dataclass
class _Merging:
    """The merge of one protocol's records."""

    protocol: Protocol
    held: Path
    """The target's file, whether it is there or not."""
    cells: dict[str, _Cell] = field(default_factory=dict)
    labels: dict[str, tuple[str, Path]] = field(default_factory=dict)
    """By press label: its identity, and where it was read."""

    def added(self) -> list[_Cell]:
        """Return the cells whose line comes from another folder."""
        return [cell for cell in self.cells.values() if cell.file != self.held]

    def result(self, compress: bool) -> Path:
        """Return the target's file as it is to be: in the form asked for if it gains cells or is to be compressed."""
        changes = bool(self.added()) or (compress and self.held.exists())
        return in_form(self.held, compress) if changes else self.held


def merge(sources: Sequence[Path], into: Path, compress: bool = False) -> Merged:
    """Add the cells of some results folders to another, which is made if it is not there.

    The target's files are replaced by whole ones, when all of them are on disk: a merge that is killed leaves each
    file as it was or as it is to be, and the same command goes on from there. The sources are only read.

    Args:
        sources: Results folders.
        into: The target.
        compress: Whether to leave all files of records of the target compressed. If not, those that gain cells are
            plain, as a run makes them, and the others stay as they are.

    Raises:
        UsageError: A source is no results folder or is the target, or somebody else is writing to the target.
        KvbenchError: A folder does not pass `validate`, two folders disagree on a cell or on what a press is, or a
            file cannot be written.
    """
    for source in sources:
        if source.resolve() == into.resolve():
            raise UsageError(f"'{source}' cannot be merged into itself: name another folder after --into")
        _require_valid(source, validate(source))
    with ResultsFolder(into).writer() as writer:
        _require_valid(into, validate(into))
        try:
            return _merge(sources, writer, compress)
        except OSError as error:
            raise KvbenchError(f"cannot merge into {into}: {reason(error)}") from error


def _merge(sources: Sequence[Path], writer: ResultsWriter, compress: bool) -> Merged:
    merging: dict[str, _Merging] = {}
    _add_folder(merging, writer.folder, writer.folder.path)
    before = {key: cell for one in merging.values() for key, cell in one.cells.items()}
    seen: set[str] = set()
    for source in sources:
        seen.update(_add_folder(merging, writer.folder, source))
    for source in sources:
        for file in sorted((source / "environments").glob("*.json")):
            writer.add_environment(Environment.model_validate_json(file.read_bytes()))
    _write(merging.values(), compress)
    cells = {key: cell for one in merging.values() for key, cell in one.cells.items()}
    return Merged(
        added=len(cells.keys() - before.keys()),
        replaced=sum(cells[key] != cell for key, cell in before.items()),
        known=len(seen & before.keys()),
        failed=sum(not cell.ok for cell in cells.values()),
        cells=len(cells),
    )


def _require_valid(folder: Path, report: Report) -> None:
    if report.findings:
        more = f" and {len(report.findings) - 1} more" if len(report.findings) > 1 else ""
        raise KvbenchError(
            f"'{folder}' is not valid: {report.findings[0]}{more}; `kvbench validate {folder}` lists what is wrong"
        )


def _add_folder(merging: dict[str, _Merging], target: ResultsFolder, folder: Path) -> set[str]:
    """Take the cells of one folder in, and return their keys."""
    keys: set[str] = set()
    for file in record_files(folder):
        protocol = Protocol.model_validate_json(protocol_file(file).read_bytes())
        one = merging.setdefault(protocol.hash, _Merging(protocol, target.records_file(protocol)))
        mine: dict[str, _Cell] = {}
        for line in read_lines(file, wrong=_unexpected, torn=lambda _: None):
            record = line.record
            content = hash((record.press_identity, record.sample, record.question, record.budget))
            mine[record.key] = _Cell(file, line.number, record.status == "ok", hash(outcome_of(record)), content)
            _require_same_press(one, record, file)
        for key, cell in mine.items():
            known = one.cells.get(key)
            if known is not None and not known.agrees(cell):
                raise KvbenchError(_disagreement(key, known, cell))
            if known is None or (cell.ok and not known.ok):
                one.cells[key] = cell
        keys.update(mine)
    return keys


def _unexpected(number: int, message: str) -> None:
    raise KvbenchError(f"line {number} has been changed while it was read: {message}")


def _require_same_press(one: _Merging, record: Record, file: Path) -> None:
    identity, first = one.labels.setdefault(record.press, (record.press_identity, file))
    if identity != record.press_identity:
        raise KvbenchError(
            f"press {record.press} is not the same everywhere: its identity is {identity} in {first} and "
            f"{record.press_identity} in {file}; under one protocol a label has to mean one press"
        )


def _disagreement(key: str, known: _Cell, other: _Cell) -> str:
    first, second = (_record(cell) for cell in (known, other))
    return (
        f"key {key} (press {first.press}, budget {first.budget}, sample {first.sample}) has two outcomes: "
        f"{_outcome(known, first)}, and {_outcome(other, second)}; nothing was merged"
    )


def _outcome(cell: _Cell, record: Record) -> str:
    return (
        f"{cell.file}:{cell.number} has score {record.score} for {reprlib.repr(record.prediction)}, "
        f"{record.new_tokens} tokens, {record.kept_bytes} bytes kept"
    )


def _record(cell: _Cell) -> Record:
    lines = read_lines(cell.file, wrong=_unexpected, torn=lambda _: None)
    return next(line.record for line in lines if line.number == cell.number)


def _write(merging: Iterable[_Merging], compress: bool) -> None:
    """Write files beside those that they replace, put all in place when all are there, and drop other forms."""
    results = [(one, one.result(compress)) for one in merging]
    with ExitStack() as undo:
        ready: list[tuple[Path, Path]] = []
        for one, whole in results:
            if whole == one.held and not one.added():
                continue
            for file, lines in ((protocol_file(whole), _protocol_text(one)), (whole, _lines(one))):
                partial = write_partial(file, lines)
                undo.callback(partial.unlink, missing_ok=True)
                ready.append((partial, file))
        for partial, file in ready:
            partial.replace(file)
        for _, whole in results:
            in_form(whole, not is_compressed(whole)).unlink(missing_ok=True)


def _protocol_text(one: _Merging) -> Iterable[bytes]:
    yield f"{one.protocol.model_dump_json(indent=2)}\n".encode()


def _lines(one: _Merging) -> Iterable[bytes]:
    """Yield what the target holds already, and after it the lines of the cells that it gains."""
    if one.held.exists():
        for line in read_lines(one.held, wrong=_unexpected, torn=lambda _: None):
            yield _terminated(line.text)
    wanted: dict[Path, set[int]] = {}
    for cell in one.added():
        wanted.setdefault(cell.file, set()).add(cell.number)
    for file, numbers in wanted.items():
        for line in read_lines(file, wrong=_unexpected, torn=lambda _: None):
            if line.number in numbers:
                yield _terminated(line.text)


def _terminated(line: bytes) -> bytes:
    return line.removesuffix(b"\n") + b"\n"
