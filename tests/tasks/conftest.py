"""What the tests of tasks share."""

from pathlib import Path

import huggingface_hub
import nltk
import pytest


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep generated data of one test from reaching another, or the user."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KVBENCH_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave the tests without a network, and without what this machine happens to have."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(nltk.data, "path", [])
    return folder


@pytest.fixture(scope="session")
def official(shared: Path) -> dict[str, Path]:
    """The sources that the official generator's files were made of."""
    data = shared / "data"
    return {
        "essays": data / "paul_graham_essays",
        "nltk": data / "nltk_data",
        "squad": data / "squad_dev_subset.json",
        "hotpotqa": data / "hotpotqa_100.json",
    }
