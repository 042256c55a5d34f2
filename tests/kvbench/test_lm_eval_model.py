"""kvbench as a model of lm-eval, beside lm-eval's own `hf`, on local data."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import lm_eval.caching.cache
import pytest
import torch
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from command_line import kvbench
from kvbench.errors import KvbenchError, UsageError
from kvbench.lm_eval_model import KVBenchLM
from kvbench.models import ModelSource
from kvbench.records import press_identity
from kvbench.registry import make_press
from lm_eval_files import mean, write_passwords, write_task, write_three
from tiny_models import CONFIGS, tiny_network, tiny_tokenizer

THREE = ["choice", "reply", "ending"]


@pytest.fixture(scope="module", autouse=True)
def datasets_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        yield


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_three(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in a folder, with a window of 512 tokens."""
    folder = tmp_path_factory.mktemp("model")
    tiny_network(CONFIGS["llama"], torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def evaluate(lm: HFLM, folder: Path, *tasks: str, **options: Any) -> dict[str, Any]:
    manager = TaskManager(include_path=folder, include_defaults=False)
    results: dict[str, Any] = simple_evaluate(lm, tasks=list(tasks), task_manager=manager, bootstrap_iters=0, **options)
    return results


def responses(results: dict[str, Any], task: str) -> list[Any]:
    """What the model answered, request by request."""
    samples = {sample["doc_id"]: sample for sample in results["samples"][task]}  # they come once per filter
    return [response[0] for _, sample in sorted(samples.items()) for response in sample["resps"]]


def of_kvbench(model: Path | str, **arguments: Any) -> KVBenchLM:
    return KVBenchLM(str(model), **{"dtype": "float32", "device": "cpu", **arguments})


def of_hf(model: Path) -> HFLM:
    return HFLM(str(model), dtype="float32", device="cpu", batch_size=1)


def same(ours: list[Any], theirs: list[Any]) -> None:
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    torch.testing.assert_close(
        torch.tensor([weight for weight, _ in ours]),
        torch.tensor([weight for weight, _ in theirs]),
        atol=1e-4,
        rtol=0,
    )


@pytest.mark.parametrize("chat", [False, True])
def test_with_the_full_cache_it_answers_as_hf(model: Path, tasks: Path, chat: bool) -> None:
    ours, theirs = (evaluate(lm, tasks, *THREE, apply_chat_template=chat) for lm in (of_kvbench(model), of_hf(model)))
    for task in ("choice", "ending"):
        same(responses(ours, task), responses(theirs, task))
    assert responses(ours, "reply") == responses(theirs, "reply")
    assert len({len(text) for text in responses(ours, "reply")}) > 1  # a stop text has ended some of them
    for task in THREE:
        scores = {name: value for name, value in theirs["results"][task].items() if isinstance(value, int | float)}
        assert {name: ours["results"][task][name] for name in scores} == pytest.approx(scores, rel=1e-4)


def test_it_cuts_on_the_left_as_hf_does_and_says_how_much(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        {"text": "".join(chr(97 + (7 * i * i + n) % 26) for i in range(length))} for n, length in enumerate([700, 90])
    ]
    write_task(
        tmp_path,
        "long_choice",
        rows,
        output_type="multiple_choice",
        doc_to_text="{{text}}\nAnswer:",
        doc_to_choice=["yes", "perhaps not"],
        doc_to_target=0,
        metric_list=mean("acc"),
    )
    write_task(
        tmp_path,
        "long_reply",
        rows,
        output_type="generate_until",
        doc_to_text="{{text}}\nAnswer:",
        doc_to_target="yes",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 20},
        metric_list=mean("exact_match"),
    )
    ours, theirs = (evaluate(lm, tmp_path, "long_choice", "long_reply") for lm in (of_kvbench(model), of_hf(model)))
    same(responses(ours, "long_choice"), responses(theirs, "long_choice"))
    assert responses(ours, "long_reply") == responses(theirs, "long_reply")
    told = [record.message for record in caplog.records if record.name == "kvbench.lm_eval_model"]
    fed = 700 + len("\nAnswer:")
    kept = [513 - len(" yes"), 513 - len(" perhaps not")]
    assert told == [
        f"2 of 4 contexts were cut on the left, by {2 * fed - sum(kept)} tokens in all, to fit 512 tokens",
        f"1 of 2 contexts were cut on the left, by {fed - (512 - 20)} tokens in all, to fit 512 tokens",
    ]


