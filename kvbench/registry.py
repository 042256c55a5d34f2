"""Presses and tasks by name, found through entry points and imported only when one is asked for.

A press is asked for as `name` or `name:field=value,field=value`, a task as `name[-variant][:subset]`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError, unknown
from kvbench.sources import Revision, Sources

if TYPE_CHECKING:
    from kvbench.press import Press
    from kvbench.task import Task

PRESSES = "kvbench.presses"
TASKS = "kvbench.tasks"


@dataclass(frozen=True)
class Listing:
    """One line of `kvbench list`, read without importing the plug-in."""

    name: str
    summary: str
    origin: str


@cache
def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name.

    Raises:
        UsageError: Two packages register the same name.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        twin = found.setdefault(entry.name, entry)
        if twin.value != entry.value:
            raise UsageError(
                f"two packages register '{entry.name}' in {group}: {origin_of(twin)} ({twin.value}) and "
                f"{origin_of(entry)} ({entry.value}); uninstall one of them"
            )
    return dict(sorted(found.items()))


def listings(group: str) -> list[Listing]:
    """Return name, one-line summary and origin of all that a group registers, importing none of it."""
    return [Listing(name, _summary(entry), origin_of(entry)) for name, entry in registered(group).items()]


def import_failures(group: str) -> dict[str, str]:
    """Import all that a group registers; return why, by name, those that cannot be had cannot."""
    failures: dict[str, str] = {}
    for name in registered(group):
        try:
            press_class(name) if group == PRESSES else task_class(name)
        except UsageError as error:
            failures[name] = str(error)
    return failures


def press_class(name: str) -> type[Press]:
    """Return the class of the press called `name`.

    Raises:
        UsageError: No such press, its package fails to import, or what it registers is no press.
    """
    loaded = _load(PRESSES, "press", name)
    from kvbench.press import Press  # needs torch, as every press does

    found: type[Press] = _implemented(loaded, Press, "press", registered(PRESSES)[name])
    return found


def make_press(spec: str) -> Press:
    """Make a press from `name` or `name:field=value,…`.

    Raises:
        UsageError: No such press or parameter, or a value out of range.
    """
    name, _, given = spec.partition(":")
    cls = press_class(name)
    parameters: dict[str, str] = {}
    for assignment in filter(None, given.split(",")):
        field, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"press parameter '{assignment}' of {name}: write it as field=value")
        if field not in cls.model_fields:
            raise unknown(f"parameter of press {name}", field, cls.model_fields)
        parameters[field] = value
    return _validated(cls, name, parameters)


def press_label(name: str, press: Press) -> str:
    """Return `name` with the parameters that differ from the defaults, as a user would write them."""
    fields = type(press).model_fields
    changed = [
        f"{field}={value}"
        for field, value in press.model_dump(mode="json").items()
        if value != fields[field].get_default(call_default_factory=True)
    ]
    return f"{name}:{','.join(changed)}" if changed else name


def make_task(spec: str, sources: Sources | None = None) -> Task:
    """Make a task from `name[-variant][:subset]`; see `make_tasks`."""
    return make_tasks([spec], sources)[0]


def make_tasks(specs: Sequence[str], sources: Sources | None = None) -> list[Task]:
    """Make tasks, each from `name[-variant][:subset]`.

    Args:
        specs: As a user writes them.
        sources: Local copies or revisions of their data, for whichever of them reads data of that name.

    Raises:
        UsageError: No such task, variant or subset, its package fails to import, or data that no task reads.
    """
    sources = sources or {}
    found = [task_class(spec.partition(":")[0]) for spec in specs]
    known = {name for _, cls in found for name in cls.sources}
    for name in sources:
        if name not in known:
            raise unknown(f"data of {', '.join(specs)}", name, known)
    pinnable = {dataset.name for _, cls in found for dataset in cls.datasets}
    for name, source in sources.items():
        if isinstance(source, Revision) and name not in pinnable:
            raise unknown(f"dataset with revisions of {', '.join(specs)}", name, pinnable)
    tasks = []
    for spec, (entry, cls) in zip(specs, found, strict=True):
        title, _, subset = spec.partition(":")
        variant = title.removeprefix(entry).removeprefix("-") or None
        tasks.append(
            cls.create(variant, subset or None, {name: sources[name] for name in cls.sources if name in sources})
        )
    return tasks


def task_class(title: str) -> tuple[str, type[Task]]:
    """Return the entry point, by name, and the class that `name[-variant]` means.

    Raises:
        UsageError: No such task, its package fails to import, or what it registers is no task.
    """
    matches = [name for name in registered(TASKS) if title == name or title.startswith(f"{name}-")]
    if not matches:
        raise unknown("task", title, task_spellings())
    entry = max(matches, key=len)
    loaded = _load(TASKS, "task", entry)
    from kvbench.task import Task

    found: type[Task] = _implemented(loaded, Task, "task", registered(TASKS)[entry])
    return entry, found


def task_spellings() -> list[str]:
    """Return every name under which a task can be asked for; of a plug-in that does not import, its own name."""
    names: list[str] = []
    for name in registered(TASKS):
        try:
            names.extend(task_class(name)[1].spellings())
        except UsageError:
            names.append(name)
    return names


def _load(group: str, kind: str, name: str) -> Any:
    entries = registered(group)
    if name not in entries:
        raise unknown(kind, name, entries)
    try:
        return entries[name].load()
    except Exception as error:  # a plug-in may fail with anything
        raise UsageError(
            f"{kind} '{name}' of {origin_of(entries[name])} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _implemented(loaded: Any, base: type, kind: str, entry: EntryPoint) -> Any:
    """Return what an entry point stands for, if it is a whole class of its kind."""
    where = f"{kind} '{entry.name}' of {origin_of(entry)} ({entry.value})"
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise UsageError(f"{where} is no {kind}: expected a class derived from {base.__module__}.{base.__name__}")
    if missing := sorted(getattr(loaded, "__abstractmethods__", ())):
        raise UsageError(f"{where} is unfinished: it lacks {', '.join(missing)}")
    return loaded


def _validated(cls: type[Press], name: str, parameters: dict[str, str]) -> Press:
    from pydantic import ValidationError

    try:
        return cls.model_validate(parameters)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else "parameters"
        why = first["msg"].removeprefix("Value error, ").lower()
        raise UsageError(f"press {name}: {field}={first['input']!r} is not allowed: {why}") from None


def origin_of(entry: EntryPoint) -> str:
    """Return the package that an entry point comes from, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown package"


def _summary(entry: EntryPoint) -> str:
    """Return the first docstring line of the class behind an entry point, or why it cannot be imported.

    Both are read from its source: its own imports are looked for, but not made.
    """
    try:
        spec = find_spec(entry.module)
        if spec is None:
            return f"cannot be imported: there is no module {entry.module}"
        tree = ast.parse(Path(spec.origin).read_text() if spec.origin else "")
    except Exception as error:  # the plug-in's own package may fail on import
        return f"cannot be imported: {type(error).__name__}: {error}"
    for node in tree.body:
        for needed in _imported(node):
            if find_spec(needed) is None:
                return f"cannot be imported: there is no module {needed}"
        if isinstance(node, ast.ClassDef) and node.name == entry.attr:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


def _imported(node: ast.stmt) -> list[str]:
    """Return the top-level packages that an import statement needs."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []
