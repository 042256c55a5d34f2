import gzip
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kvbench import record_table
from kvbench.errors import KvbenchError, UsageError
from kvbench.record_table import ANSWERS, read_records
from kvbench.records import Protocol, Record
from kvbench.store import ResultsFolder, file_stem, load
from simulated import compress, make_environment, make_protocol, make_record, simulate

TESTS = Path(__file__).resolve().parents[1]


def write(path: Path, *samples: list[Record], protocol: Protocol | None = None) -> Path:
    """Append each sample's records and return the file they are in."""
    folder = ResultsFolder(path)
    protocol = protocol or make_protocol()
    with folder.writer() as writer:
        for records in samples:
            writer.append(protocol, records)
    return folder.records_file(protocol)


def in_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python process that can import what the tests import."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
    )


def one_sentence(error: UsageError) -> bool:
    return "\n" not in str(error) and not str(error).endswith(".")


def test_what_was_appended_is_what_is_loaded(tmp_path: Path) -> None:
    records = [make_record(budget=budget, score=score) for budget, score in (("64", 0.25), ("128", None))]
    other = make_protocol(dtype="bfloat16")
    write(tmp_path, records[:1], records[1:])
    write(tmp_path, records, protocol=other)

    results = load(tmp_path)

    assert results.protocols == {protocol.hash: protocol for protocol in (make_protocol(), other)}
    for protocol in results.protocols.values():
        rows = results.rows(protocol).drop(columns="protocol").astype(object)
        rows = rows.where(rows.notna(), None).to_dict("records")
        assert rows == [record.model_dump(exclude=set(ANSWERS)) for record in records]


@pytest.mark.parametrize("chunk", [1, 1 << 20], ids=["small chunks", "one chunk"])
def test_some_columns_are_those_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(record_table, "_CHUNK", chunk)
    simulate(tmp_path, presses={"kvp": 5.0}, samples=3, failing=0.2)
    write(tmp_path, [make_record(sample="vt/0", score=0.125)])
    part, whole = (load(tmp_path, *columns).frame for columns in ([("score", "press", "status")], []))
    assert part.columns.tolist() == ["protocol", "score", "press", "status"]
    pd.testing.assert_frame_equal(part, whole[part.columns])


def test_only_fields_of_the_columns_asked_for_are_checked(tmp_path: Path) -> None:
    file = write(tmp_path, [make_record()])
    file.write_text(file.read_text().replace('"kept_min":256', '"kept_min":"256"'))
    assert load(tmp_path, ["press"]).frame["press"].tolist() == ["kvp"]
    for columns in (["press", "kept_min"], None):
        with pytest.raises(UsageError, match="line 1: field 'kept_min' is '256'"):
            load(tmp_path, columns)


def test_a_records_file_reads_with_pandas_in_one_line(tmp_path: Path) -> None:
    record = make_record()
    frame = pd.read_json(write(tmp_path, [record]), lines=True)
    assert frame["prediction"].tolist() == [record.prediction]
    assert frame["score"].tolist() == [record.score]


def test_the_last_record_of_a_cell_counts(tmp_path: Path) -> None:
    failed, good, better = make_record(score=None), make_record(score=0.5), make_record(score=0.75)
    neighbour = make_record(budget="64", score=0.0)
    write(tmp_path, [failed, neighbour], [good], [better])
    rows = load(tmp_path).frame.set_index("budget")["score"]
    assert rows.to_dict() == {"64": 0.0, "256": 0.75}


def test_finished_cells_are_those_that_are_ok_in_the_end(tmp_path: Path) -> None:
    ok, failed, mended = (make_record(budget=budget) for budget in ("64", "128", "256"))
    write(
        tmp_path,
        [ok, make_record(budget="128", score=None), make_record(budget="256", score=None)],
        [mended],
    )
    folder = ResultsFolder(tmp_path)
    assert folder.finished(make_protocol()) == {ok.key, mended.key}
    assert failed.key not in folder.finished(make_protocol())
    assert folder.finished(make_protocol(seed=1)) == set()


