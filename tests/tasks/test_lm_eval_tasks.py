"""lm-eval's tasks as tasks of kvbench: the same prompts, the same scores, recomputed from the records."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from command_line import kvbench
from kvbench.errors import KvbenchError, UsageError
from kvbench.prompts import prompts_of
from kvbench.records import Record
from kvbench.registry import make_task
from kvbench.task import Answer, Question, Task
from kvbench.validate import answer_of, validate
from lm_eval_files import mean, write_passwords, write_task, write_three
from tiny_models import CONFIGS, tiny_network, tiny_tokenizer

THREE = ("choice", "reply", "ending")


@pytest.fixture(scope="module", autouse=True)
def datasets_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_three(folder)
    return folder


def task_of(folder: Path, spec: str) -> Task:
    return make_task(f"lm_eval:{spec}" if ":" not in spec else spec, {"lm_eval": folder})


def refused(folder: Path, spec: str) -> str:
    """Return why a task is refused, at the latest when its samples are made."""
    try:
        task = task_of(folder, spec)
        task.remarks()
        task.samples(tiny_tokenizer(), None, 42)
    except KvbenchError as error:
        return str(error)
    pytest.fail(f"{spec} is not refused")


@pytest.fixture(scope="module")
def swept(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A sweep of a tiny model over the three tasks, and what lm-eval measures of the same model."""
    model, results = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("results")
    tiny_network(CONFIGS["llama"], torch.float32).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    done = kvbench(
        *("run", "--model", str(model), "--task", ",".join(f"lm_eval:{name}" for name in THREE), "--press", "k_norm"),
        *("--data", f"lm_eval={folder}", "--budgets", "6,100%", "--dtype", "float32", "--device", "cpu"),
        *("--results", str(results)),
    )
    assert done.returncode == 0, done.stderr
    assert "lm_eval:ending: perplexity is no mean of what its samples score" in done.stderr
    measured = simple_evaluate(
        HFLM(str(model), dtype="float32", device="cpu", batch_size=1),
        tasks=list(THREE),
        task_manager=TaskManager(include_path=folder, include_defaults=False),
        bootstrap_iters=0,
    )
    return results, measured


