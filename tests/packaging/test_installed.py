"""The built wheels, kvbench's and plug-ins', installed into an environment of their own.

The environment sees the packages that kvbench depends on where they are, so that nothing is downloaded.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tiny_models import CONFIGS, tiny_network, tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("kvbench", "presses", "tasks", "pyproject.toml", "README.md", "LICENSE")


def run(*command: object, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """An environment with kvbench's wheel, the example plug-in's, and those of a new press and a new task."""

    folder: Path
    built: Path

    def kvbench(self, *arguments: object) -> str:
        return run(self.folder / "venv/bin/kvbench", *arguments, folder=self.folder)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    source, built = folder / "source", folder / "built"
    for name in SOURCES:  # a copy: building leaves files behind
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "tests/plugin", folder / "plugin", ignore=shutil.ignore_patterns("*.egg-info", "build"))
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", built]
    run(*build, source, folder=folder)  # the sdist, and from that the wheel
    run(*build, "--wheel", folder / "plugin", folder=folder)

    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    packages = next(folder.glob("venv/lib/python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", folder / "venv", "install", "--no-deps", "--no-index", "--quiet"]
    run(*pip, *built.glob("*.whl"), folder=folder)
    run(folder / "venv/bin/kvbench", "new", "press", "value_norm", folder=folder)
    run(folder / "venv/bin/kvbench", "new", "task", "rooms", folder=folder)
    run(*pip, "--no-build-isolation", "./kvbench-value-norm", "./kvbench-rooms", folder=folder)
    return Installed(folder, built)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    config = type(CONFIGS["llama"])(**CONFIGS["llama"].to_dict() | {"max_position_embeddings": 4096})
    tiny_network(config, torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_the_sdist_and_the_wheel_hold_the_same_sources(installed: Installed) -> None:
    [sdist] = installed.built.glob("kvbench-0*.tar.gz")
    [wheel] = installed.built.glob("kvbench-0*.whl")
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    for name in packed:
        path = name
        for folder in ("presses", "tasks"):
            path = path.replace(f"kvbench/{folder}/", f"{folder}/", 1)
        assert path in sources, name
    wanted = {
        str(file.relative_to(ROOT))
        for folder in ("kvbench", "presses", "tasks")
        for file in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in file.parts
    }
    assert wanted <= sources
    assert "kvbench/leaderboard/page.html" in packed


def test_kvbench_runs_from_its_wheel(installed: Installed) -> None:
    where = run(
        installed.folder / "venv/bin/python", "-c", "import kvbench; print(kvbench.__file__)", folder=installed.folder
    )
    assert Path(where.strip()).is_relative_to(installed.folder / "venv")
    installed.kvbench("doctor")


def test_lists_say_where_each_comes_from(installed: Installed) -> None:
    presses, tasks = (
        {one["name"]: one["origin"] for one in json.loads(installed.kvbench("list", what, "--json"))}
        for what in ("presses", "tasks")
    )
    assert presses["strided"] == tasks["recall"] == "kvbench-example 0.3.0"
    assert presses["value_norm"] == "kvbench-value-norm 0.1.0"
    assert tasks["rooms"] == "kvbench-rooms 0.1.0"
    assert presses["snapkv"].startswith("kvbench ")


@pytest.mark.parametrize("press", ["strided", "value_norm"])
def test_outside_presses_pass_the_check(installed: Installed, press: str) -> None:
    assert json.loads(installed.kvbench("check", press, "--json"))["passed"]


def test_what_a_new_package_is_tested_with_passes(installed: Installed) -> None:
    python = installed.folder / "venv/bin/python"
    for package in ("kvbench-value-norm", "kvbench-rooms"):
        run(python, "-m", "pytest", "-q", "tests", folder=installed.folder / package)


def test_a_sample_of_outside_tasks_runs_under_outside_presses(installed: Installed, model: Path) -> None:
    done = json.loads(
        installed.kvbench(
            "run", "--model", model, "--press", "strided,value_norm,snapkv",
            "--task", "recall:north,rooms,ruler-3k:niah_single_1",
            "--budgets", "16", "--limit", "1", "--dtype", "float32", "--json", "--results", "results",
        )
    )  # fmt: skip
    assert (done["cells"], done["failed"]) == (4 * (2 + 1 + 1), 0)
    report = json.loads(installed.kvbench("validate", "results", "--json"))
    assert not report["findings"]