@pytest.mark.parametrize("chunk", [1, 1 << 20], ids=["small chunks", "one chunk"])
def test_compressed_records_are_those_of_the_plain_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(record_table, "_CHUNK", chunk)
    folder, protocols = ResultsFolder(tmp_path), [make_protocol(seed=seed) for seed in range(4)]
    for protocol in protocols:
        simulate(tmp_path, protocol, presses={"kvp": 5.0}, samples=3, failing=0.2, seed=protocol.seed)
    plain = load(tmp_path)
    known = [(folder.finished(protocol), folder.sample_hashes(protocol)) for protocol in protocols]
    for protocol in protocols[1:3]:
        compress(folder.records_file(protocol))
    results = load(tmp_path)
    pd.testing.assert_frame_equal(results.frame, plain.frame)
    assert list(results.protocols.items()) == list(plain.protocols.items())
    assert [(folder.finished(protocol), folder.sample_hashes(protocol)) for protocol in protocols] == known
    assert len(pd.read_json(folder.records_file(protocols[1]), lines=True)) == len(results.rows(protocols[1]))


def test_a_compressed_file_is_unpacked_when_records_are_added(tmp_path: Path) -> None:
    file = write(tmp_path, [make_record(budget="64"), make_record(budget="128", score=None)])
    before = file.read_bytes()
    other = compress(write(tmp_path, [make_record()], protocol=make_protocol(seed=1)))
    compressed = compress(file)
    assert write(tmp_path, [make_record(budget="128")]) == file
    assert file.read_bytes() == before + make_record(budget="128").model_dump_json().encode() + b"\n"
    assert not compressed.exists()
    assert other.exists()


@pytest.mark.parametrize("left", ["both forms", "a part of the plain form"])
def test_unpacking_that_was_killed_loses_and_doubles_nothing(tmp_path: Path, left: str) -> None:
    file = write(tmp_path, [make_record(budget="64"), make_record(budget="128")])
    content = file.read_bytes()
    compressed = compress(file)
    if left == "both forms":
        file.write_bytes(content)
    else:
        file.with_name(f"{file.name}.partial").write_bytes(content[:-30])
    assert len(load(tmp_path).frame) == len(ResultsFolder(tmp_path).finished(make_protocol())) == 2
    write(tmp_path, [make_record()])
    assert file.read_bytes() == content + make_record().model_dump_json().encode() + b"\n"
    assert sorted(path.suffixes[-1] for path in file.parent.iterdir()) == [".json", ".jsonl"]
    assert not compressed.exists()


