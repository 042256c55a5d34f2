"""`kvbench new`: a package with one press or one task, ready to be installed, checked and filled in."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from rich.console import Console

from kvbench.errors import UsageError
from kvbench.record_table import reason
from kvbench.registry import PRESSES, TASKS, registered

KINDS = {"press": PRESSES, "task": TASKS}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

_PYPROJECT = Template("""\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "kvbench-$dashed"
version = "0.1.0"
description = "The $kind $name for kvbench"
requires-python = ">=3.11"
dependencies = ["kvbench"]

[project.optional-dependencies]
dev = ["pytest"]

[project.entry-points."$group"]
$name = "kvbench_$name:$class_name"

[tool.setuptools.packages.find]
where = ["src"]
""")

_PRESS = Template('''\
"""The press $name."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from kvbench.press import LayerCache, Reads, ScorePress


class $class_name(ScorePress):
    """Tokens whose values have the largest norm (put your own method here)."""

    paper: ClassVar[str] = "none"
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.VALUES})

    order: float = Field(2.0, gt=0, description="Which norm.")

    def score(self, layer: LayerCache) -> Tensor:
        """Score each token: a higher score is kept longer."""
        return layer.values.float().norm(p=self.order, dim=-1)  # [batch, kv_heads, n]
''')

_PRESS_TEST = Template("""\
from kvbench.check import check_press

from kvbench_$name import $class_name


def test_the_press_keeps_the_contract() -> None:
    assert check_press($class_name()).passed
""")

_PRESS_README = Template("""\
# kvbench-$dashed

The press `$name` for [kvbench](https://pypi.org/project/kvbench/): the class in `src/kvbench_$name/__init__.py`.

    pip install -e .
    kvbench check $name
    kvbench run --press $name,random --task ruler-1k:niah_single_1 --budgets 64,256 --limit 8
    kvbench table results

Its fields are its parameters (`$name:order=1`). Say in `reads` what it looks at, in `paper` where it was published,
and raise `version` whenever the ranking changes: results of different versions are never mixed.
""")

_TASK = Template('''\
"""The task $name."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, ClassVar, Self

from kvbench.errors import unknown
from kvbench.sources import Sources
from kvbench.task import Answer, Question, Sample, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLES = 20


class $class_name(Task):
    """Recall one of thirty numbers (put your own samples and score here)."""

    metric: ClassVar[str] = "right answers"
    binary: ClassVar[bool] = True

    @classmethod
    def create(cls, variant: str | None, subset: str | None, sources: Sources) -> Self:
        """Make the task; it has no variants and no subsets."""
        if variant or subset:
            raise unknown("variant or subset of $name", variant or subset or "", [])
        return cls()

    @classmethod
    def spellings(cls) -> Sequence[str]:
        """Return the names under which a user can ask for the task."""
        return ["$name"]

    @property
    def name(self) -> str:
        """The task's name in results."""
        return "$name"

    def data_of(self, subtask: str) -> str:
        """Say where the samples come from."""
        return "generated"

    def samples(self, tokenizer: PreTrainedTokenizerBase, limit: int | None, seed: int) -> Sequence[Sample]:
        """Return the samples; those of a smaller limit are the first of a larger one."""
        return [_sample(number, seed) for number in range(limit or SAMPLES)]

    def score(self, answer: Answer, question: Question, subtask: str) -> float:
        """Return 1 if the answer holds the number, else 0."""
        return float(question.targets[0] in answer.text)


def _sample(number: int, seed: int) -> Sample:
    random = Random(f"{seed} {number}")
    codes = {name: str(random.randrange(1000, 10_000)) for name in range(30)}
    asked = random.choice(list(codes))
    return Sample(
        id=f"$name/{number}",
        subtask="$name",
        context="".join(f"The code of room {name} is {code}. " for name, code in codes.items()),
        questions=(Question(text=f"What is the code of room {asked}?", targets=(codes[asked],), max_new_tokens=16),),
        source=str(number),
    )
''')

_TASK_TEST = Template("""\
from kvbench.registry import make_task
from kvbench.task import Answer


def test_the_right_answer_scores_and_a_wrong_one_does_not() -> None:
    task = make_task("$name")
    [sample] = task.samples(None, 1, seed=0)
    question = sample.questions[0]
    assert task.score(Answer(text=question.targets[0]), question, sample.subtask) == 1
    assert task.score(Answer(text="I do not know"), question, sample.subtask) == 0


def test_a_smaller_limit_gives_the_first_samples() -> None:
    task = make_task("$name")
    assert task.samples(None, 2, seed=0) == task.samples(None, 5, seed=0)[:2]
""")

_TASK_README = Template("""\
# kvbench-$dashed

The task `$name` for [kvbench](https://pypi.org/project/kvbench/): the class in `src/kvbench_$name/__init__.py`.

    pip install -e .
    kvbench data show $name
    kvbench run --press snapkv,random --task $name --budgets 64,128 --limit 8
    kvbench table results

Raise `version` whenever samples or scores change: results of different versions are never mixed.
""")

_FILES = {
    "press": (_PRESS, _PRESS_TEST, _PRESS_README),
    "task": (_TASK, _TASK_TEST, _TASK_README),
}


def new_command(kind: str, name: str, into: Path, out: Console) -> None:
    """Write the package and say what to do with it.

    Args:
        kind: `press` or `task`.
        name: What the press or task will be called.
        into: The folder that gets the package's folder.
        out: Where to print.

    Raises:
        UsageError: The name cannot be used or is taken, or the folder is there already or cannot be written.
    """
    folder = write_package(kind, name, into)
    then = f"kvbench check {name}" if kind == "press" else f"kvbench data show {name}"
    out.print(f"{folder} holds the {kind} {name}; next:", highlight=False, soft_wrap=True)
    out.print(f"  pip install -e {folder}\n  {then}", highlight=False, soft_wrap=True)


def write_package(kind: str, name: str, into: Path) -> Path:
    """Write the package of a new press or task and return its folder; see `new_command`."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{kind} name '{name}' is not allowed: lower-case letters, digits and single _ (my_{kind})")
    if name in registered(KINDS[kind]):
        raise UsageError(f"there is a {kind} '{name}' already: `kvbench info {name}` says what it is")
    words = {
        "kind": kind,
        "name": name,
        "dashed": name.replace("_", "-"),
        "group": KINDS[kind],
        "class_name": "".join(part.capitalize() for part in (*name.split("_"), kind)),
    }
    source, test, readme = _FILES[kind]
    folder = into / f"kvbench-{words['dashed']}"
    files = {
        folder / "pyproject.toml": _PYPROJECT,
        folder / "README.md": readme,
        folder / "src" / f"kvbench_{name}" / "__init__.py": source,
        folder / "tests" / f"test_{name}.py": test,
    }
    if folder.exists():
        raise UsageError(f"'{folder}' is there already: choose another name or another folder (--into)")
    try:
        for file, template in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(template.substitute(words))
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be written: {reason(error)}") from error
    return folder
