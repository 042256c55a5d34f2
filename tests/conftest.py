"""Fixtures that the whole suite shares."""

import os
from pathlib import Path

import hypothesis
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from kvbench.models import Model, ModelSource, find
from tiny_models import CONFIGS, tiny_network, tiny_tokenizer

hypothesis.settings.register_profile("kvbench", deadline=None)  # these machines are noisy
hypothesis.settings.load_profile("kvbench")


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> None:
    """One thread for tiny models: several wait for each other longer than they compute. All for the real one."""
    real = request.node.get_closest_marker("real_model")
    torch.set_num_threads((os.cpu_count() or 1) if real else 1)


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


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that reads bytes, in a folder."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    config = type(CONFIGS["llama"])(**CONFIGS["llama"].to_dict() | {"max_position_embeddings": 4096})
    tiny_network(config, torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