def records_in(results: Path, task: str) -> list[Record]:
    [file] = (results / "records").glob(f"*{task}*.jsonl")
    return [Record.model_validate_json(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", THREE)
def test_scores_of_the_full_cache_are_lm_evals_sample_by_sample(swept: tuple[Path, dict[str, Any]], name: str) -> None:
    results, measured = swept
    filters = {"choice": ["none"], "reply": ["strict", "loose"], "ending": ["none"]}[name]
    metrics = {"choice": ["acc", "acc_norm"], "reply": ["exact_match"], "ending": ["acc"]}[name]
    expected: dict[str, list[float]] = {}
    for metric in metrics:
        for filter_ in filters:
            key = metric if filters == ["none"] else f"{metric},{filter_}"
            samples = [one for one in measured["samples"][name] if one["filter"] == filter_]
            expected[key] = [one[metric] for one in sorted(samples, key=lambda one: one["doc_id"])]
    main, *others = expected
    for press, budget in (("full", "full"), ("k_norm", "100%")):
        records = {r.sample: r for r in records_in(results, name) if (r.press, r.budget) == (press, budget)}
        ordered = [records[f"{name}/{number}"] for number in range(8)]
        assert [record.score for record in ordered] == expected[main]
        for index, other in enumerate(others):
            assert {record.other_metrics[index] for record in ordered} == {other}
            assert [record.other_scores[index] for record in ordered] == expected[other]


@pytest.mark.parametrize("name", THREE)
def test_scores_are_computed_again_from_the_record_alone(
    swept: tuple[Path, dict[str, Any]], folder: Path, tmp_path: Path, name: str
) -> None:
    """Without the data: only the YAML files are there."""
    results, _ = swept
    (tmp_path / f"{name}.yaml").write_text((folder / f"{name}.yaml").read_text().replace(str(folder), "/nowhere"))
    task = task_of(tmp_path, name)
    for record in records_in(results, name):
        question = Question(text="", targets=record.targets, max_new_tokens=1)
        assert task.score(answer_of(record), question, record.subtask) == record.score


def test_validate_finds_nothing_wrong_without_the_folder_and_says_what_it_left_out(
    swept: tuple[Path, dict[str, Any]],
) -> None:
    report = validate(swept[0])
    assert report.findings == []
    assert len(report.remarks) == 3
    assert all("no score is computed again, for unknown lm-eval task" in remark for remark in report.remarks)


def test_prompts_and_continuations_are_lm_evals(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    for name in THREE:
        [theirs] = TaskManager(include_path=folder, include_defaults=False).load(name)["tasks"].values()
        theirs.set_fewshot_seed(1234)
        if theirs.config.num_fewshot is None:
            theirs.set_config("num_fewshot", 0)
        theirs.build_all_requests()
        asked: dict[int, list[Any]] = {}
        for instance in theirs.instances:
            asked.setdefault(instance.doc_id, []).append(instance.args)
        samples = task_of(folder, name).samples(tokenizer, None, 42)
        assert len(samples) == len(asked) == 8
        for sample, requests in zip(samples, asked.values(), strict=True):
            [question] = sample.questions
            prompt = sample.context + question.text
            assert sample.template == "none"
            if name == "reply":
                assert prompt == requests[0][0]
                assert (question.stop, question.max_new_tokens) == (("\n", "e"), 14)
                continue
            assert prompt == requests[0][0].rstrip()
            assert [prompt + one for one in question.continuations] == [a + b for a, b in requests]


def test_examples_stand_in_front_and_their_number_can_be_asked_for(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    for spec, examples in (("choice", 2), ("lm_eval-0shot:choice", 0), ("lm_eval-5shot:choice", 5)):
        task = task_of(folder, spec)
        assert task.name == (spec if ":" in spec else f"lm_eval:{spec}")
        sample = task.samples(tokenizer, 3, 42)[2]
        assert sample.context.count("Question:") == examples
        assert sample.questions[0].text.count("Question:") == 1
    [few] = task_of(folder, "lm_eval-1shot:choice").samples(tokenizer, 1, 42)
    assert few == task_of(folder, "lm_eval-1shot:choice").samples(tokenizer, 5, 7)[0]


def test_the_question_after_is_the_rows_own_text(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    [sample] = task_of(folder, "choice").samples(tokenizer, 1, 42)
    [prompt] = prompts_of(tokenizer, sample, "after")
    assert tokenizer.decode(prompt.context) == sample.context
    [alone] = task_of(folder, "reply").samples(tokenizer, 1, 42)
    with pytest.raises(KvbenchError, match="has no context before its question: there is nothing to compress"):
        prompts_of(tokenizer, alone, "after")


def test_data_are_named_with_versions(folder: Path) -> None:
    assert task_of(folder, "choice").data_of("choice").startswith("json sha256:")
    assert task_of(folder, "choice").data_of("choice").endswith(", choice 3.0 of lm-eval 0.4.13")
    assert task_of(folder, "choice").data_of("choice") == task_of(folder, "choice").data_of("choice")
    assert task_of(folder, "reply").data_of("reply").endswith(", reply of lm-eval 0.4.13")


OWN_CODE = """
task: own
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
process_results: !function own_code.share
metric_list:
  - metric: share
    aggregation: mean
    higher_is_better: false
"""


def test_a_task_that_scores_with_its_own_code_is_given_its_row(tmp_path: Path) -> None:
    row = {"text": "So it was", "choices": ["here", "there", "gone"], "worth": [0.5, 1.0, 2.0]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "own.yaml").write_text(OWN_CODE.format(data=tmp_path / "rows.jsonl"))
    (tmp_path / "own_code.py").write_text(
        "import math\n\n\ndef share(row, results):\n"
        "    weights = [math.exp(weight) for weight, _ in results]\n"
        "    return {'share': sum(a * b for a, b in zip(weights, row['worth'])) / sum(weights)}\n"
    )
    task = pickle.loads(pickle.dumps(task_of(tmp_path, "own")))  # as it goes to the workers of a cluster
    assert (task.metric, task.lower_is_better, task.binary) == ("share", True, False)
    [sample] = task.samples(tiny_tokenizer(), None, 42)
    assert sample.questions[0].targets[0] == "here"
    answer = Answer("", log_likelihoods=(0.0, 0.0, 0.0), greedy=(False, False, False))
    assert task.score(answer, sample.questions[0], "own") == pytest.approx(3.5 / 3)


def test_several_references_and_a_choice_that_is_not_there(tmp_path: Path) -> None:
    common = {"output_type": "multiple_choice", "doc_to_text": "{{text}}", "doc_to_choice": ["a", "bb", "ccc"]}
    write_task(tmp_path, "several", [{"text": "So", "right": [0, 2]}], **common, doc_to_target="right")
    write_task(tmp_path, "none_of_them", [{"text": "So", "right": "d"}], **common, doc_to_target="right")
    for name, accuracies in (("several", [1, 0, 1]), ("none_of_them", [0, 0, 0])):
        task = task_of(tmp_path, name)
        [sample] = task.samples(tiny_tokenizer(), None, 42)
        for best, accuracy in enumerate(accuracies):
            weights = tuple(-1.0 if number == best else -9.0 for number in range(3))
            answer = Answer("", log_likelihoods=weights, greedy=(False,) * 3)
            assert task.score(answer, sample.questions[0], name) == accuracy


def test_a_group_is_the_mean_of_its_tasks(tmp_path: Path) -> None:
    write_three(tmp_path)
    write_passwords(tmp_path)
    (tmp_path / "both.yaml").write_text("group: both\ntask: [choice, password]\n")
    (tmp_path / "mixed.yaml").write_text("group: mixed\ntask: [choice, reply]\n")
    both = task_of(tmp_path, "both")
    assert both.name == "lm_eval:both"
    assert list(both.subtasks) == ["choice", "password"]
    assert [sample.id for sample in both.samples(tiny_tokenizer(), 2, 42)] == [
        *("choice/0", "choice/1"),
        *("password/0", "password/1"),
    ]
    assert refused(tmp_path, "mixed") == (
        "lm_eval:mixed mixes the metrics acc, exact_match,strict: run its tasks one by one, lm_eval:choice for example"
    )


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "two_contexts": (
        {
            "output_type": "multiple_choice",
            "doc_to_text": 0,
            "doc_to_choice": ["So it", "So they"],
            "doc_to_target": "w",
        },
        "every choice has a context of its own, and a cache is compressed once for all",
    ),
    "rolling": ({"output_type": "loglikelihood_rolling", "doc_to_target": "{{text}}"}, "a rolling perplexity has no"),
    "sampled": (
        {
            "generation_kwargs": {"do_sample": True, "temperature": 0.5, "until": ["."]},
            "metric_list": mean("exact_match"),
        },
        "temperature 0.5 asks for a sampled answer",
    ),
    "voted": ({"repeats": 8, "metric_list": mean("exact_match")}, "it wants 8 sampled answers"),
    "median": (
        {"metric_list": [{"metric": "exact_match", "aggregation": "median", "higher_is_better": True}]},
        "exact_match is no mean of what its samples score",
    ),
    "without_context": (
        {"output_type": "multiple_choice", "doc_to_choice": ["a", "b"], "metric_list": mean("acc_mutual_info")},
        "acc_mutual_info asks for a choice without its context",
    ),
    "code": ({"unsafe_code": True, "metric_list": mean("exact_match")}, "it runs the code that the model writes"),
    "seen": ({"doc_to_image": "text", "metric_list": mean("exact_match")}, "it shows images or plays sounds"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honest_is_refused(tmp_path: Path, name: str) -> None:
    config, message = REFUSED[name]
    asked = {"doc_to_text": "{{text}}", "doc_to_target": 0, **config}
    write_task(tmp_path, name, [{"text": "So it was.", "w": "was"}], **asked)
    assert message in refused(tmp_path, name)


def test_a_wrong_name_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    assert "lm_eval needs one of lm-eval's tasks: write lm_eval:arc_challenge" in refused(folder, "lm_eval:")
    assert "'few' is no number of examples, write lm_eval-5shot:TASK" in refused(folder, "lm_eval-few:choice")
    file = tmp_path / "file"
    file.touch()
    assert "it is no folder with lm-eval's YAML files" in refused(file, "choice")
    write_task(tmp_path, "gone", [{"text": "So"}], doc_to_text="{{text}}", doc_to_target="so", metric_list=mean("acc"))
    (tmp_path / "data" / "gone.jsonl").unlink()
    assert refused(tmp_path, "gone").startswith("lm_eval:gone cannot be loaded: FileNotFoundError")


def test_installed_tasks_are_found_and_scored_without_their_data() -> None:
    mmlu = make_task("lm_eval-5shot:mmlu")
    assert (mmlu.name, mmlu.metric, mmlu.binary) == ("lm_eval-5shot:mmlu", "acc", True)
    assert len(mmlu.subtasks) == 57
    gsm8k = make_task("lm_eval:gsm8k")
    assert gsm8k.metric == "exact_match,strict-match"
    question = Question(text="", targets=("…#### 18", json.dumps({"gold": "9 * 2 = 18\n#### 18"})), max_new_tokens=1)
    for text, strict, flexible in (("So it is 18.\n#### 18", 1, 1), ("It is 18", 0, 1), ("#### 17", 0, 0)):
        assert gsm8k.score(Answer(text), question, "gsm8k") == strict
        assert gsm8k.other_scores(Answer(text), question, "gsm8k") == {"exact_match,flexible-extract": flexible}
    for name, message in (
        ("arc_chalenge", "unknown lm-eval task 'arc_chalenge': did you mean 'arc_challenge'?"),
        ("wikitext", "a rolling perplexity has no context that could be compressed"),
        ("cola", "mcc is no mean of what its samples score"),
    ):
        with pytest.raises(UsageError, match=message):
            make_task(f"lm_eval:{name}")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_lm_eval_is_not_imported_before_it_is_needed() -> None:
    done = run_python(
        "import sys\nfrom kvbench.cli import main\n"
        "for command in (['list', 'tasks'], ['info', 'lm_eval'], ['--help']):\n"
        "    sys.argv = ['kvbench', *command]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        "assert 'lm_eval' not in sys.modules, 'imported'\n"
    )
    assert done.returncode == 0, done.stderr
    assert "lm_eval" in done.stdout


def test_without_lm_eval_one_sentence_says_how_to_install_it() -> None:
    done = run_python(
        "import sys\nsys.modules['lm_eval'] = None\nfrom kvbench.cli import main\n"
        "sys.argv = ['kvbench', 'run', '--task', 'lm_eval:hellaswag', '--press', 'full', '--budgets', '8']\nmain()\n"
    )
    assert done.returncode == 2
    assert "pip install 'kvbench[lm-eval]'" in " ".join(done.stderr.split())


@pytest.mark.real_model
def test_what_was_evicted_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVBENCH_CACHE")  # the model is there
    write_passwords(tmp_path)
    done = kvbench(
        *("run", "--task", "lm_eval:password", "--data", f"lm_eval={tmp_path}", "--press", "snapkv,k_norm"),
        *("--budgets", "1,4,100%", "--protect", "0,0", "--dtype", "float32", "--results", str(tmp_path / "results")),
    )
    assert done.returncode == 0, done.stderr
    scores: dict[tuple[str, str], list[float]] = {}
    for record in records_in(tmp_path / "results", "password"):
        assert record.score is not None
        scores.setdefault((record.press, record.budget), []).append(record.score)
    for cell, values in scores.items():
        accuracy = sum(values) / 12
        if cell[1] in ("full", "100%"):
            assert accuracy == 1
        else:
            assert accuracy <= 0.5  # chance is 0.25
