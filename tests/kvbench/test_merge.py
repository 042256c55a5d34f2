import json
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbench.cli import app
from kvbench.errors import KvbenchError, UsageError
from kvbench.merge import Merged, merge
from kvbench.records import Protocol, Record
from kvbench.store import ResultsFolder, load
from kvbench.validate import key_of, validate
from simulated import compress, make_environment, make_protocol, make_record

ELSEWHERE = make_protocol(task="elsewhere")


def write(folder: Path, *records: Record, protocol: Protocol = ELSEWHERE) -> Path:
    results = ResultsFolder(folder)
    records = tuple(record.model_copy(update={"targets": ("7421",)}) for record in records)
    with results.writer() as writer:
        writer.add_environment(make_environment())
        writer.append(protocol, [record.model_copy(update={"key": key_of(record, protocol)}) for record in records])
    return results.records_file(protocol)


def scores(folder: Path) -> dict[str, float | None]:
    frame = load(folder).frame
    return {row.sample: None if row.status == "failed" else row.score for row in frame.itertuples()}


def test_every_cell_is_there_once(tmp_path: Path) -> None:
    both = make_record(sample="vt/0", score=0.5)
    write(tmp_path / "a", both, make_record(sample="vt/1", score=0.25))
    write(tmp_path / "b", both.model_copy(update={"prefill_seconds": 9.0}), make_record(sample="vt/2", score=0.75))
    merged = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert merged == Merged(added=3, replaced=0, known=0, failed=0, cells=3)
    assert scores(tmp_path / "c") == {"vt/0": 0.5, "vt/1": 0.25, "vt/2": 0.75}
    file = ResultsFolder(tmp_path / "c").records_file(ELSEWHERE)
    assert len(file.read_text().splitlines()) == 3
    assert validate(tmp_path / "c").findings == []
    before = file.read_bytes()
    assert merge([tmp_path / "b", tmp_path / "a"], tmp_path / "c").added == 0
    assert file.read_bytes() == before


def test_a_finished_cell_wins_over_a_failed_one_in_any_order(tmp_path: Path) -> None:
    done, failed = make_record(score=0.5), make_record(score=None)
    other = failed.model_copy(update={"error": "another reason"})
    write(tmp_path / "done", done)
    write(tmp_path / "failed", failed)
    write(tmp_path / "other", other)
    for number, order in enumerate((["done", "failed", "other"], ["failed", "other", "done"])):
        into = tmp_path / f"into{number}"
        merged = merge([tmp_path / name for name in order], into)
        assert (merged.cells, merged.failed) == (1, 0)
        assert scores(into) == {"niah/0": 0.5}
    assert merge([tmp_path / "done"], tmp_path / "failed") == Merged(added=0, replaced=1, known=1, failed=0, cells=1)
    assert scores(tmp_path / "failed") == {"niah/0": 0.5}
    lines = ResultsFolder(tmp_path / "failed").records_file(ELSEWHERE).read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["failed", "ok"]


@pytest.mark.parametrize("changes", [{"score": 0.5}, {"prediction": "other"}, {"kept_bytes": 1}, {"new_tokens": 3}])
def test_two_outcomes_of_one_key_are_refused_and_both_are_named(tmp_path: Path, changes: dict[str, object]) -> None:
    record = make_record("kvp", score=1.0)
    file = write(tmp_path / "a", make_record("tova"), record)
    other = write(tmp_path / "b", record.model_copy(update=changes))
    with pytest.raises(KvbenchError) as error:
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    for part in (key_of(record, ELSEWHERE), f"{file}:2 ", f"{other}:1 ", "score 1.0", "press kvp, budget 256"):
        assert part in str(error.value)
    assert list((tmp_path / "c" / "records").iterdir()) == []


def test_what_the_target_holds_is_kept_line_by_line(tmp_path: Path) -> None:
    file = write(tmp_path / "c", make_record(score=None), make_record(score=1.0))
    before = file.read_bytes()
    with file.open("a") as stream:
        stream.write('{"torn')
    write(tmp_path / "a", make_record("tova", score=0.5), make_record("tova", "64", score=0.5))
    merge([tmp_path / "a"], tmp_path / "c")
    assert file.read_bytes().startswith(before)
    assert len(file.read_text().splitlines()) == 4
    assert len(load(tmp_path / "c").frame) == 3


