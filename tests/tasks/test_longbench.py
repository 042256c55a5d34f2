"""LongBench: prompts, truncation, and the hub's formatted copy of its rows."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerBase

from kvbench.errors import UsageError
from kvbench.models import ModelSource
from kvbench.prompts import prompts_of
from kvbench.registry import make_task
from kvbench.sources import Revision
from kvbench.task import Sample
from kvbench.tasks.longbench.prompts import CutPrompt, limit_for, shortened
from kvbench.tasks.longbench.subsets import SUBSETS

PLAIN = {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
NEW_TOKENS = {
    **dict.fromkeys(("narrativeqa", "qasper", "dureader", "samsum"), 128),
    **dict.fromkeys(("multifieldqa_en", "multifieldqa_zh", "trec", "lsht", "lcc", "repobench-p"), 64),
    **dict.fromkeys(("hotpotqa", "2wikimqa", "musique", "triviaqa", "passage_count"), 32),
    **dict.fromkeys(("passage_retrieval_en", "passage_retrieval_zh"), 32),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "vcsum"), 512),
}
# Where the hub's copy cuts the prompt into context, question and answer prefix: what the three last parts begin with.
HUB_CUTS = {
    "narrativeqa": ("Question: ", "Answer:"),
    "gov_report": ("Now, write", "Summary:"),
    "vcsum": ("会议总结：", "会议总结："),
    "trec": ("Type:", "Type:"),
    "passage_retrieval_en": ("<input>", "The answer is: "),
    "lcc": ("Next line of code:\n", "Next line of code:\n"),
}


def row(subset: str, **changes: Any) -> dict[str, Any]:
    made = {
        "context": f"The context of {subset}.\n\n",
        "input": "Type:" if subset == "trec" else "What?" if SUBSETS[subset].asks else "",
        "answers": ["this", "that"],
        "all_classes": list(SUBSETS[subset].classes) or None,
        "dataset": subset,
        "_id": f"{subset}-0",
        "length": 3,
    }
    return {**made, **changes}


def write(file: Path, *given: Mapping[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(given)), file)
    else:
        file.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in given))
    return file


def formatted(subset: str, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as the hub's copy holds it."""
    prompt = SUBSETS[subset].prompt.replace("{context}", made["context"]).replace("{input}", made["input"])
    question, answer = (mark.replace("<input>", made["input"]) for mark in HUB_CUTS[subset])
    start, end = prompt.rindex(question), prompt.rindex(answer)
    others = {key: value for key, value in made.items() if key != "input"}
    parts = {"context": prompt[:start], "question": prompt[start:end], "answer_prefix": prompt[end:]}
    return {**others, **parts, "task": subset, "max_new_tokens": 1}


def draw(spec: str, source: Path, tokenizer: PreTrainedTokenizerBase, limit: int | None = None) -> list[Sample]:
    return list(make_task(spec, {"longbench": source}).samples(tokenizer, limit, 42))


def text_of(sample: Sample) -> str:
    return sample.context + sample.questions[0].text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for subset in SUBSETS:
        write(tmp_path / "rows" / f"{subset}.jsonl", row(subset))
    return tmp_path / "rows"


