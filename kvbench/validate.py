"""Checking a results folder, of one's own or another's, line by line and without a model.

What a record says is compared with the protocol beside it, with the other records, with the budget as it was asked
for, and with the task's own score of the prediction. Keys are computed again from the sample hash that each record
holds; that it is the sample's own hash cannot be known without the sample.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol as Interface

from pydantic import ValidationError

from kvbench.budgets import parse_budgets
from kvbench.errors import UsageError
from kvbench.record_files import in_form, open_records, protocol_file, record_files, stem_of
from kvbench.record_table import is_torn, reason
from kvbench.records import FULL, REPEAT, SCHEMA, Environment, Protocol, Record, cell_key
from kvbench.registry import make_task
from kvbench.store import file_stem
from kvbench.task import Answer, Question, Task

_KEY = re.compile(r"[0-9a-f]{16}")
_GIVEN = ("sample_hash", "subtask", "source", "context_tokens", "targets")
_TOLERANCE = 1e-9  # of a score that is computed again


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and what is expected instead."""

    file: Path
    line: int | None
    message: str

    def __str__(self) -> str:
        place = str(self.file) if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}"


@dataclass
class Report:
    """What `validate` has found.

    Attributes:
        findings: What is wrong, file by file.
        remarks: What could not be checked, and what a run that was killed leaves behind.
        records: Lines read.
        cells: Distinct keys.
        failed: Cells whose last record has no score.
        rescored: Records whose score was computed again.
    """

    findings: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    records: int = 0
    cells: int = 0
    failed: int = 0
    rescored: int = 0


@dataclass(frozen=True)
class Line:
    """One line of a file of records."""

    number: int
    text: bytes
    record: Record


def validate(folder: Path) -> Report:
    """Check all that can be checked without the model.

    Raises:
        UsageError: It is no results folder.
    """
    report = Report()
    known: dict[str, Environment | None] = {}
    for file in record_files(folder):
        _FileCheck(file, folder / "environments", known, report).run()
    return report


def read_lines(file: Path, wrong: Callable[[int, str], None], torn: Callable[[int], None]) -> Iterator[Line]:
    """Yield the records of a file that have the schema, in order.

    Args:
        file: JSON lines, plain or compressed.
        wrong: Told the number of each other line, and what is wrong with it.
        torn: Told the number of a last line that a killed writer did not finish.

    Raises:
        OSError: The file cannot be read.
    """
    with open_records(file) as stream:
        for number, text in enumerate(stream, 1):
            if not text.endswith(b"\n") and is_torn(text):
                torn(number)
                return
            try:
                yield Line(number, text, Record.model_validate_json(text, strict=True))
            except ValidationError as error:
                wrong(number, _sentence(error))


class _Told(Interface):
    def __call__(self, message: str) -> None: ...