def test_a_compressed_answer_is_that_of_a_sweep(model: Path, tasks: Path, tmp_path: Path) -> None:
    """Both ways lead to the same numbers, press by press."""
    for press, budget in (("snapkv:window=8", 6), ("streaming_llm", "25%")):
        ours = evaluate(of_kvbench(model, press=press, budget=budget, protect="2:3"), tasks, *THREE)
        results = tmp_path / press.partition(":")[0]
        for task in THREE:
            done = kvbench(
                *("run", "--model", str(model), "--task", f"lm_eval:{task}", "--data", f"lm_eval={tasks}"),
                *("--press", press, "--budgets", str(budget), "--protect", "2,3", "--dtype", "float32"),
                *("--device", "cpu", "--results", str(results)),
            )
            assert done.returncode == 0, done.stderr
            records = [record for record in records_in(results, task) if record["press"] != "full"]
            if task == "reply":
                assert [record["prediction"] for record in records] == responses(ours, task)
                continue
            swept = [
                pair for record in records for pair in zip(record["log_likelihoods"], record["greedy"], strict=True)
            ]
            same(swept, responses(ours, task))


def records_in(results: Path, task: str) -> list[dict[str, Any]]:
    [file] = (results / "records").glob(f"*{task}*.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(record["status"] == "ok" for record in records)
    return sorted(records, key=lambda record: int(record["sample"].partition("/")[2]))


def test_a_context_is_prefilled_once(model: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = of_kvbench(model, press="k_norm", budget=8)
    contexts: list[int] = []
    forward = lm._kvbench.forward

    def counted(tokens: torch.Tensor, position: int, step: Any) -> torch.Tensor:
        contexts.extend([tokens.shape[1]] if position == 0 else [])
        return forward(tokens, position, step)

    monkeypatch.setattr(lm._kvbench, "forward", counted)
    results = evaluate(lm, tasks, "choice")
    assert len(responses(results, "choice")) == 8 * 4
    assert len(contexts) == 8
    assert results["config"]["press"] == "k_norm"
    assert results["config"]["budget"] == "8"


def test_answers_are_never_cached(model: Path, tasks: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use_cache is not allowed: lm-eval keeps an answer by its request alone"):
        evaluate(of_kvbench(model), tasks, "choice", use_cache=str(tmp_path / "answers"))


@pytest.mark.parametrize("chat", [False, True])
def test_cached_requests_hold_no_answers(
    model: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chat: bool
) -> None:
    monkeypatch.setattr(lm_eval.caching.cache, "PATH", str(tmp_path))
    lms = [of_kvbench(model), of_kvbench(model, press="streaming_llm", budget=1, protect="0:0")]
    plain = [responses(evaluate(lm, tasks, "choice", apply_chat_template=chat), "choice") for lm in lms]
    for _ in range(2):  # written, then read
        cached = [
            responses(evaluate(lm, tasks, "choice", apply_chat_template=chat, cache_requests=True), "choice")
            for lm in lms
        ]
        assert cached == plain
    assert plain[0] != plain[1]
    assert len(list(tmp_path.iterdir())) == (2 if chat else 1)  # a chat's key holds press and budget


def test_what_cannot_be_honest_is_refused(model: Path, tmp_path: Path) -> None:
    lm = of_kvbench(model, press="k_norm", budget=4)
    write_task(
        tmp_path,
        "rolling",
        [{"text": "All that was said."}],
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
    )
    for name, arguments in (("sampled", {"do_sample": True, "temperature": 0.7}), ("beams", {"num_beams": 4})):
        write_task(
            tmp_path,
            name,
            [{"text": "All that was said."}],
            output_type="generate_until",
            doc_to_text="{{text}}",
            doc_to_target="so",
            generation_kwargs={"until": ["\n"], **arguments},
            metric_list=mean("exact_match"),
        )
    write_task(
        tmp_path,
        "nothing",
        [{"text": ""}],
        output_type="loglikelihood",
        doc_to_text="{{text}}",
        doc_to_target="so",
        metric_list=mean("acc"),
    )
    for task, message in (
        ("rolling", "a rolling perplexity has no context that could be compressed"),
        ("sampled", "temperature 0.7 asks for a sampled answer: kvbench answers greedily"),
        ("beams", "generation argument num_beams=4 is not allowed"),
        ("nothing", "a request leaves 1 tokens of context"),
    ):
        with pytest.raises(KvbenchError, match=message):
            evaluate(lm, tmp_path, task)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 8}, "press full keeps everything: leave budget=8 out"),
        ({"press": "snapkv"}, "press snapkv needs a budget: add budget=512, or budget=25%"),
        ({"press": "snapkv", "budget": 0}, "budget '0' is not allowed"),
        ({"press": "snap"}, "unknown press 'snap': did you mean 'snapkv'"),
        ({"press": "snapkv:window=0", "budget": 8}, "press snapkv: window='0' is not allowed"),
        ({"question": "after"}, "question=after is not allowed"),
        ({"protect": "4"}, "'4' is not allowed: give two whole numbers"),
        ({"buget": 8}, "unknown model argument 'buget': did you mean 'budget'"),
    ],
)
def test_a_wrong_argument_is_one_sentence(model: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        of_kvbench(model, **arguments)


def test_presses_take_parameters_in_one_argument(model: Path) -> None:
    info = of_kvbench(model, press="snapkv:window=8;kernel=3", budget="50%").get_model_info()
    assert (info["press"], info["budget"]) == ("snapkv:window=8,kernel=3", "50%")
    assert info["press_identity"] == press_identity("snapkv", make_press("snapkv:window=8,kernel=3").identity())


def test_its_module_is_the_command_line(model: Path, tasks: Path, tmp_path: Path) -> None:
    """lm-eval 0.4.13 does not look into the entry points, which later versions do."""
    arguments = f"pretrained={model},press=k_norm,budget=5,protect=2:2,dtype=float32"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kvbench.lm_eval_model", "run", "--model", "kvbench", "--model_args", arguments),
            *("--tasks", "choice", "--include_path", str(tasks), "--output_path", str(tmp_path / "out.json")),
        ],
        env={"PATH": "", "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    [written] = tmp_path.glob("**/out*.json")
    results = json.loads(written.read_text())
    expected = evaluate(of_kvbench(model, press="k_norm", budget=5, protect="2:2"), tasks, "choice")
    assert results["results"]["choice"]["acc,none"] == expected["results"]["choice"]["acc,none"]
    assert results["config"]["budget"] == "5"


BOOLQ = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{passage}}\nQuestion: {{question}}?\nAnswer:",
    "doc_to_choice": ["no", "yes"],
    "doc_to_target": "{{answer|int}}",
    "metric_list": mean("acc"),
}
ROWS = 24


