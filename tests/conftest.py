"""Fixtures that the whole suite shares."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference fixtures and real samples beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"the reference data is not here: {folder}")
    return folder
