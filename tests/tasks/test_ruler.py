"""RULER as a task: the official generator's bytes, fitted to any length."""

import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from kvbench.errors import UsageError
from kvbench.registry import make_task
from kvbench.task import Sample

NEW_TOKENS = {
    "niah_single_1": 128,
    "niah_single_2": 128,
    "niah_single_3": 128,
    "niah_multikey_1": 128,
    "niah_multikey_2": 128,
    "niah_multikey_3": 128,
    "niah_multivalue": 128,
    "niah_multiquery": 128,
    "vt": 30,
    "cwe": 120,
    "fwe": 50,
    "qa_1": 32,
    "qa_2": 32,
}
SUBTASKS = list(NEW_TOKENS)
WITHOUT_DATA = SUBTASKS[:-2]


def samples(
    spec: str,
    tokenizer: PreTrainedTokenizerBase,
    limit: int = 2,
    seed: int = 42,
    sources: Mapping[str, Path] | None = None,
) -> list[Sample]:
    return list(make_task(spec, sources).samples(tokenizer, limit, seed))


def whole_prompt(sample: Sample) -> str:
    (question,) = sample.questions
    return sample.context + question.text + question.answer_prefix


@pytest.mark.parametrize(("folder", "length", "seed"), [("4096_seed42", 4096, 42), ("2048_seed7", 2048, 7)])
def test_writes_the_bytes_of_the_official_generator(
    shared: Path,
    official: Mapping[str, Path],
    smollm2_tokenizer: PreTrainedTokenizerBase,
    folder: str,
    length: int,
    seed: int,
) -> None:
    files = shared / "fixtures" / f"ruler_official_{folder}"
    rows = {
        name: [json.loads(line) for line in (files / name / "validation.jsonl").read_text("utf-8").splitlines()]
        for name in SUBTASKS
    }
    limit = len(rows["vt"])
    expected = [
        (name, row["input"], row["outputs"], row["answer_prefix"])
        for number in range(limit)
        for name, row in ((name, rows[name][number]) for name in SUBTASKS)
    ]
    assert len(expected) in (52, 26)

    task = make_task(f"ruler-{length}", official)
    drawn = task.samples(smollm2_tokenizer, limit, seed)

    assert task.name == f"ruler-{length // 1024}k"
    assert task.remarks() == []
    assert [
        (sample.subtask, sample.context + question.text, list(question.targets), question.answer_prefix)
        for sample in drawn
        for question in sample.questions
    ] == expected


@pytest.mark.parametrize(("length", "seed"), [(1200, 0), (2047, 1), (4095, 2), (4096, 3), (7001, 4)])
def test_prompt_and_answer_fill_the_length_and_never_exceed_it(
    smollm2_tokenizer: PreTrainedTokenizerBase, length: int, seed: int
) -> None:
    drawn = samples(f"ruler-{length}", smollm2_tokenizer, limit=3, seed=seed)

    assert len(drawn) == 3 * len(WITHOUT_DATA)
    for sample in drawn:
        assert sample.questions[0].max_new_tokens == NEW_TOKENS[sample.subtask]
        used = len(smollm2_tokenizer.tokenize(whole_prompt(sample))) + NEW_TOKENS[sample.subtask]
        assert length / 2 < used <= length, sample.id