@pytest.mark.real_model
def test_boolq_is_as_accurate_as_with_hf(shared: Path, smollm2_source: ModelSource, tmp_path: Path) -> None:
    """On the same rows and prompt, three ways with the full cache."""
    data = shared / "data" / "boolq" / "validation.jsonl"
    with data.open() as lines:
        rows = [json.loads(line) for _, line in zip(range(ROWS), lines, strict=False)]
    write_task(tmp_path, "local_boolq", rows, **BOOLQ)
    theirs = evaluate(of_hf(smollm2_source.folder), tmp_path, "local_boolq")
    ours = evaluate(of_kvbench("smollm2-135m"), tmp_path, "local_boolq")
    same(responses(ours, "local_boolq"), responses(theirs, "local_boolq"))
    done = kvbench(
        *("run", "--task", "boolq", "--data", f"boolq={data}", "--limit", str(ROWS), "--press", "full"),
        *("--budgets", "64", "--dtype", "float32", "--device", "cpu", "--results", str(tmp_path / "results")),
    )
    assert done.returncode == 0, done.stderr
    swept = records_in(tmp_path / "results", "boolq")
    same(
        [pair for record in swept for pair in zip(record["log_likelihoods"], record["greedy"], strict=True)],
        responses(theirs, "local_boolq"),
    )
    accuracy = theirs["results"]["local_boolq"]["acc,none"]
    assert ours["results"]["local_boolq"]["acc,none"] == accuracy
    assert sum(record["score"] for record in swept) / ROWS == accuracy


@pytest.mark.real_model
def test_what_was_evicted_is_not_known(tmp_path: Path) -> None:
    write_passwords(tmp_path)
    accuracy = {
        budget: evaluate(
            of_kvbench("smollm2-135m", press="snapkv", budget=budget, protect="0:0"), tmp_path, "password"
        )["results"]["password"]["acc,none"]
        for budget in ("1", "100%")
    }
    assert accuracy["100%"] == 1
    assert accuracy["1"] <= 0.5  # chance is 0.25
