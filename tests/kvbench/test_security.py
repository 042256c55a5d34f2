"""What kvbench reads from others cannot run code, crash a parser or leave its folder."""

import ast
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import TARGETS, Target

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
    trusting = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword)
        and ((node.arg == "trust_remote_code" and getattr(node.value, "value", None) is not False)
             or (node.arg in ("shell", "allow_pickle") and getattr(node.value, "value", None) is True))
    ]  # fmt: skip
    assert not trusting


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
