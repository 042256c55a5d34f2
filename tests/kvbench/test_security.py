"""What kvbench reads from others cannot run code, crash a parser or leave its folder."""

import ast
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import TARGETS, Target
from kvbench.errors import KvbenchError
from kvbench.models import find
from tiny_models import CONFIGS, tiny_network, tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [file for folder in ("kvbench", "presses", "tasks") for file in sorted((ROOT / folder).rglob("*.py"))]
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
CALLS = {"eval", "exec", "torch.load", "compile", "os.system", "numpy.load", "np.load", "yaml.load", "pd.read_pickle"}


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def called(tree: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_source_unpickles_evaluates_or_trusts_remote_code(file: Path) -> None:
    tree = ast.parse(file.read_text())
    assert not imported(tree) & MODULES
    assert not called(tree) & CALLS
    dangerous = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword)
        and node.arg in ("trust_remote_code", "shell", "allow_pickle")
        and getattr(node.value, "value", None) is True
    ]
    assert not dangerous


@pytest.fixture
def model_with_code(tmp_path: Path) -> Path:
    """A tiny model whose folder brings a configuration class of its own, which leaves a file when it is imported."""
    folder = tmp_path / "with-code"
    tiny_network(CONFIGS["llama"], torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own_llama",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"Path({str(tmp_path / 'it-ran')!r}).touch()\n\n\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own_llama'\n\n\n"
        "class Own(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    return folder


def test_a_models_own_code_runs_only_if_it_is_trusted_and_is_then_recorded(
    model_with_code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    refused = find(str(model_with_code))
    with pytest.raises(KvbenchError, match="cannot be loaded") as error:
        refused.load("float32", "cpu", "sdpa")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "it-ran").exists()
    trusted = find(str(model_with_code), trust_remote_code=True)
    assert trusted.load("float32", "cpu", "sdpa").facts.layers == CONFIGS["llama"].num_hidden_layers
    assert (tmp_path / "it-ran").exists()
    assert trusted.weights.endswith(" with its own code")
    (model_with_code / "own.py").write_text((model_with_code / "own.py").read_text() + "# changed\n")
    assert find(str(model_with_code), trust_remote_code=True).weights != trusted.weights


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_is_damaged_was_sound(tmp_path: Path, target: Target) -> None:
    target.read(target.make(tmp_path))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@settings(max_examples=150)
@given(data=st.data())
def test_a_parser_takes_or_refuses_any_input_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, target: Target, data: st.DataObject
) -> None:
    seed = data.draw(st.integers(0, 2**32))
    target.try_one(tmp_path_factory.getbasetemp() / f"fuzzed-{target.name}", seed)