def test_protocols_and_environments_stay_apart_and_are_all_kept(tmp_path: Path) -> None:
    for name, dtype in (("a", "float32"), ("b", "bfloat16")):
        write(tmp_path / name, make_record(), protocol=make_protocol(task="elsewhere", dtype=dtype))
    other = make_environment().model_copy(update={"torch": "2.9"})
    with ResultsFolder(tmp_path / "b").writer() as writer:
        writer.add_environment(other)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    results = load(tmp_path / "c")
    assert {protocol.dtype for protocol in results.protocols.values()} == {"float32", "bfloat16"}
    assert len(results.frame) == 2
    kept = {file.stem for file in (tmp_path / "c" / "environments").iterdir()}
    assert kept == {make_environment().hash, other.hash}


def test_a_folder_that_is_not_valid_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a", make_record(kept_min=3))
    with pytest.raises(KvbenchError, match="kvbench validate") as error:
        merge([tmp_path / "a"], tmp_path / "c")
    assert f"{file}:1: kept_min 3" in str(error.value)
    assert not (tmp_path / "c").exists()


def test_one_label_does_not_become_two_presses(tmp_path: Path) -> None:
    write(tmp_path / "a", make_record())
    other = make_record(sample="vt/1").model_copy(update={"press_identity": "0123456789abcdef"})
    write(tmp_path / "b", other)
    with pytest.raises(KvbenchError, match="press kvp is not the same everywhere"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")


def test_a_target_that_is_written_to_or_is_a_source_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", make_record())
    with pytest.raises(UsageError, match="into itself"):
        merge([tmp_path / "a"], tmp_path / "a")
    with ResultsFolder(tmp_path / "c").writer(), pytest.raises(UsageError, match="is being written to by process"):
        merge([tmp_path / "a"], tmp_path / "c")


def test_a_disk_that_refuses_leaves_the_target_as_it_was(tmp_path: Path) -> None:
    file = write(tmp_path / "c", make_record("tova"))
    before = {path: path.read_bytes() for path in file.parent.iterdir()}
    write(tmp_path / "a", *(make_record("kvp", sample=f"niah/{number}") for number in range(40)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(KvbenchError, match=r"cannot merge into .*: file too large"):
            merge([tmp_path / "a"], tmp_path / "c")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path: path.read_bytes() for path in file.parent.iterdir()} == before
    assert merge([tmp_path / "a"], tmp_path / "c").added == 40


OTHER = make_protocol(task="elsewhere", seed=1)


def names(folder: Path) -> set[str]:
    return {file.name for file in (folder / "records").iterdir()}


def in_order(folder: Path) -> list[str]:
    return load(folder).frame.astype(str).sort_values("key").to_json(orient="records").splitlines()


def test_with_compress_all_files_of_the_target_are_compressed_and_hold_the_same(tmp_path: Path) -> None:
    write(tmp_path / "a", make_record(sample="vt/0"), make_record(sample="vt/1", score=None))
    write(tmp_path / "b", make_record(sample="vt/1"), make_record(sample="vt/2"))
    for into in ("plain", "compressed", "again"):
        write(tmp_path / into, make_record(), protocol=OTHER)
    sources = [tmp_path / "a", tmp_path / "b"]
    merged = merge(sources, tmp_path / "plain")
    assert merge(sources, tmp_path / "compressed", compress=True) == merged
    assert {Path(name).suffix for name in names(tmp_path / "plain")} == {".json", ".jsonl"}
    assert {Path(name).suffix for name in names(tmp_path / "compressed")} == {".json", ".gz"}
    assert len(names(tmp_path / "compressed")) == 4
    assert in_order(tmp_path / "compressed") == in_order(tmp_path / "plain")
    assert validate(tmp_path / "compressed").findings == []
    folder = ResultsFolder(tmp_path / "compressed")
    assert folder.finished(ELSEWHERE) == ResultsFolder(tmp_path / "plain").finished(ELSEWHERE)

    content = folder.records_file(ELSEWHERE).read_bytes()
    assert (content[3], content[4:8]) == (0, bytes(4))  # no name, no time
    merge(sources, tmp_path / "again")
    merge([tmp_path / "a"], tmp_path / "again", compress=True)
    assert ResultsFolder(tmp_path / "again").records_file(ELSEWHERE).read_bytes() == content


def test_without_compress_a_file_that_gains_cells_is_plain_and_others_stay(tmp_path: Path) -> None:
    gains = compress(write(tmp_path / "c", make_record(sample="vt/0")))
    stays = compress(write(tmp_path / "c", make_record(), protocol=OTHER))
    before = stays.read_bytes()
    source = compress(write(tmp_path / "a", make_record(sample="vt/1")))
    assert merge([tmp_path / "a"], tmp_path / "c").added == 1
    assert not gains.exists()
    assert stays.read_bytes() == before
    assert source.exists()
    assert len(ResultsFolder(tmp_path / "c").records_file(ELSEWHERE).read_text().splitlines()) == 2


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("compressed", [True, False])
def test_a_merge_killed_at_any_step_loses_and_doubles_nothing(tmp_path: Path, compressed: bool) -> None:
    write(tmp_path / "a", make_record(sample="vt/1"))
    write(tmp_path / "a", make_record(sample="vt/1"), protocol=OTHER)

    def target(name: str) -> Path:
        files = [write(tmp_path / name, make_record(sample="vt/0"), protocol=one) for one in (ELSEWHERE, OTHER)]
        if not compressed:
            for file in files:
                compress(file)
        return tmp_path / name

    whole = target("whole")
    merge([tmp_path / "a"], whole, compress=compressed)
    steps = 0
    killed = True
    while killed:
        steps += 1
        into = target(f"killed at {steps}")
        killed = dies_at(steps, [tmp_path / "a"], into, compressed)
        left = load(into).frame["sample"].value_counts()
        assert left["vt/0"] == 2
        assert validate(into).findings == []
        assert merge([tmp_path / "a"], into, compress=compressed).cells == 4
        assert names(into) >= names(whole)
        assert all(name.endswith(".partial") for name in names(into) - names(whole))
        for protocol in (ELSEWHERE, OTHER):
            final = ResultsFolder(into).records_file(protocol)
            assert final.read_bytes() == (whole / "records" / final.name).read_bytes()
    assert steps > 6  # two files and their protocols put in place, two other forms removed


def dies_at(step: int, sources: list[Path], into: Path, compressed: bool) -> bool:
    """Merge in a process that dies before the given one of its renamings and removals; say whether it did."""
    calls = 0

    def dying(operation: Callable[..., object]) -> Callable[..., object]:
        def step_or_die(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls >= step:  # the dead do nothing any more, nor clean up
                raise Killed
            return operation(*arguments, **options)

        return step_or_die

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "unlink"):
            patch.setattr(Path, name, dying(getattr(Path, name)))
        try:
            merge(sources, into, compress=compressed)
        except Killed:
            return True
    return False


def test_a_damaged_compressed_file_is_named_and_nothing_is_merged(tmp_path: Path) -> None:
    file = compress(write(tmp_path / "a", make_record()))
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(KvbenchError, match="its compressed content is damaged") as error:
        merge([tmp_path / "a"], tmp_path / "c", compress=True)
    assert str(file) in str(error.value)
    assert not (tmp_path / "c").exists()


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    write(tmp_path / "a", make_record("kvp"), make_record("tova", score=None))
    write(tmp_path / "b", make_record("kvp"))
    arguments = [
        "merge",
        str(tmp_path / "a"),
        str(tmp_path / "b"),
        "--into",
        str(tmp_path / "c"),
        "--compress",
        "--json",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "results": str(tmp_path / "c"),
        "added": 2,
        "replaced": 0,
        "known": 0,
        "failed": 1,
        "cells": 2,
    }
    assert ResultsFolder(tmp_path / "c").records_file(ELSEWHERE).suffix == ".gz"
