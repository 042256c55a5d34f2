"""Damaged files for the parsers of what others may hand over: records, protocols, checkpoints, traces, trainings.

Each input is a sound file with a few bytes changed, cut, repeated or put in; a parser must take it or refuse it with
one sentence of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from kvbench.agents import Agents, AgentShape, AgentsInfo, load_agents, save_agents
from kvbench.errors import KvbenchError
from kvbench.record_table import read_records
from kvbench.store import ResultsFolder, load
from kvbench.traces import (
    MANIFEST,
    Trace,
    TraceEntry,
    TraceManifest,
    Traces,
    is_taken,
    read_manifest,
    sequence_file,
    write_sequence,
)
from kvbench.training.state import TrainingState
from kvbench.validate import validate
from simulated import make_protocol, make_record

PIECES = (
    b"null", b"NaN", b"Infinity", b"-1", b"1e999", b"99999999999999999999", b'"', b"{", b"}", b"[", b"]", b",", b":",
    b"\n", b"\x00", b"\xff\xfe", b"\\ud800", b"true", b"{}", b"../../", b"cos\nsystem\n(S'id'\ntR.", b"\x80\x04",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A parser and a sound file for it.

    Attributes:
        name: Of the parser.
        make: Writes a sound input into a folder and returns the file to damage.
        read: Reads the folder or the file.
    """

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], object]

    def try_one(self, folder: Path, seed: int) -> bool:
        """Let the parser read one damaged file; return whether it took it.

        Raises:
            Exception: Anything but a `KvbenchError` of one line.
        """
        folder.mkdir(exist_ok=True)
        sound = folder / "sound"
        if not sound.exists():
            file = self.make(folder)
            sound.write_bytes(file.read_bytes())
            (folder / "name").write_text(str(file))
        file = Path((folder / "name").read_text())
        file.write_bytes(damaged(sound.read_bytes(), Random(seed)))
        try:
            self.read(file)
        except KvbenchError as error:
            if "\n" in str(error):
                raise AssertionError(f"more than a sentence: {error}") from error
            return False
        return True


def damaged(content: bytes, random: Random) -> bytes:
    """Change some bytes, mostly in the first kilobyte, where headers are."""
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        place = random.randrange(min(len(changed), random.choice((16, 1024, 1 << 20))) + 1)
        kind = random.randrange(5)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << random.randrange(8)
        elif kind == 1:
            changed[place:place] = random.choice(PIECES)
        elif kind == 2:
            del changed[place : place + random.randrange(1, 64)]
        elif kind == 3:
            changed[place : place + random.randrange(8)] = random.randbytes(random.randrange(8))
        elif random.random() < 0.1:
            del changed[place:]
    return bytes(changed)


def _records(folder: Path) -> Path:
    results = ResultsFolder(folder)
    with results.writer() as writer:
        records = [make_record(budget="64"), make_record(budget="128", score=None)]
        writer.append(make_protocol(), records)
    return results.records_file(make_protocol())


def _protocol(folder: Path) -> Path:
    return _records(folder).with_suffix(".protocol.json")


def _checkpoint(folder: Path) -> Path:
    shape = AgentShape(head_dim=2, hidden=2, position_features=1, positions=2)
    info = AgentsInfo(model="tiny", layers=1, kv_heads=1, shape=shape)
    save_agents(Agents.untrained(info, 0), folder / "agents.safetensors")
    return folder / "agents.safetensors"


ENTRY = TraceEntry(task="t", subtask="s", sample="s/0", sample_hash="0", source="0", cuts=(4, 9))
WEIGHTS = {"key": torch.zeros(2, 3), "score": torch.ones(2, 1)}


def _manifest(folder: Path) -> Path:
    manifest = TraceManifest(
        model="m",
        weights="w",
        model_layers=2,
        layers=(0, 1),
        kv_heads=2,
        head_dim=8,
        scaling=(0.5, 0.5),
        dtype="float32",
        attention="sdpa",
        device="cpu",
        seed=1,
        cuts=2,
        rollout=8,
        data={"t:s": "generated"},
        sequences=[ENTRY],
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    return folder / MANIFEST


def _sequence(folder: Path) -> Path:
    _manifest(folder)
    (folder / "sequences").mkdir()
    states = torch.zeros(2, 2, ENTRY.tokens, 8, dtype=torch.float16)
    future = {cut: torch.ones(2, 2, cut) for cut in ENTRY.cuts}
    write_sequence(folder, 0, Trace(ENTRY, states, states + 1, future, 4))
    return sequence_file(folder, 0)


def _read_sequence(file: Path) -> None:
    folder = file.parents[1]
    taken = is_taken(folder, 0, ENTRY)
    Traces(folder).read(0)
    assert taken


def _training(folder: Path) -> Path:
    state = TrainingState.new(WEIGHTS)
    state.curve.append({"step": 1, "cost": 1.5})
    state.save(folder / "agents.training.safetensors", "identity")
    return folder / "agents.training.safetensors"


TARGETS = [
    Target("records", _records, read_records),
    Target("results", _records, lambda file: load(file.parents[1])),
    Target("validate", _records, lambda file: validate(file.parents[1])),
    Target("protocol", _protocol, lambda file: load(file.parents[1])),
    Target("checkpoint", _checkpoint, load_agents),
    Target("traces", _manifest, lambda file: read_manifest(file.parent)),
    Target("sequence", _sequence, _read_sequence),
    Target("training", _training, lambda file: TrainingState.load(file, "identity", WEIGHTS)),
]
