"""What the tests of tasks share."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep generated data of one test from reaching another, or the user."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KVBENCH_CACHE", str(folder))
    return folder
