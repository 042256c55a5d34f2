"""Fixtures that the whole suite shares."""

from pathlib import Path

import hypothesis
import pytest
from transformers import PreTrainedTokenizerBase

from kvbench.models import Model, ModelSource, find

hypothesis.settings.register_profile("kvbench", deadline=None)  # these machines are noisy
hypothesis.settings.load_profile("kvbench")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference fixtures and real samples beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"the reference data is not here: {folder}")
    return folder


@pytest.fixture(scope="session")
def smollm2_source() -> ModelSource:
    """SmolLM2-135M-Instruct, found but not loaded."""
    return find("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_source: ModelSource) -> PreTrainedTokenizerBase:
    """SmolLM2's tokenizer."""
    return smollm2_source.tokenizer


@pytest.fixture(scope="session")
def smollm2(smollm2_source: ModelSource) -> Model:
    """SmolLM2-135M-Instruct in float32 on the CPU."""
    return smollm2_source.load("float32", "cpu", "sdpa")
