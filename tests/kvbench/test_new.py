"""`kvbench new`: names and folders; that what it writes works is in tests/packaging."""

from pathlib import Path

import pytest

from command_line import kvbench


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("pres", "mine", ["'pres'", "did you mean 'press'"]),
        ("press", "snapkv", ["'snapkv' already"]),
        ("task", "ruler", ["'ruler' already"]),
        ("press", "../mine", ["'../mine' is not allowed"]),
        ("press", "Mine", ["'Mine' is not allowed"]),
        ("press", "mine; rm", ["'mine; rm' is not allowed"]),
        ("task", "a__b", ["'a__b' is not allowed"]),
        ("press", "1st", ["'1st' is not allowed"]),
    ],
)
def test_a_name_that_cannot_be_used_writes_nothing(tmp_path: Path, kind: str, name: str, words: list[str]) -> None:
    done = kvbench("new", kind, name, "--into", str(tmp_path / "in"))
    assert done.returncode == 2
    assert all(word in done.stderr for word in words)
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    assert kvbench("new", "press", "mine", "--into", str(tmp_path)).returncode == 0
    [source] = tmp_path.glob("kvbench-mine/src/*/__init__.py")
    source.write_text("changed")
    done = kvbench("new", "press", "mine", "--into", str(tmp_path))
    assert done.returncode == 2
    assert "is there already" in done.stderr
    assert source.read_text() == "changed"