def test_every_subset_has_its_prompt_limit_template_and_stop(
    folder: Path, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    samples = {sample.subtask: sample for sample in draw("longbench", folder, smollm2_tokenizer)}
    assert list(samples) == list(make_task("longbench").subtasks)
    assert len(samples) == 21
    for name, sample in samples.items():
        [question] = sample.questions
        given = row(name)
        assert text_of(sample) == SUBSETS[name].prompt.replace("{context}", given["context"]).replace(
            "{input}", given["input"]
        )
        assert sample.context.endswith(given["context"])
        assert question.answer_prefix == ""
        assert question.targets == ("this", "that")
        assert question.max_new_tokens == NEW_TOKENS[name]
        assert question.stop == (("\n",) if name == "samsum" else ())
        assert sample.template == ("none" if name in PLAIN else "chat")
        assert sample.truncated_tokens == 0


def test_braces_in_a_row_are_text(tmp_path: Path, smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    file = write(tmp_path / "a.jsonl", row("qasper", context="{input} {x} {", input="{context}"))
    [sample] = draw("longbench:qasper", file, smollm2_tokenizer)
    assert sample.context.endswith("Article: {input} {x} {")
    assert sample.questions[0].text.endswith("Question: {context}\n\nAnswer:")


@pytest.mark.parametrize("subset", HUB_CUTS)
def test_the_hubs_formatted_rows_give_the_same_samples(
    tmp_path: Path, subset: str, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    own = write(tmp_path / "own.jsonl", row(subset))
    hub = write(tmp_path / subset / "test-00000-of-00001.parquet", formatted(subset, row(subset)))
    expected = draw(f"longbench:{subset}", own, smollm2_tokenizer)
    assert draw(f"longbench:{subset}", tmp_path, smollm2_tokenizer) == expected
    assert draw(f"longbench:{subset}", hub, smollm2_tokenizer) == expected


def test_the_hubs_cache_is_read_at_the_revision_asked_for(
    hub_cache: Path, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    repository = hub_cache / "datasets--Xnhyacinth--LongBench"
    (repository / "refs").mkdir(parents=True)
    for ref, answers in (("main", ["new"]), ("v1", ["old"])):
        (repository / "refs" / ref).write_text(ref * 10)
        made = formatted("lcc", row("lcc", answers=answers))
        write(repository / "snapshots" / (ref * 10) / "lcc" / "test-00000-of-00001.parquet", made)
    for ref, answer in (("main", "new"), ("v1", "old")):
        task = make_task("longbench", {"longbench": Revision(ref)})
        assert task.data_of("lcc") == f"longbench hub Xnhyacinth/LongBench@{ref * 10}"
        [sample] = task.samples(smollm2_tokenizer, None, 42)
        assert sample.questions[0].targets == (answer,)
    [remark] = make_task("longbench").remarks()
    assert remark.startswith("longbench goes without narrativeqa, qasper")
    with pytest.raises(UsageError, match=r"--revision longbench=v1: .* 'qasper/test-\*.parquet' at that revision"):
        make_task("longbench:qasper", {"longbench": Revision("v1")}).remarks()
    with pytest.raises(UsageError, match=r"LongBench's qasper is neither .* --data longbench=PATH"):
        make_task("longbench:qasper").remarks()


def test_a_formatted_row_of_another_prompt_is_refused(
    tmp_path: Path, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    made = formatted("gov_report", row("gov_report"))
    file = write(tmp_path / "a.jsonl", made, {**made, "context": "Read this: " + made["context"]})
    with pytest.raises(UsageError, match=r"row 2 of gov_report in sha256:\w+: .* are not LongBench's prompt"):
        draw("longbench:gov_report", file, smollm2_tokenizer)


def test_the_rows_of_one_file_are_told_apart(tmp_path: Path, smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    file = write(tmp_path / "all.jsonl", row("qasper"), row("trec"), row("qasper", context="Another."))
    names = [sample.id for sample in draw("longbench", file, smollm2_tokenizer)]
    assert names == ["qasper/0", "trec/0", "qasper/1"]
    assert [sample.id for sample in draw("longbench", file, smollm2_tokenizer, limit=1)] == ["qasper/0", "trec/0"]
    with pytest.raises(UsageError, match="has no row whose dataset is 'lcc'"):
        draw("longbench:trec+lcc", file, smollm2_tokenizer)


def test_questions_about_one_document_are_one_cluster(
    tmp_path: Path, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    file = write(tmp_path / "q.jsonl", row("qasper"), row("qasper", input="Who?"), row("qasper", context="Other."))
    first, second, third = draw("longbench:qasper", file, smollm2_tokenizer)
    assert first.source == second.source != third.source


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"all_classes": ["Food"]}, "all_classes are not LongBench's"),
        ({"answers": []}, "line 1: the field 'answers' is []"),
        ({"context": None}, "line 1: the field 'context' is None"),
    ],
)
def test_a_row_that_is_not_longbenchs_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    write(tmp_path / "trec.jsonl", row("trec", **changes))
    with pytest.raises(UsageError) as refusal:
        draw("longbench:trec", tmp_path, smollm2_tokenizer)
    assert message in str(refusal.value)


@pytest.mark.parametrize("spec", ["longbench:qasperr", "longbench-4k", "longbench-0"])
def test_a_wrong_name_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match=r"did you mean 'qasper'|is no limit"):
        make_task(spec)


def test_the_limit_is_the_benchmarks_for_a_models_window(smollm2_source: ModelSource) -> None:
    assert [limit_for(window) for window in (4096, 8192, 16384, 32768, 131072)] == [3500, 7500, 15500, 31500, 127500]
    with pytest.raises(UsageError, match="longbench-200"):
        limit_for(1000)
    assert make_task("longbench").for_model(smollm2_source.facts).name == "longbench"
    assert make_task("longbench-3500:trec").for_model(smollm2_source.facts).name == "longbench-3500"


@pytest.mark.parametrize("limit", [40, 41, 300])
def test_a_long_prompt_keeps_the_first_and_last_half_of_its_tokens(
    tmp_path: Path, limit: int, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    words = " ".join(f"word{number}" for number in range(300))
    file = write(tmp_path / "q.jsonl", row("multifieldqa_en", context=words))
    [whole] = draw("longbench-100000:multifieldqa_en", file, smollm2_tokenizer)
    [cut] = draw(f"longbench-{limit}:multifieldqa_en", file, smollm2_tokenizer)
    tokens = smollm2_tokenizer(text_of(whole))["input_ids"]
    half = limit // 2
    assert text_of(cut) == smollm2_tokenizer.decode(tokens[:half]) + smollm2_tokenizer.decode(tokens[-half:])
    assert cut.truncated_tokens == len(tokens) - 2 * half
    question, kept = whole.questions[0].text, cut.questions[0].text
    assert question.endswith(kept)
    # Nothing of the question stands in the context, unless the cut went through the question.
    assert (kept == question) == (len(smollm2_tokenizer(question)["input_ids"]) <= half)
    [prompt] = prompts_of(smollm2_tokenizer, cut, "after")
    assert len(prompt.context) >= half


def test_a_question_longer_than_half_the_limit_loses_its_beginning(
    smollm2_tokenizer: PreTrainedTokenizerBase,
) -> None:
    prompt = CutPrompt("The context.", " ".join(f"ask{number}" for number in range(100)))
    cut = shortened(prompt, 20, smollm2_tokenizer)
    assert prompt.question.endswith(cut.question)
    assert len(cut.question) < len(prompt.question)
    assert cut.context.startswith("The context.")


def test_the_real_rows_of_every_subset_are_read(shared: Path, smollm2_source: ModelSource) -> None:
    task = make_task("longbench", {"longbench": shared / "data" / "longbench"}).for_model(smollm2_source.facts)
    assert list(task.remarks()) == []
    samples = task.samples(smollm2_source.tokenizer, 1, 42)
    assert [sample.subtask for sample in samples] == list(task.subtasks)
    longer = {sample.subtask for sample in samples if sample.truncated_tokens}
    assert {"narrativeqa", "musique", "trec"} <= longer
    for sample in samples:
        used = len(smollm2_source.tokenizer(text_of(sample))["input_ids"])
        assert used <= 7500 + (8 if sample.truncated_tokens else 0)  # the seam may be cut into other tokens
