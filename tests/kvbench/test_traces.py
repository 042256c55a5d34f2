"""Traces: what is stored of a sequence, reading it back, and taking it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from attention_weights import attention_weights, received_after
from command_line import kvbench
from kvbench.errors import KvbenchError, UsageError
from kvbench.traces import (
    Trace,
    TraceEntry,
    TraceManifest,
    Traces,
    sequence_file,
    write_manifest,
    write_sequence,
    writing,
)
from kvbench.tracing import Drawn, draw_cuts, take_trace
from tiny_models import CONFIGS, tiny_model, tiny_network
from tiny_runs import FED, N, question, random_prompt

LAYERS, KV_HEADS, HEAD_DIM = (0, 2), 2, 8


def entry(sample: str = "one", cuts: tuple[int, ...] = (5, 9)) -> TraceEntry:
    return TraceEntry(task="toy", subtask="all", sample=sample, sample_hash="0" * 16, source=sample, cuts=cuts)


def manifest(*entries: TraceEntry) -> TraceManifest:
    return TraceManifest(
        model="toy",
        weights="random",
        model_layers=3,
        layers=LAYERS,
        scaling=(0.35, 0.35),
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype="float32",
        attention="sdpa",
        device="cpu",
        seed=1,
        cuts=2,
        rollout=3,
        sequences=list(entries),
    )


def save_manifest(path: Path, contents: TraceManifest) -> None:
    with writing(path):
        write_manifest(path, contents)


def trace(entry: TraceEntry) -> Trace:
    heads = (len(LAYERS), KV_HEADS)
    keys, values = torch.randn(2, *heads, entry.tokens, HEAD_DIM).half()
    return Trace(entry, keys, values, {cut: torch.rand(*heads, cut) for cut in entry.cuts}, 4)


def test_a_sequence_reads_back_as_it_was_written(tmp_path: Path) -> None:
    entries = [entry("one"), entry("two", (3,)), entry("three")]
    save_manifest(tmp_path, manifest(*entries))
    written = trace(entries[1])
    write_sequence(tmp_path, 1, written)
    traces = Traces(tmp_path)
    assert traces.numbers == [1]
    read = traces.read(1)
    assert (read.entry, read.future_tokens) == (entries[1], 4)
    for name in ("keys", "values"):
        assert torch.equal(getattr(read, name), getattr(written, name))
    assert read.future.keys() == {3}
    assert torch.equal(read.future[3], written.future[3])
    assert [file.name for file in sequence_file(tmp_path, 1).parent.iterdir()] == ["000001.safetensors"]


def test_what_is_no_trace_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no traces in"):
        Traces(tmp_path)
    (tmp_path / "traces.json").write_text('{"format": 2}')
    with pytest.raises(UsageError, match=r"not a manifest of traces: format: "):
        Traces(tmp_path)
    one = entry()
    save_manifest(tmp_path, manifest(one))
    file = sequence_file(tmp_path, 0)
    file.write_bytes(b"torn")
    with pytest.raises(UsageError, match="cannot be read as safetensors"):
        Traces(tmp_path).read(0)
    write_sequence(tmp_path, 0, trace(entry("another")))
    with pytest.raises(UsageError, match=r"is not the sequence of traces\.json"):
        Traces(tmp_path).read(0)


@pytest.mark.parametrize(
    ("name", "replacement", "words"),
    [
        ("values", None, "lacks the tensor 'values'"),
        ("future_5", torch.zeros(2, 2, 6), r"'future_5' is torch.float32 \(2, 2, 6\)"),
        ("keys", torch.zeros(2, 2, 9, 8), "'keys' is torch.float32"),
    ],
)
def test_a_sequence_of_other_tensors_is_refused(
    tmp_path: Path, name: str, replacement: torch.Tensor | None, words: str
) -> None:
    one = entry()
    save_manifest(tmp_path, manifest(one))
    write_sequence(tmp_path, 0, trace(one))
    file = sequence_file(tmp_path, 0)
    tensors = load_file(file)
    del tensors[name]
    if replacement is not None:
        tensors[name] = replacement
    save_file(tensors, file, {"kvbench_trace": one.model_dump_json(), "future_tokens": "4"})
    with pytest.raises(UsageError, match=words):
        Traces(tmp_path).read(0)


def drawn(cuts: tuple[int, ...], continuation: tuple[int, ...] = ()) -> Drawn:
    prompt = random_prompt()
    asked = question(6)
    if continuation:
        asked = asked.model_copy(update={"max_new_tokens": 0, "continuations": ("reply",)})
    continuations = (torch.tensor(continuation),) if continuation else ()
    return Drawn(entry("one", cuts), prompt.context, prompt.fed[0], asked, continuations)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_a_trace_holds_the_cache_and_the_future_attention_of_full_attention_layers(family: str) -> None:
    reply = (9, 8, 7, 6)
    cuts = (8, 33, N)
    wanted = drawn(cuts, reply)
    taken = take_trace(tiny_model(family), wanted)
    assert taken.future_tokens == FED + len(reply) - 1
    sequence = torch.cat([wanted.context, wanted.fed, torch.tensor(reply[:-1])])
    weights = attention_weights(family, sequence)
    assert len(weights) == {"gemma3": 1}.get(family, 3)
    cache = DynamicCache()
    tiny_network(CONFIGS[family])(wanted.context.unsqueeze(0), cache=cache, use_cache=True)
    for row, layer in enumerate(weights):
        for ours, theirs in ((taken.keys, cache.layers[layer].keys), (taken.values, cache.layers[layer].values)):
            assert theirs is not None
            torch.testing.assert_close(ours[row].double(), theirs[0].double(), atol=1e-3, rtol=1e-3)
        for cut in cuts:
            u = taken.future[cut][row]
            torch.testing.assert_close(u.double(), received_after(weights[layer], cut), atol=1e-6, rtol=1e-5)


def test_a_generated_future_is_the_full_caches_answer() -> None:
    wanted = drawn((N,))
    taken = take_trace(tiny_model("llama"), wanted)
    sequence = torch.cat([wanted.context, wanted.fed])
    generated = tiny_network(CONFIGS["llama"]).generate(
        sequence.unsqueeze(0), attention_mask=torch.ones(1, len(sequence)), max_new_tokens=6, do_sample=False
    )
    weights = attention_weights("llama", generated[0, :-1])
    assert taken.future_tokens == FED + 5
    for layer in weights:
        expected = received_after(weights[layer], N)
        torch.testing.assert_close(taken.future[N][layer].double(), expected, atol=1e-6, rtol=1e-5)


def test_keys_beyond_half_precision_are_refused() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.network.model.layers[1].self_attn.v_proj.weight.mul_(1e7)
    with pytest.raises(KvbenchError, match="sample 'one' do not fit half precision"):
        take_trace(model, drawn((N,)))


@pytest.mark.parametrize("n", [1, 2, 5, 100, 4096])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_cuts_end_with_the_context_and_none_is_very_early(n: int, count: int) -> None:
    cuts = draw_cuts(n, count, seed=3)
    assert list(cuts) == sorted(set(cuts))
    assert cuts[-1] == n
    assert cuts[0] >= max(1, n // 8)
    assert len(cuts) == min(count, n - max(1, n // 8) + 1)
    assert draw_cuts(n, count, seed=3) == cuts


def arguments(model: Path, to: Path, *more: str) -> Sequence[str]:
    return (
        *("traces", "--model", str(model), "--dtype", "float32", "--rollout", "3", "--cuts", "2"),
        *("--task", "ruler-2k:fwe", "--out", str(to), *more),
    )


def contents(to: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {file.name: load_file(file) for file in sorted(to.glob("sequences/*.safetensors"))}


def test_what_is_there_is_not_taken_again_and_more_is_added(model_folder: Path, tmp_path: Path) -> None:
    first = kvbench(*arguments(model_folder, tmp_path, "--samples", "2"))
    assert first.returncode == 0, first.stderr
    assert "2 sequences to take, 0 are there already; about" in first.stdout
    before = contents(tmp_path)
    size = sum(file.stat().st_size for file in tmp_path.glob("sequences/*"))
    more = kvbench(*arguments(model_folder, tmp_path, "--samples", "3", "--json"))
    told = json.loads(more.stdout)
    assert (told["taken"], told["already_there"]) == (1, 2)
    assert told["bytes"] > size
    traces = Traces(tmp_path)
    assert traces.numbers == [0, 1, 2]
    assert {trace.entry.sample for trace in map(traces.read, traces.numbers)} == {"fwe/0", "fwe/1", "fwe/2"}
    after = contents(tmp_path)
    for name, tensors in before.items():
        assert all(torch.equal(tensors[key], after[name][key]) for key in tensors)


def test_the_estimate_is_what_the_traces_take(model_folder: Path, tmp_path: Path) -> None:
    told = json.loads(kvbench(*arguments(model_folder, tmp_path / "t", "--samples", "2", "--dry-run", "--json")).stdout)
    assert not (tmp_path / "t").exists()
    done = json.loads(kvbench(*arguments(model_folder, tmp_path / "t", "--samples", "2", "--json")).stdout)
    assert told["sequences"] == done["taken"] == 2
    assert told["bytes"] <= done["bytes"] <= told["bytes"] + 2 * 4096  # the files' headers


def test_a_killed_run_goes_on_and_equals_an_uninterrupted_one(model_folder: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert kvbench(*arguments(model_folder, whole, "--samples", "6")).returncode == 0
    command = [sys.executable, "-m", "kvbench", *arguments(model_folder, killed, "--samples", "6")]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    while process.poll() is None and len(contents(killed)) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    there = len(contents(killed))
    assert 2 <= there < 6, "the kill came too late or too early to show anything"
    assert Traces(killed).numbers == list(range(there))
    told = json.loads(kvbench(*arguments(model_folder, killed, "--samples", "6", "--json")).stdout)
    assert (told["taken"], told["already_there"]) == (6 - there, there)
    for name, tensors in contents(whole).items():
        other = contents(killed)[name]
        assert tensors.keys() == other.keys()
        assert all(torch.equal(tensor, other[key]) for key, tensor in tensors.items())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--seed", "5"), "holds traces with seed 1729, this command's is 5: use another folder"),
        (("--cuts", "3"), "holds traces with cuts 2, this command's is 3: use another folder"),
        (("--task", "rulr"), "unknown task 'rulr'"),
        (("--data", "essays=nowhere"), "nowhere"),
    ],
)
def test_other_settings_and_wrong_names_are_refused_in_a_sentence(
    model_folder: Path, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    assert kvbench(*arguments(model_folder, tmp_path, "--samples", "1")).returncode == 0
    done = kvbench(*arguments(model_folder, tmp_path, "--samples", "1", *more))
    assert done.returncode == 2
    [*_, last] = done.stderr.strip().splitlines()
    assert last.startswith("error: ")
    assert words in last


def test_the_benchmarks_own_seed_is_warned_of(model_folder: Path, tmp_path: Path) -> None:
    done = kvbench(*arguments(model_folder, tmp_path, "--samples", "1", "--seed", "42", "--dry-run"))
    assert done.returncode == 0
    assert "seed 42 is the benchmark's own" in done.stderr


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    words = f"is being written to by process {os.getpid()} on {socket.gethostname()}"
    with writing(tmp_path), pytest.raises(UsageError, match=words), writing(tmp_path):
        pass