def test_a_disk_that_has_no_room_to_unpack_leaves_the_compressed_file(tmp_path: Path) -> None:
    compressed = compress(write(tmp_path, [make_record(sample=f"niah/{number}") for number in range(40)]))
    before = {path: path.read_bytes() for path in compressed.parent.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(KvbenchError, match=r"cannot write to .*\.jsonl: file too large"):
            write(tmp_path, [make_record()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path: path.read_bytes() for path in compressed.parent.iterdir()} == before


def test_a_compressed_file_cut_anywhere_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    compressed = compress(write(tmp_path, [make_record(budget=budget) for budget in ("64", "128")]))
    whole = compressed.read_bytes()
    for cut in range(0, len(whole), 3):
        compressed.write_bytes(whole[:cut])
        for read in (load, lambda path: ResultsFolder(path).finished(make_protocol())):
            with pytest.raises(UsageError, match="cannot be read: its compressed content is damaged") as error:
                read(tmp_path)
            assert str(error.value).startswith(f"{compressed} ")
            assert one_sentence(error.value)
        with pytest.raises(KvbenchError, match="its compressed content is damaged"):
            write(tmp_path, [make_record()])
        assert compressed.read_bytes() == whole[:cut]
        assert len(list(compressed.parent.iterdir())) == 2


def rows_or_error(file: Path) -> list[dict[str, object]] | UsageError:
    try:
        return read_records(file, ["budget", "score"]).to_pylist()
    except UsageError as error:
        return error


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_compressed_file_changed_anywhere_is_read_as_it_was_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lines = [make_record(budget="64").model_dump_json(), make_record(budget="128", score=None).model_dump_json()]
    content = bytearray(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    file = tmp_path_factory.mktemp("damaged") / "records.jsonl.gz"
    file.write_bytes(content)
    outcome = rows_or_error(file)
    if isinstance(outcome, UsageError):
        assert str(outcome).startswith(str(file))
        assert one_sentence(outcome)
    else:
        assert outcome == [{"budget": "64", "score": 1.0}, {"budget": "128", "score": None}]


def test_environments_are_kept_under_their_hash(tmp_path: Path) -> None:
    simulate(tmp_path, presses={"kvp": 5.0}, budgets=["64"], samples=1)
    environments = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "environments").iterdir()}
    assert environments == {make_environment().hash: make_environment().model_dump()}
    assert set(load(tmp_path).frame["environment"]) == set(environments)


def test_a_file_cut_anywhere_keeps_its_finished_records_and_can_be_appended_to(tmp_path: Path) -> None:
    records = [make_record(budget=budget) for budget in ("64", "128")]
    late = make_record(budget="256")
    file = write(tmp_path, records)
    whole = file.read_bytes()
    first = whole.index(b"\n")
    for cut in range(len(whole) + 1):
        file.write_bytes(whole[:cut])
        finished = {record.key for record, end in zip(records, (first, len(whole) - 1), strict=True) if cut >= end}
        assert ResultsFolder(tmp_path).finished(make_protocol()) == finished, cut
        if cut % 25 == 0 or cut in (first, first + 1, len(whole) - 1):
            write(tmp_path, [late])
            assert ResultsFolder(tmp_path).finished(make_protocol()) == finished | {late.key}, cut
            assert file.read_bytes().endswith(late.model_dump_json().encode() + b"\n")


@pytest.mark.parametrize("kill_after", [1, 2, 5])
def test_a_killed_writer_loses_at_most_the_sample_in_flight(tmp_path: Path, kill_after: int) -> None:
    child = in_python(
        """
        import sys
        from pathlib import Path
        from simulated import make_protocol, make_record
        from kvbench.store import ResultsFolder

        with ResultsFolder(Path(sys.argv[1])).writer() as writer:
            for index in range(10_000):
                sample = f"niah/{index}"
                text = "x" * 2_000_000  # long enough for the kill to fall into a write
                records = [make_record(budget=b, sample=sample, prediction=text) for b in ("64", "128")]
                writer.append(make_protocol(), records)
                print(index, flush=True)
        """,
        tmp_path,
    )
    assert child.stdout is not None
    done = -1
    while done < kill_after:
        done = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    done = max([done, *map(int, child.stdout.read().split())])
    child.wait()

    folder = ResultsFolder(tmp_path)
    promised = {make_record(budget=b, sample=f"niah/{i}").key for i in range(done + 1) for b in ("64", "128")}
    in_flight = {make_record(budget=b, sample=f"niah/{done + 1}").key for b in ("64", "128")}
    finished = folder.finished(make_protocol())
    assert promised <= finished <= promised | in_flight
    late = make_record(sample="niah/late")
    write(tmp_path, [late])
    assert folder.finished(make_protocol()) == finished | {late.key}


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    child = in_python(
        """
        import sys, time
        from pathlib import Path
        from kvbench.store import ResultsFolder

        with ResultsFolder(Path(sys.argv[1])).writer():
            print("held", flush=True)
            time.sleep(600)
        """,
        tmp_path,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    try:
        with pytest.raises(UsageError) as refused, ResultsFolder(tmp_path).writer():
            pass
        assert f"process {child.pid} on {socket.gethostname()}" in str(refused.value)
        assert one_sentence(refused.value)
    finally:
        child.kill()
        child.wait()
    write(tmp_path, [make_record()])
    with ResultsFolder(tmp_path).writer(), pytest.raises(UsageError, match="being written to by process"):
        write(tmp_path, [make_record()])
    assert len(load(tmp_path).frame) == 1


LINE = make_record().model_dump_json()
BROKEN = {
    "not JSON": ("a heading", "expected one record as a JSON object"),
    "an empty line": ("", "expected one record as a JSON object"),
    "two records": (LINE + LINE, "expected one record as a JSON object"),
    "a bare null": ("null", "expected one record as a JSON object"),
    "a null after a record": (LINE + " null", "expected one record as a JSON object"),
    "another object": ('{"id": 3}', "the record has no field 'key'"),
    "an unknown field": (LINE[:-1] + ',"scor":1}', "unknown field 'scor': did you mean 'score'?"),
    "a wrong type": (LINE.replace('"context_tokens":1000', '"context_tokens":"1000"'), "field 'context_tokens'"),
    "a null": (LINE.replace('"compressed":true', '"compressed":null'), "field 'compressed' is None"),
    "out of range": (LINE.replace('"budget_tokens":256', '"budget_tokens":0'), "field 'budget_tokens' is 0"),
    "an unknown word": (LINE.replace('"status":"ok"', '"status":"fine"'), "field 'status' is 'fine'"),
    "a null target": (LINE.replace('["7421"]', "[null]"), "field 'targets'"),
}


@pytest.mark.parametrize("chunk", [1, 1 << 20], ids=["small chunks", "one chunk"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, chunk: int) -> None:
    monkeypatch.setattr(record_table, "_CHUNK", chunk)
    line, message = BROKEN[broken]
    file = write(tmp_path, [make_record(budget="64"), make_record(budget="128")])
    file.write_text(f"{file.read_text()}{line}\n{LINE}\n")
    with pytest.raises(UsageError) as error:
        load(tmp_path)
    assert str(error.value).startswith(f"{file}, line 3: ")
    assert message in str(error.value)
    assert one_sentence(error.value)


PIECES = [b"null", b"0", b"1", b"7", b"-", b'"', b"NaN", b"true", b"\n", b"{", b"}", b"[", b",", b"\\u0000"]


def accepted(content: bytes) -> list[Record] | None:
    """What the schema itself makes of a file, line by line."""
    try:
        return [Record.model_validate_json(line, strict=True) for line in content.split(b"\n")[:-1]]
    except ValidationError:
        return None


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_reading_is_as_strict_as_the_schema(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lines = [make_record(budget="64").model_dump_json(), make_record(budget="128", score=None).model_dump_json()]
    content = bytearray("".join(f"{line}\n" for line in lines).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 2))
        piece = data.draw(st.binary(max_size=2) | st.sampled_from(PIECES))
        content[place : place + data.draw(st.integers(0, 4))] = piece
    if not content.endswith(b"\n"):
        content += b"\n"
    file = tmp_path_factory.mktemp("mutated") / "records.jsonl"
    file.write_bytes(content)
    records = accepted(bytes(content))
    if records is None:
        with pytest.raises(UsageError):
            read_records(file)
    else:
        expected = [record.model_dump(exclude=set(ANSWERS)) for record in records]
        assert str(read_records(file).to_pylist()) == str(expected)  # as text: NaN is not equal to itself


@settings(max_examples=50, deadline=None)
@given(model=st.text(), task=st.text())
def test_a_name_cannot_leave_the_folder(model: str, task: str) -> None:
    protocol = make_protocol(model=model, task=task)
    file = ResultsFolder(Path("results")).records_file(protocol)
    assert file.parent == Path("results/records")
    assert file.resolve().parent == Path("results/records").resolve()
    assert len(file.name.encode()) < 200
    assert file_stem(protocol).endswith(protocol.hash[:12])


def test_two_protocols_never_share_a_file() -> None:
    protocols = [make_protocol(), make_protocol(model="smollm2/135m"), make_protocol(seed=1)]
    assert len({file_stem(protocol) for protocol in protocols}) == 3


def test_a_path_that_is_no_results_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    (tmp_path / "other").mkdir()
    (tmp_path / "empty" / "records").mkdir(parents=True)
    reading = {
        tmp_path / "missing": "there is no results folder",
        file: "is a file",
        tmp_path / "other": "is not a results folder",
        tmp_path / "empty": "holds no records yet",
    }
    for path, message in reading.items():
        with pytest.raises(UsageError, match=message) as error:
            load(path)
        assert one_sentence(error.value)
    for path in (file, file / "below"):
        with pytest.raises(UsageError, match="cannot be written to") as error, ResultsFolder(path).writer():
            pass
        assert one_sentence(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="permission denied"), ResultsFolder(tmp_path / "results").writer():
        pass


def test_a_protocol_file_must_be_there_whole_and_unchanged(tmp_path: Path) -> None:
    file = write(tmp_path, [make_record()])
    beside = file.with_suffix(".protocol.json")
    content = json.loads(beside.read_text())
    changed = {
        "has schema version 99": json.dumps(content | {"schema_version": 99, "news": 1}),
        "was changed after it was written": json.dumps(content | {"seed": 43}),
        "field 'news'": json.dumps(content | {"news": 1}),
        "it: input should be a valid string": json.dumps(content | {"\ud800": 1}),
        "does not hold a protocol": "{",
    }
    for message, text in changed.items():
        beside.write_text(text)
        with pytest.raises(UsageError, match=message) as error:
            load(tmp_path)
        assert str(beside) in str(error.value)
        assert one_sentence(error.value)
    beside.unlink()
    with pytest.raises(UsageError, match="no readable protocol"):
        load(tmp_path)


def test_reading_needs_no_model() -> None:
    child = in_python(
        """
        import sys
        import kvbench.plots, kvbench.statistics, kvbench.store, kvbench.table
        print([name for name in ("torch", "transformers", "matplotlib.pyplot") if name in sys.modules])
        """
    )
    assert child.communicate()[0] == "[]\n"
