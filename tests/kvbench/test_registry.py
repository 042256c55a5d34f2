"""Presses and tasks from outside packages, whole and broken."""

import json
from pathlib import Path

import pytest

from command_line import kvbench
from plug_ins import EXAMPLE, on_path, register

MODULES = {
    "sound": "from kvbench.press import ScorePress\n\n\nclass P(ScorePress):\n    '''Sound.'''\n",
    "syntax": "class P(:\n",
    "missing": "import a_package_nobody_has\n\n\nclass P: pass\n",
    "raises": "'''Raises.'''\nraise RuntimeError('this plug-in needs a licence')\n\n\nclass P: '''Fine?'''\n",
    "other": "P = 3\n",
    "unfinished": "from kvbench.press import Press\n\n\nclass P(Press):\n    '''Has no sort.'''\n",
}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A folder with a package whose presses each fail in another way."""
    for name, source in MODULES.items():
        (tmp_path / f"broken_{name}.py").write_text(source)
    presses = {name: f"broken_{name}:P" for name in MODULES if name != "sound"} | {"gone": "broken_gone:P"}
    register(tmp_path, "broken-presses", presses, {"gone_task": "broken_gone:T"})
    return tmp_path


REASONS = {
    "syntax": "SyntaxError",
    "missing": "a_package_nobody_has",
    "raises": "RuntimeError: this plug-in needs a licence",
    "other": "is no press",
    "unfinished": "it lacks sort",
    "gone": "broken_gone",
}


def test_a_list_says_where_each_comes_from(tmp_path: Path) -> None:
    register(tmp_path, "an-example", {"strided": "kvbench_example.strided:Strided"})
    with on_path(tmp_path, EXAMPLE):
        found = {one["name"]: one for one in json.loads(kvbench("list", "presses", "--json").stdout)}
    assert found["strided"]["origin"] == "an-example 1.0"
    assert found["strided"]["summary"].startswith("Every so many tokens one")
    assert found["snapkv"]["origin"].startswith("kvbench ")


def test_a_list_names_what_cannot_be_imported_with_its_error(broken: Path) -> None:
    with on_path(broken):
        done = kvbench("list", "presses", "--json")
    found = {one["name"]: one["summary"] for one in json.loads(done.stdout)}
    for name in ("syntax", "missing", "gone"):
        assert found[name].startswith("cannot be imported: ")
        assert REASONS[name] in found[name]


@pytest.mark.parametrize("name", REASONS)
def test_a_press_that_fails_to_import_is_an_error_if_named(broken: Path, name: str) -> None:
    with on_path(broken):
        done = kvbench("check", name)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"'{name}' of broken-presses 1.0" in done.stderr
    assert REASONS[name] in done.stderr


def test_all_goes_on_without_what_fails_to_import_and_names_it(broken: Path, tmp_path: Path) -> None:
    task = ("--task", "ruler-1k:vt", "--budgets", "8", "--model", "no/such/model", "--results", str(tmp_path))
    with on_path(broken):
        done = kvbench("run", "--press", "all", *task)
    assert "unknown model" in done.stderr  # the presses are made before the model is looked for
    for name, reason in REASONS.items():
        [line] = [line for line in done.stderr.splitlines() if line.startswith(f"without {name}: ")]
        assert reason in line


def test_doctor_names_what_fails_to_import_and_counts_the_rest(broken: Path) -> None:
    with on_path(broken):
        done = kvbench("doctor", "--json")
    assert done.returncode == 0, done.stderr
    detail = {finding["what"]: finding["detail"] for finding in json.loads(done.stdout)}
    assert all(reason in detail["presses"] for reason in REASONS.values())
    assert "broken_gone" in detail["tasks"]


def test_a_task_that_fails_to_import_is_still_named_among_tasks(broken: Path) -> None:
    with on_path(broken):
        assert "did you mean 'gone_task'" in kvbench("info", "gone_tusk").stderr
        assert "No module named 'broken_gone'" in kvbench("info", "gone_task").stderr


def test_a_clash_of_names_is_refused_and_names_both(tmp_path: Path) -> None:
    register(tmp_path, "a-rival", {"snapkv": "kvbench_example.strided:Strided"})
    with on_path(tmp_path, EXAMPLE):
        done = kvbench("list", "presses")
    assert done.returncode == 2
    for word in ("'snapkv'", "a-rival 1.0", "kvbench_example.strided:Strided", "kvbench 0", "kvbench.presses.snapkv"):
        assert word in done.stderr