def test_the_samples_of_a_smaller_limit_come_first(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    few = samples("ruler-1k", smollm2_tokenizer, limit=2)
    many = samples("ruler-1k", smollm2_tokenizer, limit=5)
    assert many[: len(few)] == few
    assert [sample.id for sample in few] == [f"{name}/{i}" for i in range(2) for name in WITHOUT_DATA]


def test_a_subtask_draws_the_same_whatever_runs_beside_it(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    everything = samples("ruler-1k", smollm2_tokenizer)
    alone = samples("ruler-1k:cwe+vt", smollm2_tokenizer)
    assert alone == [sample for sample in everything if sample.subtask in ("vt", "cwe")]


def test_every_sample_is_its_own_source_and_asks_one_question(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    for sample in samples("ruler-1k", smollm2_tokenizer):
        assert sample.source == sample.id
        (question,) = sample.questions
        assert question.text.startswith("\n")
        assert not question.stop
        assert question.text not in sample.context.rpartition("\n")[2]


def test_the_seed_decides_the_samples(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    first, again, other = (samples("ruler-1k", smollm2_tokenizer, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert all(a.context != b.context for a, b in zip(first, other, strict=True))


def test_the_default_is_500_samples(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    drawn = make_task("ruler-512:niah_single_1").samples(smollm2_tokenizer, None, 42)
    assert len({whole_prompt(sample) for sample in drawn}) == 500


def test_leaves_the_global_random_state_alone(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    random.seed(3)
    np.random.seed(3)
    samples("ruler-1k", smollm2_tokenizer)
    after = random.random(), np.random.random()

    random.seed(3)
    np.random.seed(3)
    assert after == (random.random(), np.random.random())


def test_a_needle_in_the_haystack_holds_the_answer(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    for sample in samples("ruler-2k:niah_single_1+niah_multikey_2+niah_multikey_3", smollm2_tokenizer, limit=3):
        (question,) = sample.questions
        needles = dict(re.findall(r"One of the special magic \w+ for (.+) is: (.+)\.", sample.context))
        asked = re.search(r"for (.+) mentioned", question.text)
        assert asked is not None
        assert question.targets == (needles[asked[1]],)
        assert (len(needles) == 1) == (sample.subtask == "niah_single_1")


def test_the_chain_of_assignments_leads_to_the_targets(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    for sample in samples("ruler-2k:vt", smollm2_tokenizer, limit=5):
        (question,) = sample.questions
        values: dict[str, str] = {}
        for variable, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", sample.context):
            values[variable] = values.get(value, value)
        asked = re.search(r"value (\d+)", question.text)
        assert asked is not None
        assert question.targets == tuple(variable for variable, value in values.items() if value == asked[1])
        assert len(values) == 10, "five variables of the example, five of the question"


@pytest.mark.parametrize(("spec", "common", "other"), [("ruler-4k:cwe", 30, 3), ("ruler-4095:cwe", 6, 1)])
def test_ten_words_of_the_list_are_more_common(
    smollm2_tokenizer: PreTrainedTokenizerBase, spec: str, common: int, other: int
) -> None:
    for sample in samples(spec, smollm2_tokenizer):
        numbered = sample.context.rpartition("\n")[2]
        times = Counter(re.findall(r"\d+\. (.+?)(?= \d+\. |$)", numbered))
        targets = sample.questions[0].targets
        assert {times.pop(word) for word in targets} == {common}
        assert set(times.values()) == {other}


def test_three_coded_words_are_the_most_frequent(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    for sample in samples("ruler-2k:fwe", smollm2_tokenizer, limit=5):
        coded = Counter(sample.context.partition("coded words. ")[2].split())
        (dots, _), *asked, (_, next_frequency) = coded.most_common(5)
        assert dots == "..."
        assert sample.questions[0].targets == tuple(word for word, _ in asked)
        assert asked[-1][1] > next_frequency


def test_a_length_that_is_too_short_is_refused_with_one_that_fits(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(UsageError, match="ruler-300 is too short") as refusal:
        samples("ruler-300", smollm2_tokenizer)
    needed = {name: int(tokens) for name, tokens in re.findall(r"(\w+) needs (\d+) tokens", str(refusal.value))}
    assert "fwe" not in needed, "fwe fits into 300 tokens"
    assert str(refusal.value).endswith(f"the shortest length that fits is ruler-{max(needed.values())}")
    for name, tokens in needed.items():
        assert len(samples(f"ruler-{tokens}:{name}", smollm2_tokenizer, limit=10)) == 10
    with pytest.raises(UsageError, match="too short"):
        samples(f"ruler-{max(needed.values()) * 9 // 10}", smollm2_tokenizer)


@pytest.mark.parametrize("length", [1, 31, 60, 240])
def test_a_hopeless_length_is_refused_and_not_tried_for_ever(
    smollm2_tokenizer: PreTrainedTokenizerBase, length: int
) -> None:
    with pytest.raises(UsageError, match=f"ruler-{length} is too short") as refusal:
        samples(f"ruler-{length}", smollm2_tokenizer)
    assert re.findall(r"(\w+) needs", str(refusal.value)) == WITHOUT_DATA


def test_cwe_says_that_its_words_do_not_suffice(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(UsageError, match=r"cwe cannot be drawn for 262144 tokens.* 8166"):
        samples("ruler-256k:cwe", smollm2_tokenizer)


@pytest.mark.parametrize(
    ("spec", "name", "length"),
    [
        ("ruler-4k-prose", "ruler-4k-prose", 4096),
        ("ruler-4096-prose:vt", "ruler-4k-prose", 4096),
        ("ruler-128K-prose:vt", "ruler-128k-prose", 131072),
        ("ruler-2000-prose", "ruler-2000-prose", 2000),
    ],
)
def test_a_length_has_one_name(spec: str, name: str, length: int) -> None:
    task = make_task(spec)
    assert task.name == name
    assert task.length == length


def test_its_spellings_can_be_asked_for(official: Mapping[str, Path]) -> None:
    spellings = make_task("ruler-4k").spellings()
    assert "ruler-4k" in spellings
    assert [make_task(spelling, official).name for spelling in spellings] == list(spellings)


@pytest.mark.parametrize("length", ["0", "0k", "-1", "4kk", "4.5k", "abc", "k", "04k", "4k-pros"])
def test_what_is_no_length_is_refused(length: str) -> None:
    with pytest.raises(UsageError, match=f"'{re.escape(length)}' is no length, write ruler-4k"):
        make_task(f"ruler-{length}")


def test_no_length_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a length"):
        make_task("ruler")


def test_an_unknown_subtask_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="'niah_multivalues': did you mean 'niah_multivalue'"):
        make_task("ruler-4k:vt+niah_multivalues")


def test_all_thirteen_are_its_subtasks_whichever_are_asked_for(official: Mapping[str, Path]) -> None:
    for spec in ("ruler-4k", "ruler-4k:vt", "ruler-4k:qa_1+vt"):
        assert list(make_task(spec, official).subtasks) == SUBTASKS


def test_the_word_lists_are_those_the_results_were_made_with() -> None:
    assert make_task("ruler-4k").data_of("vt") == "wonderwords edea9ae744bc0d55"


def test_a_subtasks_data_is_what_it_is_drawn_from(official: Mapping[str, Path]) -> None:
    task = make_task("ruler-4k", official)
    assert task.data_of("niah_single_1") == "wonderwords edea9ae744bc0d55"
    assert re.fullmatch(r"wonderwords \w{16}, essays \w{16}\+punkt:\w{16}", task.data_of("niah_multivalue"))
    assert re.fullmatch(r"hotpotqa sha256:\w{16}", task.data_of("qa_2"))
    assert make_task("ruler-4k-prose").data_of("niah_single_2").startswith("wonderwords edea9ae744bc0d55, prose ")


def test_from_64k_on_the_cache_is_compressed_after_every_chunk() -> None:
    assert [make_task(f"ruler-{length}").schedule for length in ("4k", "65535", "64k", "128k")] == [
        "after-prefill",
        "after-prefill",
        "chunked",
        "chunked",
    ]


def test_subtasks_without_essays_are_the_same_task_whether_the_essays_are_here_or_not() -> None:
    without = make_task("ruler-1k:niah_single_1+vt")
    assert without.name == "ruler-1k"
    assert without.remarks() == []
    assert make_task("ruler-1k:niah_single_2").name == "ruler-1k-prose"
