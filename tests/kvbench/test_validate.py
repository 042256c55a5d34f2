import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvbench.cli import app
from kvbench.errors import UsageError
from kvbench.records import FULL, Record
from kvbench.store import ResultsFolder
from kvbench.validate import key_of, validate
from simulated import compress, make_environment, make_protocol, make_record

SAMPLES = ("niah_single_1/0", "niah_single_1/1")
Change = Callable[[dict[str, Any]], object]


def records() -> list[Record]:
    cells = [(FULL, FULL), ("kvp", "256"), ("kvp", "25%"), ("tova", "256"), ("tova", "4096")]
    right = [
        make_record(press, budget, sample, 1.0, peak_entries=1000) for sample in SAMPLES for press, budget in cells
    ]
    wrong = make_record("tova", "64", SAMPLES[0], 0.0, prediction="The number is 7.", peak_entries=1000)
    return [*right, wrong, make_record("tova", "64", SAMPLES[1], None, targets=("7421",))]


def write(folder: Path, lines: list[Record], **changes: Any) -> Path:
    results, protocol = ResultsFolder(folder), make_protocol(**changes)
    with results.writer() as writer:
        writer.add_environment(make_environment())
        lines = [line.model_copy(update={"targets": ("7421",)}) for line in lines]
        writer.append(protocol, [line.model_copy(update={"key": key_of(line, protocol)}) for line in lines])
    return results.records_file(protocol)


def change(file: Path, number: int, how: Change) -> None:
    """Change the record on one line."""
    lines = file.read_text().splitlines(keepends=True)
    content = json.loads(lines[number - 1])
    how(content)
    lines[number - 1] = json.dumps(content) + "\n"
    file.write_text("".join(lines))


def test_what_a_run_writes_is_valid_and_its_scores_are_computed_again(tmp_path: Path) -> None:
    write(tmp_path, records())
    report = validate(tmp_path)
    assert report.findings == report.remarks == []
    assert (report.records, report.cells, report.failed, report.rescored) == (12, 12, 1, 11)


def test_a_run_in_chunks_is_valid_within_its_bound(tmp_path: Path) -> None:
    lines = [
        make_record(FULL, FULL, peak_entries=1000, subtask="vt"),
        make_record("kvp", "256", peak_entries=356, subtask="vt"),
    ]
    file = write(tmp_path, lines, schedule="chunked", chunk=100)
    assert validate(tmp_path).findings == []
    change(file, 2, lambda record: record.update(peak_entries=357))
    (finding,) = validate(tmp_path).findings
    assert "peak_entries 357: expected 256 to 356" in str(finding)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"key": "0123456789abcdef"}, "key '0123456789abcdef': expected "),
        ({"question": 1}, ", the hash of protocol, sample, question, press and budget"),
        ({"sample_hash": "0123456789abcdef"}, "sample_hash of sample niah_single_1/1"),
        ({"press_identity": "0123456789abcdef"}, "press_identity 0123456789abcdef of kvp: expected"),
        ({"budget": "0256"}, "expected it written as '256'"),
        ({"budget": "lots"}, "budget 'lots': expected tokens"),
        ({"budget": "128"}, "budget_tokens 256: expected 128"),
        ({"budget_tokens": 257}, "budget_tokens 257: expected 256"),
        ({"context_tokens": 1001, "peak_entries": 1001}, "context_tokens of sample niah_single_1/1"),
        ({"compressed": False}, "compressed False: expected True"),
        ({"kept_min": 255}, "kept_min 255: expected 256"),
        ({"kept_max": 300}, "kept_max 300: expected 256"),
        ({"peak_entries": 2000}, "peak_entries 2000: expected 1000"),
        ({"environment": "0123456789abcdef"}, "expected environments/0123456789abcdef.json"),
        ({"environment": "../../etc/passwd"}, "expected environments/"),
        ({"score": 0.5}, "score 0.5: expected 1.0, which the task gives"),
        ({"score": None}, "score None: expected a number"),
        ({"score": float("nan")}, "score nan: expected a number"),
        ({"prediction": "Nobody knows."}, "score 1.0: expected 0.0"),
        ({"targets": ["7422"]}, "targets of sample niah_single_1/1"),
        ({"subtask": "vt"}, "subtask of sample niah_single_1/1"),
        ({"status": "failed"}, "score 1.0 of a failed cell: expected none"),
        ({"status": "failed", "score": None}, "error is missing"),
        ({"error": "no memory"}, "error 'no memory': expected none"),
        ({"sample": "niah_single_1/0"}, "sample_hash of sample niah_single_1/0"),
        ({"status": "done"}, "field 'status' is 'done'"),
        ({"news": 1}, "field 'news': expected only"),
        ({"context_tokens": "1000"}, "field 'context_tokens' is '1000'"),
    ],
)
def test_what_was_changed_is_found_on_its_line(tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    file = write(tmp_path, records())
    change(file, 7, lambda record: record.update(fields))
    found = [str(finding) for finding in validate(tmp_path).findings]
    assert any(expected in finding for finding in found), found
    assert {finding.partition(": ")[0] for finding in found} == {f"{file}:7"}


def test_a_failed_cell_may_be_tried_again_but_a_finished_one_is_kept(tmp_path: Path) -> None:
    done = make_record("kvp", "64", score=1.0, subtask="vt")
    failed = make_record("kvp", "64", score=None, subtask="vt")
    file = write(tmp_path, [failed, failed, done])
    report = validate(tmp_path)
    assert (report.findings, report.records, report.cells, report.failed) == ([], 3, 1, 0)
    write(tmp_path, [done.model_copy(update={"new_tokens": 13})])
    (finding,) = validate(tmp_path).findings
    assert str(finding).startswith(f"{file}:4: key {json.loads(file.read_text().splitlines()[0])['key']} has another")
    assert "outcome on line 3" in str(finding)


def test_a_torn_line_is_no_fault_but_a_broken_one_is(tmp_path: Path) -> None:
    file = write(tmp_path, records())
    with file.open("a") as stream:
        stream.write('{"key": "01')
    report = validate(tmp_path)
    assert report.findings == []
    assert f"{file}:13" in report.remarks[0]
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:4], lines[4][:50], *lines[5:12]]) + "\n")
    (finding,) = validate(tmp_path).findings
    assert str(finding).startswith(f"{file}:5: expected one JSON object")


