"""The command line, as a user meets it, on a tiny model saved to a folder."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Done, kvbench
from kvbench.half_precision import multiplied_slowly
from kvbench.records import FULL, REPEAT
from kvbench.store import load
from processes import Command, records_in
from simulated import make_protocol, simulate
from tiny_models import CONFIGS, tiny_network

TASK = "ruler-2k:fwe"
PRESSES = "k_norm,snapkv:window=16,kernel=3,streaming_llm"


def error_of(done: Done) -> str:
    """Return the one sentence that a wrong command ends with."""
    assert "Traceback" not in done.stderr + done.stdout
    [*_, last] = done.stderr.strip().splitlines()
    assert last.startswith("error: ")
    return last


def run_arguments(model: Path, results: Path, *more: str) -> Sequence[str]:
    return ("run", "--model", str(model), "--dtype", "float32", "--task", TASK, "--results", str(results), *more)


def cells(results: Path) -> Any:
    """Return what `kvbench table` knows of a folder, as plain data."""
    done = kvbench("table", str(results), "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lines(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in results.glob("records/*.jsonl") for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list", "presses"], ["list", "tasks", "--json"], ["list", "models"]]
)
def test_help_and_lists_import_neither_torch_nor_transformers(arguments: list[str]) -> None:
    script = (
        "import sys; from kvbench.cli import main\n"
        f"sys.argv = ['kvbench', *{arguments!r}]\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'transformers', 'pandas', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_a_sweep_is_recorded_shown_and_drawn(model_folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    done = kvbench(*run_arguments(model_folder, results, "--press", PRESSES, "--budgets", "8,64,25%", "--limit", "2"))
    assert done.returncode == 0, done.stderr
    assert "20 cells computed" in done.stdout
    records = lines(results)
    assert {record["press"] for record in records} == {"full", "k_norm", "snapkv:window=16,kernel=3", "streaming_llm"}
    assert all(record["kept_min"] == record["kept_max"] == record["budget_tokens"] for record in records)
    shares = [record for record in records if record["budget"] == "25%"]
    assert all(abs(record["budget_tokens"] - record["context_tokens"] / 4) <= 0.5 for record in shares)
    table = kvbench("table", str(results))
    assert table.returncode == 0
    assert "snapkv:window=16,kernel=3" in table.stdout
    assert max(map(len, table.stdout.splitlines())) <= 80
    drawn = kvbench("plot", str(results), "--format", "png,svg")
    assert drawn.returncode == 0
    figures = {(path.stem, path.suffix) for path in (results / "figures").iterdir()}
    [curve] = {
        protocol_file.name.removesuffix(".protocol.json") for protocol_file in results.glob("records/*.protocol.json")
    }
    stems = {stem for stem, _ in figures}
    assert curve in stems
    assert figures == {(stem, suffix) for stem in stems for suffix in (".png", ".svg")}


def test_what_is_there_is_not_computed_again_and_more_is_added(model_folder: Path, tmp_path: Path) -> None:
    def run(*more: str) -> dict[str, Any]:
        done = kvbench(*run_arguments(model_folder, tmp_path / "r", "--json", *more))
        assert done.returncode == 0, done.stderr
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    first = run("--press", "k_norm", "--budgets", "8,64", "--limit", "1")
    assert (first["cells"], first["already_done"]) == (3, 0)
    again = run("--press", "k_norm", "--budgets", "8,64", "--limit", "1")
    assert (again["cells"], again["already_done"]) == (0, 3)
    budget = run("--press", "k_norm", "--budgets", "8,32,64", "--limit", "1")
    assert (budget["cells"], budget["already_done"]) == (1, 3)
    press = run("--press", "k_norm,tova", "--budgets", "8,32,64", "--limit", "1")
    assert (press["cells"], press["already_done"]) == (3, 4)
    limit = run("--press", "k_norm,tova", "--budgets", "8,32,64", "--limit", "2")
    assert (limit["cells"], limit["already_done"]) == (7, 7)
    parameter = run("--press", "snapkv:window=5,k_norm", "--budgets", "8", "--limit", "2")
    assert (parameter["cells"], parameter["already_done"]) == (2, 4)
    keys = [record["key"] for record in lines(tmp_path / "r")]
    assert len(keys) == len(set(keys)) == 16


def test_a_compressed_folder_is_gone_on_with(model_folder: Path, tmp_path: Path) -> None:
    def run(results: Path, budgets: str) -> tuple[int, int]:
        asked = ("--press", "k_norm", "--budgets", budgets, "--limit", "1", "--json")
        done = kvbench(*run_arguments(model_folder, results, *asked))
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        return summary["cells"], summary["already_done"]

    run(tmp_path / "plain", "8,64")
    packed = tmp_path / "packed"
    merged = kvbench("merge", str(tmp_path / "plain"), "--into", str(packed), "--compress")
    assert merged.returncode == 0, merged.stderr
    assert kvbench("validate", str(packed)).returncode == 0
    assert cells(packed) == cells(tmp_path / "plain")
    assert run(packed, "8,64") == (0, 3)
    assert [file.suffix for file in packed.glob("records/*.jsonl*")] == [".gz"]
    assert run(packed, "8,32,64") == (1, 3)
    assert len(lines(packed)) == 4
    assert [file.suffix for file in packed.glob("records/*.jsonl*")] == [".jsonl"]


@pytest.mark.parametrize("schedule", [("after-prefill",), ("chunked", "--chunk", "512")])
def test_the_noise_floor_is_a_second_prefill_and_no_budget(
    schedule: tuple[str, ...], model_folder: Path, tmp_path: Path
) -> None:
    results = tmp_path / "r"

    def run(*more: str) -> dict[str, Any]:
        asked = ("--press", "k_norm", "--budgets", "8,64", "--limit", "2", "--schedule", *schedule, "--json", *more)
        done = kvbench(*run_arguments(model_folder, results, *asked))
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    assert run("--noise-floor", "--dry-run")["prefills"] == 4
    assert run("--noise-floor")["cells"] == 8
    again = run("--noise-floor")
    assert (again["cells"], again["already_done"]) == (0, 8)
    repeats = [record for record in lines(results) if record["budget"] == REPEAT]
    assert [(record["press"], record["compressed"], record["status"]) for record in repeats] == [
        (FULL, False, "ok")
    ] * 2
    assert all(record["kept_min"] == record["kept_max"] == record["context_tokens"] for record in repeats)
    assert kvbench("validate", str(results)).returncode == 0
    [table] = cells(results)
    assert table["noise"]["difference"]["n"] == 2
    assert [budget["label"] for budget in table["budgets"]] == ["8", "64"]
    assert {label for curve in table["curves"] for label in curve["cells"]} == {"8", "64"}


@pytest.mark.parametrize("schedule", [("after-prefill",), ("chunked", "--chunk", "512")])
def test_a_killed_run_goes_on_and_equals_an_uninterrupted_one(
    schedule: tuple[str, ...], model_folder: Path, tmp_path: Path
) -> None:
    more = ("--press", f"full,{PRESSES}", "--budgets", "8,64", "--limit", "5", "--schedule", *schedule)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert kvbench(*run_arguments(model_folder, whole, *more)).returncode == 0
    command = Command(tmp_path / "output", *run_arguments(model_folder, killed, *more))
    command.wait_for(14, killed)
    command.kill()
    before = records_in(killed)
    assert 14 <= len(before) < 35, "the kill came too late or too early to show anything"
    done = kvbench(*run_arguments(model_folder, killed, *more, "--json"))
    summary = json.loads(done.stdout)
    assert summary["already_done"] == len(before)
    assert summary["already_done"] + summary["cells"] == 35
    keys = [record["key"] for record in lines(killed)]
    assert len(keys) == len(set(keys)) == 35
    assert cells(killed) == cells(whole)
    answers = [{r["key"]: (r["prediction"], r["score"]) for r in lines(folder)} for folder in (whole, killed)]
    assert answers[0] == answers[1]


def test_a_dry_run_tells_and_does_nothing(model_folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    arguments = run_arguments(model_folder, results, "--press", "all", "--budgets", "8,64", "--limit", "2", "--dry-run")
    plain = kvbench(*arguments)
    assert plain.returncode == 0, plain.stderr
    assert max(map(len, plain.stdout.splitlines())) <= 80
    told = json.loads(kvbench(*arguments, "--json").stdout)
    assert not results.exists()
    assert (told["prefills"], told["cells"], told["already_done"]) == (2, 2 * (10 * 2 + 1), 0)
    assert told["weight_bytes"] == 4 * sum(weight.numel() for weight in tiny_network(CONFIGS["llama"]).parameters())
    assert told["cache_bytes"] > 2 * 3 * 2 * 8 * 4 * told["context_tokens"] / 2
    half = json.loads(kvbench(*arguments, "--dtype", "bfloat16", "--json").stdout)
    widened = multiplied_slowly(torch.bfloat16, "cpu")
    assert half["weight_bytes"] == told["weight_bytes"] // (1 if widened else 2)
    assert half["cache_bytes"] == told["cache_bytes"] // 2
    done = kvbench(*arguments[:-1])
    assert done.returncode == 0
    told_after = json.loads(kvbench(*arguments, "--json").stdout)
    assert (told_after["cells"], told_after["already_done"]) == (0, told["cells"])
    written = sum(file.stat().st_size for file in results.glob("records/*.jsonl"))
    assert written / 2 < told["disk_bytes"] < written * 2


def test_a_dry_run_says_what_the_model_has_no_positions_for(model_folder: Path, tmp_path: Path) -> None:
    arguments = ("--press", "random", "--budgets", "8", "--limit", "1", "--dry-run", "--task", "ruler-8k:niah_single_1")
    done = kvbench(*run_arguments(model_folder, tmp_path / "results", *arguments))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "1 of 2 prompts need more positions than the 4096 that tiny-llama knows: their cells will fail" in said


WRONG = {
    "unknown press": (["--press", "snapk"], ["'snapk'", "did you mean 'snapkv'", "tova"]),
    "unknown parameter": (["--press", "snapkv:windw=3"], ["'windw'", "did you mean 'window'", "kernel"]),
    "parameter out of range": (["--press", "snapkv:window=0"], ["window", "'0'", "1"]),
    "parameter of the wrong kind": (["--press", "snapkv:window=many"], ["window", "'many'", "integer"]),
    "no press": (["--press", ","], ["no presses"]),
    "unknown task": (["--task", "rulr-4k"], ["'rulr-4k'", "did you mean 'ruler-4k'"]),
    "unknown subtask": (["--task", "ruler-4k:niah_singl_1"], ["'niah_singl_1'", "did you mean 'niah_single_1'", "cwe"]),
    "bad length": (["--task", "ruler-0k"], ["0k"]),
    "unknown model": (["--model", "smollm2-135"], ["'smollm2-135'", "did you mean 'smollm2-135m'"]),
    "hub model offline": (["--model", "nobody/nothing"], ["'nobody/nothing'", "hub"]),
    "missing gguf": (["--model", "there/is/no.gguf"], ["'there/is/no.gguf'"]),
    "empty model folder": (["--model", "tests"], ["'tests'", "config.json"]),
    "budget 0": (["--budgets", "0"], ["'0'", "1 up"]),
    "budget -5": (["--budgets", "-5"], ["'-5'", "1 up"]),
    "budget abc": (["--budgets", "abc"], ["'abc'", "1 up"]),
    "budget 300%": (["--budgets", "300%"], ["'300%'", "100%"]),
    "no budget": (["--budgets", ""], ["no budgets"]),
    "bad placement": (["--question", "befor"], ["'befor'", "inside", "after"]),
    "bad protection": (["--protect", "4"], ["'4'", "4,16"]),
    "bad dtype": (["--dtype", "float31"], ["'float31'", "did you mean 'float32'"]),
    "bad device": (["--device", "gpu"], ["'gpu'", "cpu"]),
    "bad limit": (["--limit", "0"], ["--limit", "greater than or equal to 1"]),
    "unknown option": (["--budget", "3"], ["--budget", "--budgets"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_gets_one_sentence_and_exit_code_2(case: str, model_folder: Path, tmp_path: Path) -> None:
    given, words = WRONG[case]
    usual = {
        "--model": str(model_folder),
        "--press": "k_norm",
        "--task": TASK,
        "--budgets": "8",
        "--results": str(tmp_path / "results"),
    }
    usual.update(dict([given]))
    done = kvbench("run", *(piece for option in usual.items() for piece in option))
    sentence = error_of(done)
    assert done.returncode == 2, sentence
    for word in words:
        assert word in sentence


def test_tables_and_comparisons_of_named_tasks(tmp_path: Path) -> None:
    for task in ("ruler-4k", "boolq", "oasst2"):
        simulate(tmp_path, make_protocol(task=task), {"kvp": 5.0, "tova": 7.0}, ("64", "256"), samples=3)
    table = kvbench("table", str(tmp_path), "--metric", "auc", "--task", "oasst2,boolq")
    assert table.returncode == 0, table.stderr
    assert table.stdout.splitlines()[1].split() == ["press", "oasst2", "at", "95%", "boolq", "at", "95%"]
    for others in (["tova"], []):
        compared = kvbench("compare", str(tmp_path), "kvp", *others, "--task", "oasst2", "--task", "boolq")
        assert compared.returncode == 0, compared.stderr
        assert re.findall(r"smollm2-135m · (\w+)", compared.stdout) == ["oasst2", "boolq"]
    wrong = kvbench("table", str(tmp_path), "--task", "bolq")
    assert wrong.returncode == 2
    assert "did you mean 'boolq'?" in error_of(wrong)


def test_a_results_folder_that_cannot_be_used_is_named(model_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    for path in (file, Path("/proc/kvbench-results")):
        done = kvbench(*run_arguments(model_folder, path, "--press", "k_norm", "--budgets", "8"))
        assert done.returncode == 2
        assert str(path) in error_of(done)
    for command in ("table", "plot"):
        done = kvbench(command, str(tmp_path / "nothing"))
        assert done.returncode == 2
        assert str(tmp_path / "nothing") in error_of(done)


def test_a_foreign_record_file_is_named_with_its_line(model_folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    run = run_arguments(model_folder, results, "--press", "k_norm", "--budgets", "8", "--limit", "1")
    assert kvbench(*run).returncode == 0
    [file] = results.glob("records/*.jsonl")
    with file.open("a") as stream:
        stream.write('{"somebody": "else"}\n')
    for arguments in (run, ("table", str(results))):
        done = kvbench(*arguments)
        assert done.returncode == 2
        assert f"{file.name}" in error_of(done)
        assert re.search(r"line 3\b|:3\b", error_of(done))


def test_a_torn_last_line_is_no_obstacle(model_folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    run = run_arguments(model_folder, results, "--press", "k_norm", "--budgets", "8,16", "--limit", "1")
    assert kvbench(*run).returncode == 0
    whole = cells(results)
    [file] = results.glob("records/*.jsonl")
    file.write_bytes(file.read_bytes()[:-40])
    assert kvbench("table", str(results)).returncode == 0
    summary = json.loads(kvbench(*run, "--json").stdout)
    assert (summary["cells"], summary["already_done"]) == (1, 2)
    assert cells(results) == whole
    assert len(load(results).frame) == 3


def test_a_sample_beyond_the_models_window_fails_counted_and_with_its_reason(
    model_folder: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    done = kvbench(
        "run", "--model", str(model_folder), "--task", "ruler-8k:fwe", "--results", str(results),
        "--press", "k_norm", "--budgets", "8", "--limit", "1",
    )  # fmt: skip
    assert done.returncode == 1
    assert "2 of 2 cells failed" in error_of(done)
    assert all("4096 that" in record["error"] and record["score"] is None for record in lines(results))


@pytest.mark.parametrize("name", ["snapkv", "kvp", "full", "ruler", "ruler-4k"])
def test_info_describes_presses_and_tasks(name: str) -> None:
    done = kvbench("info", name)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert json.loads(kvbench("info", name, "--json").stdout)["name"] == name


def test_without_a_command_the_help_is_shown() -> None:
    done = kvbench()
    assert "Answer tasks under presses and budgets" in done.stdout
    assert (done.returncode, done.stderr.strip()) == (2, "")


def test_info_and_list_name_the_nearest_match() -> None:
    assert "did you mean 'snapkv'" in error_of(kvbench("info", "snpkv"))
    assert "did you mean 'presses'" in error_of(kvbench("list", "press"))


def test_check_reports_the_contract_and_time() -> None:
    done = kvbench("check", "k_norm")
    assert done.returncode == 0, done.stderr
    assert "ms" in done.stdout
    assert json.loads(kvbench("check", "k_norm", "--json").stdout)["passed"]


def test_kvp_without_a_checkpoint_says_how_to_get_one(model_folder: Path, tmp_path: Path) -> None:
    done = kvbench(*run_arguments(model_folder, tmp_path / "r", "--press", "kvp", "--budgets", "8"))
    assert done.returncode == 2
    assert "checkpoint" in error_of(done)


def test_doctor_examines_this_machine() -> None:
    done = kvbench("doctor")
    assert done.returncode == 0, done.stderr
    for word in ("torch", "threads", "presses", "smollm2-135m"):
        assert word in done.stdout


def test_samples_of_other_data_are_not_mixed_into_a_folder(model_folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    run = run_arguments(model_folder, results, "--press", "k_norm", "--budgets", "8", "--limit", "1")
    assert kvbench(*run).returncode == 0
    [file] = results.glob("records/*.jsonl")
    file.write_text(re.sub(r'"sample_hash":"[0-9a-f]{16}"', '"sample_hash":"0123456789abcdef"', file.read_text()))
    done = kvbench(*run)
    assert done.returncode == 2
    assert "another sample 'fwe/0'" in error_of(done)
