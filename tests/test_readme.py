"""The README files: their tables are what the commands print, their examples run, their links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.check import check_press
from kvbench.press import Press

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
QUOTING = [README, *sorted((ROOT / "results").rglob("README.md"))]


def test_the_tables_are_what_their_commands_print() -> None:
    cog = [sys.executable, "-m", "cogapp", "--check", "--diff", "-P", "-I", "benchmarks"]
    done = subprocess.run(
        [*cog, "-p", "from readme import show", README], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run `make leaderboard`:\n{done.stdout}{done.stderr}"


def test_the_press_in_the_readme_keeps_the_contract() -> None:
    [example] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, object] = {"__name__": "readme"}
    exec(example, names)
    press = names["ValueNorm"]
    assert isinstance(press, type)
    assert issubclass(press, Press)
    assert check_press(press()).passed


@pytest.mark.parametrize("file", QUOTING, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_and_pictures_lead_somewhere(file: Path) -> None:
    targets = re.findall(r"\]\(([^)]+)\)|<img[^>]* src=\"([^\"]+)\"", file.read_text())
    for target in (link or picture for link, picture in targets):
        assert target.startswith("https://") or (file.parent / target).is_file(), target
