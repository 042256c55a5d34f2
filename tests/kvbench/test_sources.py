"""Data that a user gives or the hub has: read, refused in one sentence, or absent."""

import gzip
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from command_line import kvbench
from kvbench.errors import UsageError
from kvbench.registry import make_task, make_tasks
from kvbench.sources import Dataset, Files, Revision, find, need, parse_sources, rows

RIVERS = Dataset("rivers", "Rivers", "somebody/rivers", "data/test-*.parquet", "test")
COMMIT = "c0ffee" * 6 + "c0de"
ROWS = [
    {"river": "Po", "length": 652, "mouths": ["Po di Goro", "Po della Pila"]},
    {"river": "Ems", "length": 371, "mouths": []},
    {"river": "Ébro", "length": 930, "mouths": ["delta"]},
    {"river": "长江", "length": 6300, "mouths": ["上海"]},
]


class River(BaseModel):
    river: str
    length: int
    mouths: list[str]


class Lake(BaseModel):
    lake: str
    length: int


def read(files: Files, limit: int | None = None) -> list[dict[str, Any]]:
    return [row.model_dump() for row in rows(files, River, limit=limit)]


def write(file: Path, given: Sequence[Mapping[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(given)), file)
        return file
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in given).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file


def put_into_hub_cache(
    cache: Path, files: Mapping[str, Sequence[Mapping[str, Any]]], commit: str = COMMIT, ref: str = "main"
) -> None:
    repository = cache / "datasets--somebody--rivers"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / ref).write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    for name, given in files.items():
        write(repository / "snapshots" / commit / name, given)


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no network."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    return folder


def test_assignments_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a=b.json").touch()
    assert parse_sources([f"squad={tmp_path}/a=b.json", "essays=~"]) == {
        "squad": tmp_path / "a=b.json",
        "essays": tmp_path,
    }
    assert parse_sources([]) == {}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["essays"], "--data essays: write it as NAME=PATH"),
        (["essays="], "write it as NAME=PATH"),
        (["=here"], "write it as NAME=PATH"),
        (["essays=/no/such/path"], "there is nothing at '/no/such/path'"),
        (["essays=.", "essays=.."], "--data essays is given twice"),
    ],
)
def test_a_wrong_assignment_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_sources(texts)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_revisions_are_read_beside_local_copies() -> None:
    sources = parse_sources(["essays=."], ["boolq=main", "rivers=v1=x"])
    assert sources == {"essays": Path(), "boolq": Revision("main"), "rivers": Revision("v1=x")}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["boolq"], "--revision boolq: write it as NAME=REVISION"),
        (["boolq=main", "boolq=v1"], "--revision boolq is given twice: main and v1"),
        (["essays=main"], "--revision essays=main and --data essays=.: a local copy has no revision"),
    ],
)
def test_a_wrong_revision_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_sources(["essays=."], texts)
    assert message in str(refusal.value)


def test_data_that_no_task_reads_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown data of ruler-4k 'essay': did you mean 'essays'\?"):
        make_task("ruler-4k", {"essay": Path()})


def test_each_task_gets_the_data_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "squad.json").write_text("{}")
    first, second = make_tasks(["ruler-4k", "ruler-8k"], {"squad": tmp_path / "squad.json"})
    assert first.data_of("qa_1").startswith("squad sha256:")
    assert first.data_of("qa_1") == second.data_of("qa_1")


def test_what_the_hubs_cache_lacks_is_absent(hub_cache: Path) -> None:
    assert find(RIVERS, None) is None
    put_into_hub_cache(hub_cache, {})
    assert find(RIVERS, None) is None
    with pytest.raises(UsageError, match=r"Rivers is neither on this machine nor .* --data rivers=PATH"):
        need(RIVERS, None)


def test_rows_of_the_hubs_cache_are_found_with_their_revision(hub_cache: Path) -> None:
    put_into_hub_cache(
        hub_cache,
        {
            "data/test-00001-of-00002.parquet": ROWS[2:],
            "data/test-00000-of-00002.parquet": ROWS[:2],
            "train/a.parquet": ROWS,
        },
    )
    found = need(RIVERS, None)
    assert found.origin == f"hub {RIVERS.repository}@{COMMIT}"
    assert [path.name for path in found.paths()] == ["test-00000-of-00002.parquet", "test-00001-of-00002.parquet"]
    assert read(found) == ROWS
    assert read(found, limit=3) == ROWS[:3]


def test_a_shard_that_is_missing_from_the_cache_makes_it_absent(hub_cache: Path) -> None:
    put_into_hub_cache(hub_cache, {"data/test-00000-of-00002.parquet": ROWS})
    assert find(RIVERS, None) is None


def test_a_revision_is_taken_from_the_cache_by_commit_or_tag_and_refused_if_it_is_not_there(hub_cache: Path) -> None:
    put_into_hub_cache(hub_cache, {"data/test-0.parquet": ROWS}, "0" * 40, "v1")
    put_into_hub_cache(hub_cache, {"data/test-0.parquet": ROWS[:1]})
    for revision in ("v1", "0" * 40):
        found = need(RIVERS, Revision(revision))
        assert found.origin.endswith("@" + "0" * 40)
        assert read(found) == ROWS
    assert read(need(RIVERS, None)) == ROWS[:1]
    with pytest.raises(UsageError, match="--revision rivers=v2: neither the hub's somebody/rivers nor its cache has"):
        find(RIVERS, Revision("v2"))


@pytest.mark.parametrize("name", ["test.jsonl", "test.json", "test.jsonl.gz", "test.parquet"])
def test_a_local_file_is_read_whatever_its_format_and_found_in_its_folder(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "given" / name, ROWS)
    found = need(RIVERS, file)
    assert found.origin == f"sha256:{sha256(file.read_bytes()).hexdigest()[:16]}"
    assert read(found) == ROWS
    assert need(RIVERS, file.parent) == found


def test_a_clone_of_the_hubs_repository_is_a_local_folder(tmp_path: Path) -> None:
    for number in (1, 0):
        write(tmp_path / "data" / f"test-{number}.parquet", ROWS[2 * number :][:2])
    found = need(RIVERS, tmp_path)
    assert read(found) == ROWS
    assert found.origin != need(RIVERS, tmp_path / "data" / "test-0.parquet").origin


def test_an_empty_folder_is_refused_with_what_belongs_into_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds none of test.jsonl, .*test.parquet and no data/test-\*.parquet"):
        find(RIVERS, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"river": "Po", "length": 652, "mouths": []}\n{"river": "Elbe", "length": 1094}\n',
            "line 2: the field 'mouths' is missing",
        ),
        (
            '{"river": "Po", "length": "652", "mouths": []}\n',
            "line 1: the field 'length' is '652': input should be a valid integer",
        ),
        (
            '\n{"river": "Po", "length": 652, "mouths": ["a", 3]}\n',
            "line 2: the field 'mouths.1' is 3: input should be a valid string",
        ),
        ('{"river": "Po",\n', "line 1: it is not JSON"),
        ('[{"river": "Po"}]\n', "line 1: it is a JSON list"),
        ("", "holds no rows"),
        ("\n\n", "holds no rows"),
    ],
)
def test_a_wrong_row_is_refused_by_file_line_and_field(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "test.jsonl"
    file.write_text(content)
    with pytest.raises(UsageError) as refusal:
        read(need(RIVERS, file))
    assert str(refusal.value).startswith(f"'{file}'")
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_wrong_row_of_a_parquet_file_is_named_by_its_number(tmp_path: Path) -> None:
    file = write(tmp_path / "test.parquet", [*(row for _ in range(50) for row in ROWS), {**ROWS[0], "river": None}])
    with pytest.raises(UsageError, match=r"test.parquet', row 201: the field 'river' is None"):
        read(need(RIVERS, file))
    assert read(need(RIVERS, file), limit=200) == ROWS * 50


@pytest.mark.parametrize("name", ["test.parquet", "test.jsonl.gz", "test.csv", "test.jsonl"])
def test_a_file_that_is_something_else_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"\xff\xfe none of these")
    with pytest.raises(UsageError) as refusal:
        read(need(RIVERS, file))
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_row_is_of_the_first_kind_whose_fields_it_has(tmp_path: Path) -> None:
    lakes = [{"lake": "Como", "length": 46}]
    for given, kind in ((ROWS, River), (lakes, Lake)):
        found = need(RIVERS, write(tmp_path / f"{kind.__name__}.jsonl", given))
        assert {type(row) for row in rows(found, River, Lake)} == {kind}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "essay=."], "did you mean 'essays'"),
        (["--data", "essays=/no/such/path"], "there is nothing at"),
        (["--data", "essays"], "write it as NAME=PATH"),
        (["--data", "squad=."], "holds none of dev-v2.0.jsonl"),
    ],
)
def test_both_commands_refuse_wrong_data_with_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    run = ["run", "--task", "ruler-2k:qa_1", "--press", "k_norm", "--budgets", "8", "--results", str(tmp_path / "r")]
    for command in (run, ["data", "show", "ruler-2k:qa_1"]):
        done = kvbench(*command, *arguments)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_subtask_without_its_data_is_refused_with_the_way_to_give_it() -> None:
    done = kvbench("data", "show", "ruler-4k:qa_1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "error: SQuAD 2.0 is neither on this machine nor to be had from the hub: give its dev-v2.0.json with "
        "--data squad=PATH"
    )
