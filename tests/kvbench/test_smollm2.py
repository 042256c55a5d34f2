"""The real model: SmolLM2-135M-Instruct in float32."""

import subprocess
import sys

import pytest
from transformers import PreTrainedTokenizerBase

from kvbench.after_prefill import run_prompt
from kvbench.chunked import run_prompt_in_chunks
from kvbench.models import Model
from kvbench.prompts import Prompt, prompts_of
from kvbench.ranking import Protect
from kvbench.registry import make_press, make_task
from kvbench.task import Sample
from kvbench.variants import Job, Variant

pytestmark = pytest.mark.real_model

PROTECTED = Protect(4, 16)


def needle(tokenizer: PreTrainedTokenizerBase, task: str, index: int = 0) -> tuple[Sample, Prompt]:
    sample = make_task(f"{task}:niah_single_1").samples(tokenizer, index + 1, 42)[index]
    [prompt] = prompts_of(tokenizer, sample, "inside")
    return sample, prompt


def test_the_batch_answers_what_each_variant_answers_alone(smollm2: Model) -> None:
    sample, prompt = needle(smollm2.tokenizer, "ruler-1k")
    questions = [sample.questions[0].model_copy(update={"max_new_tokens": 24})]
    ready = {name: make_press(name) for name in ("snapkv", "keydiff", "h2o", "lagkv", "tova", "random", "oracle")}
    n = len(prompt.context)
    variants = [Variant(None, n), *(Variant(label, budget) for label in ready for budget in (32, 128, 512))]
    together = run_prompt(smollm2, Job(prompt, questions, ready, variants, PROTECTED, seed=1))
    assert together.failures == {}
    for variant in variants[::2]:
        alone = run_prompt(smollm2, Job(prompt, questions, ready, [variant], PROTECTED, seed=1))
        assert together.answers[variant] == alone.answers[variant], variant


@pytest.mark.parametrize("index", [0, 1])
def test_the_full_cache_finds_a_needle_at_4k_and_keydiff_at_a_budget_of_1024(smollm2: Model, index: int) -> None:
    sample, prompt = needle(smollm2.tokenizer, "ruler-4k", index)
    [question] = sample.questions
    variants = [Variant(None, len(prompt.context)), Variant("keydiff", 1024)]
    outcome = run_prompt(smollm2, Job(prompt, [question], {"keydiff": make_press("keydiff")}, variants, PROTECTED, 1))
    assert len(prompt.context) > 3900
    for variant in variants:
        assert question.targets[0] in outcome.answers[variant][0].text, variant


def test_at_a_budget_of_one_token_the_needle_is_lost(smollm2: Model) -> None:
    sample, prompt = needle(smollm2.tokenizer, "ruler-1k")
    [question] = sample.questions
    names = ("keydiff", "tova", "snapkv", "oracle", "streaming_llm")
    variants = [Variant(None, len(prompt.context)), *(Variant(name, 1) for name in names)]
    ready = {name: make_press(name) for name in names}
    outcome = run_prompt(smollm2, Job(prompt, [question], ready, variants, Protect(0, 0), seed=1))
    full, *compressed = (question.targets[0] in outcome.answers[variant][0].text for variant in variants)
    assert full
    assert not any(compressed)


def test_chunks_find_the_needle_too(smollm2: Model) -> None:
    sample, prompt = needle(smollm2.tokenizer, "ruler-1k")
    [question] = sample.questions
    variant = Variant("keydiff", 512)
    ready = {"keydiff": make_press("keydiff")}
    outcome = run_prompt_in_chunks(smollm2, Job(prompt, [question], ready, [variant], PROTECTED, 1), chunk=256)
    assert question.targets[0] in outcome.answers[variant][0].text
    assert outcome.peaks[variant] == 512 + 256


MEASURE = """
import sys
from resource import RUSAGE_SELF, getrusage
import torch
from kvbench.chunked import run_prompt_in_chunks
from kvbench.models import find
from kvbench.prompts import Prompt
from kvbench.ranking import Protect
from kvbench.registry import make_press
from kvbench.task import Question
from kvbench.variants import Job, Variant

n = int(sys.argv[1])
model = find("smollm2-135m").load("float32", "cpu", "sdpa")
before = getrusage(RUSAGE_SELF).ru_maxrss
prompt = Prompt(torch.randint(3, 40000, (n,)), (torch.tensor([5]),), (0,), ((),))
question = Question(text="", targets=(), max_new_tokens=2)
variant = Variant("keydiff", 512)
ready = {"keydiff": make_press("keydiff")}
run_prompt_in_chunks(model, Job(prompt, [question], ready, [variant], Protect(4, 16), 0), chunk=1024)
print((getrusage(RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_the_memory_of_chunked_prefill_does_not_grow_with_the_context() -> None:
    def growth(n: int) -> int:
        done = subprocess.run([sys.executable, "-c", MEASURE, str(n)], capture_output=True, text=True, check=True)
        return int(done.stdout)

    short, long = growth(2048), growth(8192)
    full_cache = (8192 - 2048) * 2 * 30 * 3 * 64 * 4
    assert long - short < full_cache / 4
