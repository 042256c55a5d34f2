"""The log-likelihood tasks on the real model and real data: what is whole agrees, what is evicted is missed."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from command_line import kvbench
from kvbench.models import ModelSource
from kvbench.registry import make_task

pytestmark = pytest.mark.real_model


def run(tmp_path: Path, task: str, data: str, presses: str, budgets: str, limit: int) -> list[dict[str, object]]:
    """Run a sweep in float32 with nothing protected; return its records."""
    done = kvbench(
        *("run", "--task", task, "--data", data, "--press", presses, "--budgets", budgets, "--limit", str(limit)),
        *("--protect", "0,0", "--dtype", "float32", "--results", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    [file] = tmp_path.glob("records/*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_perplexity_is_a_plain_forward_pass_s_and_rises_as_entries_are_evicted(
    tmp_path: Path, shared: Path, smollm2_source: ModelSource
) -> None:
    trees = shared / "data" / "oasst1" / "en_100_trees.jsonl"
    records = run(tmp_path, "oasst2-500", f"oasst2={trees}", "snapkv,random", "2,100%", limit=1)
    scores = {(record["sample"], record["press"], record["budget"]): record["score"] for record in records}
    network = AutoModelForCausalLM.from_pretrained(smollm2_source.folder, dtype=torch.float32)
    tokenizer = smollm2_source.tokenizer
    for sample in make_task("oasst2-500", {"oasst2": trees}).samples(tokenizer, 1, 42):
        [question] = sample.questions
        prompt = sample.context + question.text
        start = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        tokens = tokenizer(prompt + question.continuations[0], add_special_tokens=False, return_tensors="pt")[
            "input_ids"
        ]
        with torch.inference_mode():
            weighed = network(tokens).logits[0, start - 1 : -1].log_softmax(-1)
        expected = -float(weighed.gather(1, tokens[0, start:, None]).mean())
        assert scores[sample.id, "full", "full"] == pytest.approx(expected, rel=1e-4)
        for press in ("snapkv", "random"):
            assert scores[sample.id, press, "100%"] == scores[sample.id, "full", "full"]
            assert scores[sample.id, press, "2"] > expected


def test_choices_do_not_move_with_the_passage_once_it_is_evicted(tmp_path: Path, shared: Path) -> None:
    rows = shared / "data" / "boolq" / "validation.jsonl"
    records = run(tmp_path, "boolq", f"boolq={rows}", "snapkv,k_norm", "1,100%", limit=4)
    by_cell = {(record["sample"], record["press"], record["budget"]): record for record in records}
    samples = sorted({str(record["sample"]) for record in records})
    assert len(samples) == 4
    for sample in samples:
        full = by_cell[sample, "full", "full"]
        for press in ("snapkv", "k_norm"):
            assert by_cell[sample, press, "100%"]["log_likelihoods"] == full["log_likelihoods"]
            assert by_cell[sample, press, "1"]["log_likelihoods"] != pytest.approx(full["log_likelihoods"], rel=1e-2)
