"""`kvbench info`: what a press or a task is."""

from __future__ import annotations

import inspect
import json
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvbench.errors import unknown
from kvbench.registry import PRESSES, TASKS, make_task, origin_of, press_class, registered, task_class, task_spellings


def info_command(name: str, as_json: bool, out: Console) -> None:
    """Print what is known of the press or task called `name`.

    Raises:
        UsageError: There is neither.
    """
    facts = describe(name)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    out.print(f"[bold]{facts['name']}[/] ({facts['kind']}, from {facts['from']})", highlight=False)
    for paragraph in facts["description"].split("\n\n"):
        out.print(escape(" ".join(paragraph.split())), highlight=False)
    for key in ("paper", "reads", "metric", "question", "spellings"):
        if key in facts:
            value = facts[key]
            shown = ", ".join(value) if isinstance(value, list) else value
            out.print(f"[bold]{key}:[/] {escape(shown)}", highlight=False)
    if facts.get("parameters"):
        table = Table(box=None, pad_edge=False)
        for column in ("parameter", "default", "allowed", "meaning"):
            table.add_column(column)
        for parameter in facts["parameters"]:
            table.add_row(*(escape(str(parameter[column])) for column in ("name", "default", "allowed", "meaning")))
        out.print(table)


def describe(name: str) -> dict[str, Any]:
    """Return what is known of a press or task as plain data.

    Raises:
        UsageError: There is neither a press nor a task of that name.
    """
    if name.partition(":")[0] in registered(PRESSES):
        return _describe_press(name.partition(":")[0])
    if any(name == task or name.startswith(f"{task}-") for task in registered(TASKS)):
        return _describe_task(name)
    raise unknown("press or task", name, [*registered(PRESSES), *task_spellings()])


def _describe_press(name: str) -> dict[str, Any]:
    press = press_class(name)
    schema = press.model_json_schema()["properties"] if press.model_fields else {}
    return {
        "name": name,
        "kind": "press",
        "from": origin_of(registered(PRESSES)[name]),
        "description": inspect.getdoc(press) or "",
        "paper": press.paper,
        "reads": sorted(press.reads) or ["nothing but the number of tokens"],
        "parameters": [
            {
                "name": field,
                "default": facts.get("default"),
                "allowed": _allowed(facts),
                "meaning": facts.get("description", ""),
            }
            for field, facts in schema.items()
        ],
    }


def _describe_task(name: str) -> dict[str, Any]:
    entry, cls = task_class(name)
    if name != entry:
        make_task(name)  # refuses a variant that does not exist
    return {
        "name": name,
        "kind": "task",
        "from": origin_of(registered(TASKS)[entry]),
        "description": inspect.getdoc(cls) or "",
        "metric": cls.metric,
        "question": cls.question,
        "spellings": list(cls.spellings()),
    }


def _allowed(schema: dict[str, Any]) -> str:
    """Say in words what a field's JSON schema allows."""
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(_allowed(option) for option in schema["anyOf"])
    words = [schema.get("type", "any")]
    for key, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
        if key in schema:
            words.append(f"{sign} {schema[key]:g}")
    return " ".join(words)