@dataclass
class _Seen:
    """What the records of one protocol have said so far, each with the line that said it first."""

    identities: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By press label."""
    questions: dict[tuple[str, int], tuple[tuple[object, ...], int]] = field(default_factory=dict)
    """By sample and question: what every press and budget was given."""
    outcomes: dict[str, tuple[tuple[object, ...], int]] = field(default_factory=dict)
    """By key: the last outcome that has a score."""
    status: dict[str, str] = field(default_factory=dict)
    """By key: the last one."""


class _FileCheck:
    """The check of one file of records and of the protocol beside it."""

    def __init__(self, file: Path, environments: Path, known: dict[str, Environment | None], report: Report) -> None:
        self.file = file
        self.environments = environments
        self.known = known
        self.report = report
        self.seen = _Seen()

    def run(self) -> None:
        """Add what is found to the report."""
        self._compressed_beside()
        protocol = self._protocol()
        task = self._task(protocol) if protocol else None
        try:
            for line in read_lines(self.file, self._at, self._torn):
                self.report.records += 1

                def tell(message: str, number: int = line.number) -> None:
                    self._at(number, message)

                self._environment(line.record, tell)
                self._same_as_before(line, tell)
                _check_budget(line.record, tell)
                _check_outcome(line.record, tell)
                if protocol:
                    _check_under_protocol(line.record, protocol, tell)
                if task and line.record.status == "ok":
                    self._rescore(line.record, task, tell)
        except OSError as error:
            self._at(None, f"cannot be read: {reason(error)}")
        self.report.cells += len(self.seen.status)
        self.report.failed += sum(status == "failed" for status in self.seen.status.values())

    def _at(self, number: int | None, message: str) -> None:
        self.report.findings.append(Finding(self.file, number, message))

    def _torn(self, number: int) -> None:
        self.report.remarks.append(
            f"{self.file}:{number}: the last line is unfinished, as a killed run leaves it; it counts for nothing"
        )

    def _compressed_beside(self) -> None:
        other = in_form(self.file, compressed=True)
        if self.file != other and other.exists():
            self.report.remarks.append(
                f"{self.file}: {other.name} is there too, as a killed writer leaves it; it counts for nothing"
            )

    def _protocol(self) -> Protocol | None:
        file = protocol_file(self.file)
        try:
            protocol = Protocol.model_validate_json(file.read_bytes())
        except OSError as error:
            self._at(None, f"expected its protocol beside it, {file.name}: {reason(error)}")
            return None
        except ValidationError as error:
            self.report.findings.append(Finding(file, 1, _sentence(error)))
            return None
        problems = []
        if protocol.schema_version != SCHEMA:
            problems.append(f"schema version {protocol.schema_version}: this kvbench expects {SCHEMA}")
        if stem_of(self.file) != file_stem(protocol):
            problems.append(f"its hash is {protocol.hash}: expected the name {file_stem(protocol)}.protocol.json")
        self.report.findings += [Finding(file, 1, problem) for problem in problems]
        return protocol

    def _task(self, protocol: Protocol) -> Task | None:
        """Return the task that scores the records; None, with a remark, if it is not here as it was then."""
        try:
            task = make_task(protocol.task)
        except UsageError as error:
            self.report.remarks.append(f"{self.file}: no score is computed again, for {error}")
            return None
        if task.version != protocol.task_version:
            self.report.remarks.append(
                f"{self.file}: no score is computed again, for {protocol.task} is here in version {task.version} "
                f"and the records are of version {protocol.task_version}"
            )
            return None
        return task

    def _environment(self, record: Record, tell: _Told) -> None:
        name = record.environment
        if name not in self.known:
            self.known[name] = self._read_environment(name)
        environment = self.known[name]
        if environment is None:
            tell(f"environment '{name}': expected environments/{name}.json to hold it")
        elif environment.hash != name:
            tell(f"environment '{name}': environments/{name}.json now has the hash {environment.hash}")

    def _read_environment(self, name: str) -> Environment | None:
        file = self.environments / f"{name}.json"
        if not _KEY.fullmatch(name) or not file.is_file():
            return None
        try:
            return Environment.model_validate_json(file.read_bytes())
        except (OSError, ValidationError):
            return None

    def _same_as_before(self, line: Line, tell: _Told) -> None:
        """Compare a record with those before it."""
        record, number, seen = line.record, line.number, self.seen
        identity, first = seen.identities.setdefault(record.press, (record.press_identity, number))
        if identity != record.press_identity:
            tell(f"press_identity {record.press_identity} of {record.press}: expected {identity}, as on line {first}")
        given = (record.sample_hash, record.subtask, record.source, record.context_tokens, record.targets)
        same, first = seen.questions.setdefault((record.sample, record.question), (given, number))
        for name, value, expected in zip(_GIVEN, given, same, strict=True):
            if value != expected:
                tell(
                    f"{name} of sample {record.sample} is {reprlib.repr(value)}: expected {reprlib.repr(expected)}, "
                    f"as on line {first}"
                )
        self._same_outcome(line, tell)

    def _same_outcome(self, line: Line, tell: _Told) -> None:
        record = line.record
        self.seen.status[record.key] = record.status
        if record.status == "ok":
            outcome, first = self.seen.outcomes.setdefault(record.key, (outcome_of(record), line.number))
            if outcome != outcome_of(record):
                tell(f"key {record.key} has another outcome on line {first}: expected one, for a finished cell is kept")

    def _rescore(self, record: Record, task: Task, tell: _Told) -> None:
        question = Question(text="", targets=record.targets, max_new_tokens=1)
        try:
            score = task.score(answer_of(record), question, record.subtask)
        except Exception as error:  # a plug-in may fail with anything
            tell(
                f"score {record.score}: {type(task).__name__} cannot compute it again: {type(error).__name__}: {error}"
            )
            return
        self.report.rescored += 1
        if record.score is not None and abs(score - record.score) > _TOLERANCE:
            tell(f"score {record.score}: expected {score}, which the task gives to the recorded prediction")


def answer_of(record: Record) -> Answer:
    """Return the answer that a record holds, but for the tokens of a generated one."""
    return Answer(
        text=record.prediction or "",
        stopped=record.stopped,
        log_likelihoods=record.log_likelihoods,
        continuation_tokens=record.continuation_tokens,
        greedy=record.greedy,
    )


def key_of(record: Record, protocol: Protocol) -> str:
    """Return the key that a record has under a protocol."""
    return cell_key(protocol.hash, record.sample_hash, record.question, record.press_identity, record.budget)


def outcome_of(record: Record) -> tuple[object, ...]:
    """Return what two computations of one cell must agree on: all that was measured but times."""
    return (
        record.status,
        record.score,
        record.prediction,
        record.log_likelihoods,
        record.new_tokens,
        record.stopped,
        record.kept_min,
        record.kept_max,
        record.kept_bytes,
    )


def _check_budget(record: Record, tell: _Told) -> None:
    n = record.context_tokens
    if record.budget in (FULL, REPEAT):
        expected = n
    else:
        try:
            (budget,) = parse_budgets(record.budget)
        except (UsageError, ValueError):
            tell(
                f"budget {reprlib.repr(record.budget)}: expected tokens (256), a share of the context (25%), {FULL} or "
                f"{REPEAT}"
            )
            return
        if budget.label != record.budget:
            tell(f"budget '{record.budget}': expected it written as '{budget.label}'")
        expected = budget.resolve(n)
    if record.budget_tokens != expected:
        tell(f"budget_tokens {record.budget_tokens}: expected {expected}, {record.budget} of {n} context tokens")
    if record.compressed != (record.budget_tokens < n):
        tell(
            f"compressed {record.compressed}: expected {not record.compressed} at {record.budget_tokens} of {n} tokens"
        )


def _check_outcome(record: Record, tell: _Told) -> None:
    if record.status == "failed":
        if record.score is not None:
            tell(f"score {record.score} of a failed cell: expected none")
        if not record.error:
            tell("error is missing: expected the reason why the cell failed")
        return
    if record.score is None or not math.isfinite(record.score):
        tell(f"score {record.score}: expected a number where the status is ok")
    if record.prediction is None:
        tell("prediction is missing: expected the answer where the status is ok")
    if record.error is not None:
        tell(f"error {reprlib.repr(record.error)}: expected none where the status is ok")
    for name, kept in (("kept_min", record.kept_min), ("kept_max", record.kept_max)):
        if kept != record.budget_tokens:
            tell(f"{name} {kept}: expected {record.budget_tokens}, the budget in tokens, as measured")


def _check_under_protocol(record: Record, protocol: Protocol, tell: _Told) -> None:
    key = key_of(record, protocol)
    if record.key != key:
        tell(
            f"key {reprlib.repr(record.key)}: expected {key}, the hash of protocol, sample, question, press and budget"
        )
    if protocol.subtasks and record.subtask not in protocol.subtasks:
        tell(f"subtask {record.subtask}: expected one of the protocol's, {', '.join(protocol.subtasks)}")
    if protocol.binary and record.score not in (None, 0, 1):
        tell(f"score {record.score}: expected 0 or 1, for the metric is binary")
    if record.peak_entries is None:
        return
    low, high = _peaks(record, protocol)
    if not low <= record.peak_entries <= high:
        wanted = str(low) if low == high else f"{low} to {high}"
        tell(f"peak_entries {record.peak_entries}: expected {wanted} where the cache is compressed {protocol.schedule}")


def _peaks(record: Record, protocol: Protocol) -> tuple[int, int]:
    """Return the least and the most entries that a layer can have held at its peak."""
    if protocol.chunk is None or not record.compressed:
        return record.context_tokens, record.context_tokens
    return record.budget_tokens, min(record.context_tokens, record.budget_tokens + protocol.chunk)


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    message = first["msg"][:1].lower() + first["msg"][1:]
    if not first["loc"]:
        return f"expected one JSON object of the schema: {message}"
    field_ = str(first["loc"][0])
    if first["type"] == "missing":
        return f"field '{field_}' is missing: expected every field that the schema requires"
    if first["type"] == "extra_forbidden":
        return f"field '{field_}': expected only the schema's fields"
    return f"field '{field_}' is {reprlib.repr(first['input'])}: {message}"
