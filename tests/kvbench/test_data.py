"""`kvbench data show`: samples exactly as the model gets them."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from transformers import PreTrainedTokenizerBase

from command_line import Done, kvbench
from kvbench.prompts import prompts_of
from kvbench.registry import make_task

TASK = "ruler-2k-prose"


@pytest.fixture(autouse=True)
def _no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def show(*arguments: str) -> Done:
    done = kvbench("data", "show", *arguments)
    assert done.returncode == 0, done.stderr
    return done


def show_json(*arguments: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(show(*arguments, "--json").stdout)
    return shown


@pytest.mark.parametrize("placement", ["inside", "after"])
def test_json_holds_what_the_model_gets_token_by_token(
    smollm2_tokenizer: PreTrainedTokenizerBase, placement: str
) -> None:
    shown = show_json(f"{TASK}:niah_single_2+cwe", "--limit", "2", "--question", placement, "--seed", "3")
    task = make_task(f"{TASK}:niah_single_2+cwe")
    assert (shown["task"], shown["question"]) == (task.name, placement)
    assert shown["data"] == {name: task.data_of(name) for name in ("niah_single_2", "cwe")}
    samples = task.samples(smollm2_tokenizer, 2, 3)
    assert [facts["id"] for facts in shown["samples"]] == [sample.id for sample in samples]
    for facts, sample in zip(shown["samples"], samples, strict=True):
        [question] = sample.questions
        assert facts["context"] == sample.context
        assert facts["questions"] == [question.model_dump(mode="json")]
        [prompt] = prompts_of(smollm2_tokenizer, sample, "inside" if placement == "inside" else "after")
        [given] = facts["prompts"]
        [fed] = given["fed"]
        assert (given["context_tokens"], fed["tokens"]) == (len(prompt.context), len(prompt.fed[0]))
        tokens = smollm2_tokenizer(given["compressed"] + fed["text"], add_special_tokens=False)["input_ids"]
        assert tokens == [*prompt.context.tolist(), *prompt.fed[0].tolist()]
        assert given["compressed"].startswith("<|im_start|>system")
        assert sample.context in given["compressed"]
        assert given["compressed"].endswith(sample.context) == (placement == "after")


def test_it_fits_80_columns_with_the_middle_of_the_context_left_out() -> None:
    shown = show(f"{TASK}:vt", "--question", "after")
    assert max(map(len, shown.stdout.splitlines())) <= 80
    facts = show_json(f"{TASK}:vt", "--question", "after")["samples"][0]
    left_out = len(facts["prompts"][0]["compressed"]) - 800
    assert f"[… {left_out:,} characters left out …]" in shown.stdout
    for part in (
        "vt/0",
        f"[compressed, {facts['prompts'][0]['context_tokens']:,} tokens]",
        f"[fed after compression, {facts['prompts'][0]['fed'][0]['tokens']} tokens]",
        "[question]",
        "[answer prefix]",
        "[targets, at most 30 new tokens]",
        *facts["questions"][0]["targets"],
    ):
        assert part in shown.stdout


def test_the_whole_context_is_shown_on_request() -> None:
    facts = show_json(f"{TASK}:fwe")["samples"][0]
    whole = show(f"{TASK}:fwe", "--full").stdout
    assert "left out" not in whole
    assert "".join(facts["context"].split()) in "".join(whole.split())


def test_what_stands_in_and_what_is_missing_is_noted_beside_the_samples() -> None:
    done = show("ruler-2k")
    assert "note: RULER's essays are not here" in done.stderr
    assert all(f"ruler-2k-prose goes without {name}" in done.stderr for name in ("qa_1", "qa_2"))
    assert "note:" not in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines() if "/0 ─" in line] == [
        f"{name}/0" for name in make_task(TASK).subtasks[:-2]
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ruler-2k", "--question", "befor"], "unknown question placement 'befor'"),
        (["ruler-2k:vtt"], "did you mean 'vt'"),
        (["rular-2k"], "unknown task"),
    ],
)
def test_a_wrong_name_is_refused(arguments: list[str], message: str) -> None:
    done = kvbench("data", "show", *arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_fetch_says_where_data_is_that_was_given_and_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "validation.jsonl"
    file.write_text('{"question": "is it", "passage": "It is.", "answer": true}\n')
    done = kvbench("data", "fetch", "boolq", "--data", f"boolq={tmp_path}", "--json")
    [found] = json.loads(done.stdout)
    assert (found["name"], found["files"]) == ("boolq", [str(file)])
    done = kvbench("data", "fetch", "ruler-4k:vt")
    assert (done.returncode, done.stdout) == (0, "ruler-4k:vt: the hub has no data of it\n")
    done = kvbench("data", "fetch", "longbench:trec+lsht")
    assert done.returncode == 2
    assert "LongBench's trec is neither on this machine nor" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["boolq", "--revision", "essays=main"], "unknown data of boolq 'essays'"),
        (["ruler-4k:niah_single_2", "--revision", "essays=main"], "unknown dataset with revisions of"),
        (["boolq", "--revision", "boolq"], "write it as NAME=REVISION"),
        (["boolq", "--revision", "boolq=v1"], "--revision boolq=v1: neither the hub's google/boolq nor its cache has"),
        (["boolq", "--revision", "boolq=v1", "--data", "boolq=."], "a local copy has no revision"),
    ],
)
def test_a_wrong_revision_is_refused(arguments: list[str], message: str) -> None:
    for command in ("show", "fetch"):
        done = kvbench("data", command, *arguments)
        assert done.returncode == 2
        assert message in done.stderr.splitlines()[-1]


def test_prompts_are_shown_as_short_as_the_model_takes_them(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"context": "word " * 9000, "input": "", "answers": ["a"]}) + "\n")
    [facts] = show_json("longbench:lcc", "--data", f"longbench={file}")["samples"]
    assert facts["truncated_tokens"] > 1000
    assert facts["prompts"][0]["context_tokens"] < 7510