def test_the_protocol_file_is_there_and_unchanged(tmp_path: Path) -> None:
    file = write(tmp_path, records())
    beside = file.with_suffix(".protocol.json")
    content = json.loads(beside.read_text())
    for text, expected in {
        json.dumps(content | {"seed": 43}): "expected the name smollm2-135m_ruler-4k_",
        json.dumps(content | {"schema_version": 9}): "this kvbench expects 1",
        json.dumps({"seed": 43}): "is missing",
        "{": "expected one JSON object",
    }.items():
        beside.write_text(text)
        assert expected in str(validate(tmp_path).findings[0])
        assert str(validate(tmp_path).findings[0]).startswith(f"{beside}:1: ")
    beside.unlink()
    assert "expected its protocol beside it" in str(validate(tmp_path).findings[0])


def test_a_changed_environment_is_found(tmp_path: Path) -> None:
    write(tmp_path, records())
    (environment,) = (tmp_path / "environments").iterdir()
    environment.write_text(environment.read_text().replace("2.8", "2.9"))
    assert len(validate(tmp_path).findings) == 12
    assert "now has the hash" in str(validate(tmp_path).findings[0])


@pytest.mark.parametrize("changes", [{"task": "elsewhere"}, {"task_version": 99}])
def test_scores_of_a_task_that_is_not_here_are_not_judged(tmp_path: Path, changes: dict[str, Any]) -> None:
    write(tmp_path, [make_record(score=0.123)], **changes)
    report = validate(tmp_path)
    assert (report.findings, report.rescored) == ([], 0)
    assert "no score is computed again" in report.remarks[0]


def test_the_protocol_limits_subtasks_and_scores(tmp_path: Path) -> None:
    write(tmp_path, [make_record(score=0.5, subtask="vt")], task="elsewhere", binary=True, subtasks=("cwe",))
    found = [finding.message for finding in validate(tmp_path).findings]
    assert found == [
        "subtask vt: expected one of the protocol's, cwe",
        "score 0.5: expected 0 or 1, for the metric is binary",
    ]


def test_the_command_prints_a_line_per_finding_and_exits_with_1(tmp_path: Path) -> None:
    file = write(tmp_path, records())
    command = CliRunner()
    good = command.invoke(app, ["validate", str(tmp_path)])
    assert good.exit_code == 0
    assert good.stdout == "nothing is wrong: 12 records of 12 cells, 1 failed, 11 scores computed again\n"
    change(file, 2, lambda record: record.update(score=0.5))
    bad = command.invoke(app, ["validate", str(tmp_path)])
    assert bad.exit_code == 1
    assert bad.stdout.startswith(f"{file}:2: score 0.5: expected 1.0")
    as_json = command.invoke(app, ["validate", str(tmp_path), "--json"])
    assert as_json.exit_code == 1
    content = json.loads(as_json.stdout)
    assert (content["valid"], content["records"], content["failed"]) == (False, 12, 1)
    assert [(finding["file"], finding["line"]) for finding in content["findings"]] == [(str(file), 2)]


def test_compressed_records_are_checked_like_plain_ones(tmp_path: Path) -> None:
    file = write(tmp_path, records())
    change(file, 2, lambda record: record.update(score=0.5))
    plain = validate(tmp_path)
    compressed = compress(file)
    report = validate(tmp_path)
    [finding] = report.findings
    assert str(finding).startswith(f"{compressed}:2: score 0.5: expected 1.0")
    assert (report.records, report.cells, report.failed) == (plain.records, plain.cells, plain.failed)


def test_of_two_forms_the_plain_one_is_checked_and_the_other_named(tmp_path: Path) -> None:
    file = write(tmp_path, records())
    content = file.read_bytes()
    compressed = compress(file)
    file.write_bytes(content)
    report = validate(tmp_path)
    assert (report.findings, report.records) == ([], 12)
    [remark] = report.remarks
    assert remark.startswith(f"{file}: {compressed.name} is there too")


def test_a_compressed_file_that_was_cut_is_found(tmp_path: Path) -> None:
    compressed = compress(write(tmp_path, records()))
    whole = compressed.read_bytes()
    for cut in range(0, len(whole), 11):
        compressed.write_bytes(whole[:cut])
        finding = validate(tmp_path).findings[-1]
        assert str(finding).startswith(f"{compressed}: cannot be read: its compressed content is damaged: ")
    done = CliRunner().invoke(app, ["validate", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stdout.startswith(f"{compressed}: cannot be read")


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a results folder"):
        validate(tmp_path)
