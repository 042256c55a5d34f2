"""Presses and tasks by name, found through entry points and imported only when one is asked for.

A press is asked for as `name` or `name:field=value,field=value`, a task as `name[-variant][:subset]`.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError, unknown
from kvbench.sources import Sources

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
                f"two packages register '{entry.name}' in {group}: {_origin(twin)} ({twin.value}) and "
                f"{_origin(entry)} ({entry.value}); uninstall one of them"
            )
    return dict(sorted(found.items()))


def listings(group: str) -> list[Listing]:
    """Return name, one-line summary and origin of all that a group registers, importing none of it."""
    return [Listing(name, _summary(entry), _origin(entry)) for name, entry in registered(group).items()]


def press_class(name: str) -> type[Press]:
    """Return the class of the press called `name`.

    Raises:
        UsageError: No such press, or its package fails to import.
    """
    loaded: type[Press] = _load(PRESSES, "press", name)
    return loaded


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
        sources: Local copies of their data, for whichever of them reads data of that name.

    Raises:
        UsageError: No such task, variant or subset, its package fails to import, or data that no task reads.
    """
    sources = sources or {}
    found = [_task_class(spec.partition(":")[0]) for spec in specs]
    known = {name for _, cls in found for name in cls.sources}
    for name in sources:
        if name not in known:
            raise unknown(f"data of {', '.join(specs)}", name, known)
    tasks = []
    for spec, (entry, cls) in zip(specs, found, strict=True):
        title, _, subset = spec.partition(":")
        variant = title.removeprefix(entry).removeprefix("-") or None
        tasks.append(
            cls.create(variant, subset or None, {name: sources[name] for name in cls.sources if name in sources})
        )
    return tasks


def _task_class(title: str) -> tuple[str, type[Task]]:
    """Return the entry point, by name, and the class that `name[-variant]` means."""
    matches = [name for name in registered(TASKS) if title == name or title.startswith(f"{name}-")]
    if not matches:
        raise unknown("task", title, task_spellings())
    entry = max(matches, key=len)
    cls: type[Task] = _load(TASKS, "task", entry)
    return entry, cls


def task_spellings() -> list[str]:
    """Return every name under which a task can be asked for; a plug-in that does not import is left out."""
    names: list[str] = []
    for name in registered(TASKS):
        try:
            names.extend(_load(TASKS, "task", name).spellings())
        except UsageError as error:
            warnings.warn(str(error), stacklevel=2)
    return names


def _load(group: str, kind: str, name: str) -> Any:
    entries = registered(group)
    if name not in entries:
        raise unknown(kind, name, entries)
    try:
        return entries[name].load()
    except Exception as error:  # a plug-in may fail with anything
        raise UsageError(
            f"{kind} '{name}' of {_origin(entries[name])} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _validated(cls: type[Press], name: str, parameters: dict[str, str]) -> Press:
    from pydantic import ValidationError

    try:
        return cls.model_validate(parameters)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else "parameters"
        why = first["msg"].removeprefix("Value error, ").lower()
        raise UsageError(f"press {name}: {field}={first['input']!r} is not allowed: {why}") from None


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown package"


def _summary(entry: EntryPoint) -> str:
    """Return the first docstring line of the class behind an entry point, read from its source."""
    try:
        spec = find_spec(entry.module)
        source = Path(spec.origin).read_text() if spec and spec.origin else ""
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and node.name == entry.attr:
                return (ast.get_docstring(node) or "").partition("\n")[0]
    except Exception as error:  # the plug-in's own package may fail on import
        return f"cannot be imported: {type(error).__name__}: {error}"
    return ""
