"""Data that a user gives or the hub has: read, refused in one sentence, or absent."""

from pathlib import Path

import huggingface_hub
import pytest

from command_line import kvbench
from kvbench.errors import UsageError
from kvbench.registry import make_task, make_tasks
from kvbench.sources import from_hub, parse_sources


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


def test_data_that_no_task_reads_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown data of ruler-4k 'essay': did you mean 'essays'\?"):
        make_task("ruler-4k", {"essay": Path()})


def test_each_task_gets_the_data_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "squad.json").write_text("{}")
    first, second = make_tasks(["ruler-4k", "ruler-8k"], {"squad": tmp_path / "squad.json"})
    assert first.data_of("qa_1").startswith("squad sha256:")
    assert first.data_of("qa_1") == second.data_of("qa_1")


def test_what_the_hubs_cache_lacks_is_absent(hub_cache: Path) -> None:
    assert from_hub("somebody/something", "*.parquet") is None
    snapshot = hub_cache / "datasets--somebody--something" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (hub_cache / "datasets--somebody--something" / "refs").mkdir()
    (hub_cache / "datasets--somebody--something" / "refs" / "main").write_text("abc")
    assert from_hub("somebody/something", "*.parquet") is None


def test_files_of_the_hubs_cache_are_found_with_their_revision(hub_cache: Path) -> None:
    folder = hub_cache / "datasets--somebody--something"
    (folder / "snapshots" / "abc" / "data").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    for name in ("b.parquet", "a.parquet", "train.csv"):
        (folder / "snapshots" / "abc" / "data" / name).touch()
    found = from_hub("somebody/something", "data/*.parquet")
    assert found is not None
    assert found.origin == "hub somebody/something@abc"
    assert [path.name for path in found.paths] == ["a.parquet", "b.parquet"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "essay=."], "did you mean 'essays'"),
        (["--data", "essays=/no/such/path"], "there is nothing at"),
        (["--data", "essays"], "write it as NAME=PATH"),
        (["--data", "squad=."], "cannot be read"),
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
