"""Traces: what is stored of a sequence, and reading it back."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvbench.errors import UsageError
from kvbench.traces import Trace, TraceEntry, TraceManifest, Traces, sequence_file, write_manifest, write_sequence

LAYERS, KV_HEADS, HEAD_DIM = (0, 2), 2, 8


def entry(sample: str = "one", cuts: tuple[int, ...] = (5, 9)) -> TraceEntry:
    return TraceEntry(task="toy", subtask="all", sample=sample, sample_hash="0" * 16, source=sample, cuts=cuts)


def manifest(*entries: TraceEntry) -> TraceManifest:
    return TraceManifest(
        model="toy",
        weights="random",
        model_layers=3,
        layers=LAYERS,
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


def trace(entry: TraceEntry) -> Trace:
    heads = (len(LAYERS), KV_HEADS)
    keys, values = torch.randn(2, *heads, entry.tokens, HEAD_DIM).half()
    return Trace(entry, keys, values, {cut: torch.rand(*heads, cut) for cut in entry.cuts}, 4)


def test_a_sequence_reads_back_as_it_was_written(tmp_path: Path) -> None:
    entries = [entry("one"), entry("two", (3,)), entry("three")]
    write_manifest(tmp_path, manifest(*entries))
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
    write_manifest(tmp_path, manifest(one))
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
    write_manifest(tmp_path, manifest(one))
    write_sequence(tmp_path, 0, trace(one))
    file = sequence_file(tmp_path, 0)
    tensors = load_file(file)
    del tensors[name]
    if replacement is not None:
        tensors[name] = replacement
    save_file(tensors, file, {"kvbench_trace": one.model_dump_json(), "future_tokens": "4"})
    with pytest.raises(UsageError, match=words):
        Traces(tmp_path).read(0)
