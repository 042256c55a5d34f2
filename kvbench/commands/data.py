"""`kvbench data`: a task's samples as the model gets them, and the data they are made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from kvbench.errors import unknown
from kvbench.registry import make_tasks
from kvbench.sources import need, parse_sources
from kvbench.task import QuestionPlacement, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kvbench.prompts import Prompt
    from kvbench.task import Sample

_PLAIN: dict[str, Any] = {"highlight": False, "soft_wrap": True, "markup": False}
_SHOWN = 400
"""Characters shown of either end of a long context."""


@dataclass(frozen=True)
class ShowRequest:
    """`kvbench data show` as it was typed."""

    task: str
    model: str
    data: Sequence[str]
    revisions: Sequence[str]
    limit: int
    question: str | None
    seed: int


def tasks_with_data(
    specs: Sequence[str], data: Sequence[str], err: Console, revisions: Sequence[str] = ()
) -> list[Task]:
    """Make tasks from their names, the data given and the hub's revisions, and print what they have to remark on it.

    Raises:
        UsageError: No such task or data, or a subtask asked for by name cannot be had without data.
    """
    tasks = make_tasks(specs, parse_sources(data, revisions))
    _print_remarks(tasks, err)
    return tasks


def _print_remarks(tasks: Sequence[Task], err: Console) -> None:
    for remark in dict.fromkeys(remark for task in tasks for remark in task.remarks()):
        err.print(f"note: {escape(remark)}", highlight=False, soft_wrap=True)


def fetch_command(
    specs: Sequence[str], data: Sequence[str], revisions: Sequence[str], as_json: bool, out: Console, err: Console
) -> None:
    """Get all that tasks need of the hub into its cache, and say where it is.

    Raises:
        UsageError: A name is wrong, or the hub has not got the data, or does not answer.
    """
    sources = parse_sources(data, revisions)
    tasks = make_tasks(specs, sources)
    fetched = []
    for dataset in dict.fromkeys(dataset for task in tasks for dataset in task.needed()):
        files = need(dataset, sources.get(dataset.name))
        if todo := files.to_download():
            size = f", {sum(todo) / 1e6:.1f} MB" if any(todo) else ""
            err.print(f"fetching {dataset.title} from {files.origin}: {len(todo)} files{size}", **_PLAIN)
        fetched.append((dataset, files, [str(path) for path in files.paths()]))
    if as_json:
        found = [{"name": d.name, "title": d.title, "origin": f.origin, "files": paths} for d, f, paths in fetched]
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        for dataset, files, paths in fetched:
            out.print(f"{dataset.title} ({dataset.name}), {files.origin}:", **_PLAIN)
            for path in paths:
                out.print(f"  {path}", **_PLAIN)
        if not fetched:
            out.print(f"{', '.join(specs)}: the hub has no data of it", **_PLAIN)
    _print_remarks(tasks, err)


def show_command(request: ShowRequest, full: bool, as_json: bool, out: Console, err: Console) -> None:
    """Print the first samples of a task.

    Raises:
        UsageError: A name or value is wrong.
    """
    placements = get_args(QuestionPlacement)
    if request.question is not None and request.question not in placements:
        raise unknown("question placement", request.question, placements)
    [task] = tasks_with_data([request.task], request.data, err, request.revisions)

    from kvbench.models import find, quieten_transformers
    from kvbench.prompts import prompts_of

    quieten_transformers()
    source = find(request.model, weights=False)
    tokenizer = source.tokenizer
    task = task.for_model(source.facts)
    placement: QuestionPlacement = task.question
    if request.question is not None:
        placement = "inside" if request.question == "inside" else "after"
    samples = [
        _facts(sample, prompts_of(tokenizer, sample, placement), tokenizer)
        for sample in task.samples(tokenizer, request.limit, request.seed)
    ]
    data = {facts["subtask"]: task.data_of(facts["subtask"]) for facts in samples}
    if as_json:
        shown = {"task": task.name, "data": data, "model": request.model, "question": placement}
        typer.echo(json.dumps({**shown, "seed": request.seed, "samples": samples}, indent=2, ensure_ascii=False))
        return
    out.print(Text(f"{task.name}, question {placement}, seed {request.seed}, tokens of {request.model}"))
    for subtask, origin in data.items():
        out.print(Text(f"data of {subtask}: {origin}", style="dim"))
    for facts in samples:
        _print(facts, full, out)


def _facts(sample: Sample, prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return a sample and its prompts as plain data; a prompt's texts are its tokens, decoded."""

    def text(tokens: Any) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return {
        **sample.model_dump(mode="json"),
        "prompts": [
            {
                "compressed": text(prompt.context),
                "context_tokens": len(prompt.context),
                "fed": [
                    {"question": question, "text": text(fed), "tokens": len(fed)}
                    for question, fed in zip(prompt.questions, prompt.fed, strict=True)
                ],
            }
            for prompt in prompts
        ],
    }


def _print(facts: dict[str, Any], full: bool, out: Console) -> None:
    source = "" if facts["source"] == facts["id"] else f", from {facts['source']}"
    out.print()
    out.rule(Text(f"{facts['id']}{source}", style="bold"), align="left")
    for prompt in facts["prompts"]:
        _section(f"compressed, {prompt['context_tokens']:,} tokens", prompt["compressed"], full, out)
        for fed in prompt["fed"]:
            question = facts["questions"][fed["question"]]
            _section(f"fed after compression, {fed['tokens']:,} tokens", fed["text"], full, out)
            _section("question", question["text"], full, out)
            _section("answer prefix", question["answer_prefix"], full, out)
            _section(f"targets, at most {question['max_new_tokens']} new tokens", "", full, out)
            for target in question["targets"]:
                out.print(Text(target))


def _section(title: str, text: str, full: bool, out: Console) -> None:
    out.print(Text(f"[{title}]", style="cyan"))
    if text:
        out.print(Text(text if full else _shortened(text)))


def _shortened(text: str) -> str:
    """Replace the middle of a long text by the number of characters that are left out."""
    left_out = len(text) - 2 * _SHOWN
    if left_out <= 0:
        return text
    return f"{text[:_SHOWN]}\n[… {left_out:,} characters left out …]\n{text[-_SHOWN:]}"
