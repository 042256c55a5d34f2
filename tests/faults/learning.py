"""Faults injected into `kvbench traces` and `kvbench train`, and what was lost or made twice.

A trace counts as a record by its file, bit for bit but for the order of its metadata, which safetensors draws anew in
every process; a training by the evaluations in its curve and by the agents.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from faults.injections import Tally
from kvbench.agents import load_agents
from kvbench.commands.train import STATE
from kvbench.errors import UsageError
from kvbench.traces import MANIFEST, Traces, is_taken, read_manifest, sequence_file
from kvbench.training.state import TrainingState
from plug_ins import EXAMPLE, on_path, register
from processes import Command, Limits
from tiny_models import CONFIGS, tiny_network, tiny_tokenizer


class Learning:
    """Traces of a tiny model, and a training on them; each takes about a second.

    Attributes:
        folder: Where models, plug-ins and outputs are.
        traces: What `kvbench traces` leaves without faults.
        agents: What `kvbench train` leaves without faults.
    """

    def __init__(self, folder: Path) -> None:
        """Make the model and let processes find the task."""
        self.folder = folder
        self.model = folder / "tiny-llama"
        tiny_network(CONFIGS["llama"], torch.float32).save_pretrained(self.model)
        tiny_tokenizer().save_pretrained(self.model)
        register(folder / "plug-ins", "example", tasks={"recall": "kvbench_example.recall:Recall"})
        self.traces, self.agents = folder / "whole", folder / "whole.safetensors"
        self._started = 0

    @contextmanager
    def ready(self) -> Iterator[Learning]:
        """Take the traces and train without faults."""
        with on_path(self.folder / "plug-ins", EXAMPLE):
            self.finish(self.take(self.traces))
            self.finish(self.train(self.agents))
            yield self

    def take(self, to: Path, limits: Limits = Limits(), *more: object) -> Command:  # noqa: B008
        """Start `kvbench traces`."""
        return self._start(
            limits, "traces", "--model", self.model, "--dtype", "float32", "--task", "recall", "--samples", 16,
            "--cuts", 2, "--rollout", 8, "--out", to, *more,
        )  # fmt: skip

    def train(self, to: Path, limits: Limits = Limits()) -> Command:  # noqa: B008
        """Start `kvbench train`."""
        return self._start(
            limits, "train", "--traces", self.traces, "--out", to, "--device", "cpu", "--steps", 40,
            "--batch", 2, "--tokens", 16,
        )  # fmt: skip

    def finish(self, command: Command) -> None:
        """Wait for a command that must succeed."""
        done = command.wait(300)
        assert done.returncode == 0, done.stderr

    def _start(self, limits: Limits, *arguments: object) -> Command:
        self._started += 1
        return Command(self.folder / "output" / str(self._started), *arguments, limits=limits)

    def judge_traces(self, fault: str, injections: int, to: Path) -> Tally:
        """Finish the traces and compare them with those taken without faults."""
        self.finish(self.take(to))
        whole, after = sequences(self.traces), sequences(to)
        entries = Counter(entry.sample_hash for entry in read_manifest(to).sequences)
        lost = sum(after.get(name) != content for name, content in whole.items())
        assert (to / MANIFEST).read_bytes() == (self.traces / MANIFEST).read_bytes()
        return Tally(fault, injections, lost, sum(entries.values()) - len(entries) + len(after.keys() - whole.keys()))

    def judge_training(self, fault: str, injections: int, to: Path) -> Tally:
        """Finish the training and compare its agents and its evaluations with those made without faults."""
        self.finish(self.train(to))
        whole, after = load_agents(self.agents), load_agents(to)
        curves = [[point | {"seconds": 0} for point in agents.info.training["curve"]] for agents in (whole, after)]
        lost = sum(point not in curves[1] for point in curves[0]) + (after.digest != whole.digest)
        assert not to.with_name(to.name + STATE).exists()
        return Tally(fault, injections, lost, len(curves[1]) - len({point["step"] for point in curves[1]}))


def sequences(folder: Path) -> dict[str, tuple[Any, bytes]]:
    """Return header and data of a folder's finished sequences, by file."""
    found = {}
    for file in sorted(folder.glob("sequences/*.safetensors")):
        content = file.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        found[file.name] = (json.loads(content[8:end]), content[end:])
    return found


def step_of(state: Path) -> int:
    """Return how far a training's state is; 0 if there is none."""
    try:
        return int(_info(state)["step"])
    except FileNotFoundError:
        return 0


def _info(state: Path) -> dict[str, Any]:
    with state.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return dict(json.loads(header["__metadata__"]["kvbench_training"]))


def wait_for_traces(command: Command, to: Path, more_than: int) -> None:
    """Wait until there are more sequences than that, or the command has ended."""
    while command.process.is_alive() and len(list(to.glob("sequences/*.safetensors"))) <= more_than:
        time.sleep(0.01)


def wait_for_step(command: Command, state: Path, beyond: int) -> None:
    """Wait until a training's state is beyond a step, or the command has ended."""
    while command.process.is_alive() and step_of(state) <= beyond:
        time.sleep(0.01)


def kills_of_traces(learning: Learning, times: int) -> Tally:
    """SIGKILL one `kvbench traces` at random moments, each time after it has gone on."""
    to, random, promised = learning.folder / "killed", Random(0), dict[str, Any]()
    for _ in range(times):
        if len(promised) > 12:  # nothing is left to strike
            shutil.rmtree(to)
            promised = {}
        command = learning.take(to)
        wait_for_traces(command, to, len(promised))
        time.sleep(random.uniform(0, 1 / times))
        command.kill()
        found = sequences(to)
        assert promised.items() <= found.items()
        promised = found
    return learning.judge_traces("SIGKILL at a random moment", times, to)


def kills_of_trainings(learning: Learning, times: int) -> Tally:
    """SIGKILL one `kvbench train` at random moments, each time after it has gone on."""
    to, random, promised = learning.folder / "killed.safetensors", Random(0), 0
    state = to.with_name(to.name + STATE)
    for _ in range(times):
        command = learning.train(to)
        wait_for_step(command, state, promised)
        time.sleep(random.uniform(0, 1 / times))
        command.kill()
        if to.exists():  # it was finished before the kill: begin anew
            assert load_agents(to).digest == load_agents(learning.agents).digest
            for file in (to, state):
                file.unlink(missing_ok=True)
        assert step_of(state) >= promised or not state.exists()
        promised = step_of(state)
    return learning.judge_training("SIGKILL at a random moment", times, to)


def interrupts_of_traces(learning: Learning, times: int) -> Tally:
    """SIGINT: it stops after the sequence, says how to go on, and exits with 130."""
    to, promised = learning.folder / "interrupted", dict[str, Any]()
    for _ in range(times):
        if len(promised) > 12:
            shutil.rmtree(to)
            promised = {}
        command = learning.take(to)
        wait_for_traces(command, to, len(promised))
        command.send(signal.SIGINT)
        done = command.wait()
        assert done.returncode == 130, done.stderr
        assert "stopping after this sequence" in done.stderr
        assert "the same command goes on from there" in done.stderr
        found = sequences(to)
        assert promised.items() <= found.items()
        assert f"{len(found) - len(promised)} sequences taken" in done.stdout
        promised = found
    return learning.judge_traces("SIGINT", times, to)


def interrupts_of_trainings(learning: Learning, times: int) -> Tally:
    """SIGINT: it stops after the step, keeps its state, says how to go on, and exits with 130."""
    to, promised = learning.folder / "interrupted.safetensors", 0
    state = to.with_name(to.name + STATE)
    for _ in range(times):
        if promised > 28:
            state.unlink()
            promised = 0
        command = learning.train(to)
        wait_for_step(command, state, promised)
        command.send(signal.SIGINT)
        done = command.wait()
        assert done.returncode == 130, done.stderr
        assert "stopping after this step" in done.stderr
        assert "the same command goes on from there" in done.stderr
        assert step_of(state) > promised
        promised = step_of(state)
    return learning.judge_training("SIGINT", times, to)


def full_disks_of_traces(learning: Learning, times: int) -> Tally:
    """The disk is full in the middle of a sequence: an error, and those before it are there."""
    to, promised = learning.folder / "full-disk", dict[str, Any]()
    whole = sorted(file.stat().st_size for file in learning.traces.glob("sequences/*"))
    for number in range(times):
        done = learning.take(to, Limits(file_bytes=whole[(number + 1) * len(whole) // (times + 2)])).wait()
        assert done.returncode == 1, done.stderr
        assert re.search(r"error: cannot write to .*\d+\.safetensors: file too large", done.stderr)
        assert promised.items() <= sequences(to).items()
        promised = sequences(to)
        assert sorted(file.name for file in (to / "sequences").iterdir()) == sorted(promised)
    return learning.judge_traces("disk full (file size limit)", times, to)


def full_disks_of_trainings(learning: Learning, times: int) -> Tally:
    """The disk is full when the state is written: an error, and the state before is there."""
    to = learning.folder / "full-disk.safetensors"
    state = to.with_name(to.name + STATE)
    command = learning.train(to)
    wait_for_step(command, state, 0)
    command.send(signal.SIGINT)
    command.wait()
    kept = state.read_bytes()
    for number in range(times):
        done = learning.train(to, Limits(file_bytes=1000 + len(kept) * number // times)).wait()
        assert done.returncode == 1, done.stderr
        assert re.search(r"error: cannot write to .*\.training\.safetensors: file too large", done.stderr)
        assert state.read_bytes() == kept
    return learning.judge_training("disk full (file size limit)", times, to)


def read_only_traces(learning: Learning, times: int) -> Tally:
    """The folder may not be written to: refused, and what is there stays."""
    to = learning.folder / "read-only"
    shutil.copytree(learning.traces, to)
    sequence_file(to, 0).unlink()
    for _ in range(times):
        with unwritable(to, to / "sequences"):
            done = learning.take(to, Limits(root_is_nobody=True)).wait()
        assert done.returncode == 2, done.stderr
        assert re.search(r"folder of traces .* cannot be written to: permission denied", done.stderr)
    return learning.judge_traces("read-only folder", times, to)


def read_only_trainings(learning: Learning, times: int) -> Tally:
    """The folder of the agents may not be written to: refused before anything is computed."""
    folder = learning.folder / "read-only-agents"
    folder.mkdir()
    for _ in range(times):
        with unwritable(folder):
            done = learning.train(folder / "a.safetensors", Limits(root_is_nobody=True)).wait()
        assert done.returncode == 2, done.stderr
        assert re.search(r"agents file .* cannot be written to: permission denied", done.stderr)
    return learning.judge_training("read-only folder", times, folder / "a.safetensors")


@contextmanager
def unwritable(*folders: Path) -> Iterator[None]:
    """Forbid changes in folders."""
    for folder in folders:
        folder.chmod(0o500)
    try:
        yield
    finally:
        for folder in folders:
            folder.chmod(0o700)


def second_writers_of_traces(learning: Learning, times: int) -> Tally:
    """A second run on a folder is refused with the first one's process and host."""
    to = learning.folder / "two-writers"
    first = learning.take(to)
    wait_for_traces(first, to, 0)
    _refuse_others(first, lambda: learning.take(to), times)
    return learning.judge_traces("second writer", times, to)


def second_writers_of_trainings(learning: Learning, times: int) -> Tally:
    """A second run for an agents file is refused with the first one's process and host."""
    to = learning.folder / "two-writers.safetensors"
    first = learning.train(to)
    wait_for_step(first, to.with_name(to.name + STATE), 0)
    _refuse_others(first, lambda: learning.train(to), times)
    return learning.judge_training("second writer", times, to)


def _refuse_others(first: Command, second: Callable[[], Command], times: int) -> None:
    for _ in range(times):
        assert first.process.is_alive()
        first.send(signal.SIGSTOP)
        done = second().wait()
        first.send(signal.SIGCONT)
        assert done.returncode == 2, done.stderr
        assert f"is being written to by process {first.pid} on {socket.gethostname()}" in done.stderr
    assert first.wait().returncode == 0


def cut_sequences(learning: Learning, times: int) -> Tally:
    """A sequence's file is cut at so many byte offsets: it is refused in a sentence, and taken again."""
    to = learning.folder / "cut-sequences"
    shutil.copytree(learning.traces, to)
    traces = Traces(to)
    injected = 0
    for number in (0, 1, 2):
        file = sequence_file(to, number)
        content = file.read_bytes()
        for offset in {*range(0, len(content), max(1, len(content) // times)), *range(64), len(content) - 1}:
            file.write_bytes(content[:offset])
            assert not is_taken(to, number, traces.entry(number)), offset
            _refused(lambda number=number: traces.read(number))
            injected += 1
    return learning.judge_traces("sequence file cut at a byte offset", injected, to)


def cut_manifests(learning: Learning, times: int | None = None) -> Tally:
    """The manifest is cut at every byte offset (at most at so many): refused, and no sequence is touched."""
    to = learning.folder / "cut-manifest"
    shutil.copytree(learning.traces, to)
    sequence_file(to, 0).unlink()
    content = (to / MANIFEST).read_bytes().rstrip()
    offsets = range(0, len(content), max(1, len(content) // times) if times else 1)
    before = sequences(to)
    for offset in offsets:
        (to / MANIFEST).write_bytes(content[:offset])
        _refused(lambda: read_manifest(to))
    done = learning.take(to).wait()
    assert (done.returncode, "is not a manifest of traces" in done.stderr) == (2, True), done.stderr
    assert sequences(to) == before
    shutil.copy(learning.traces / MANIFEST, to)
    return learning.judge_traces("manifest cut at a byte offset", len(offsets), to)


def cut_states(learning: Learning, times: int) -> Tally:
    """A training's state is cut at so many byte offsets: refused in a sentence; without it, it begins anew."""
    to = learning.folder / "cut-state.safetensors"
    state = to.with_name(to.name + STATE)
    command = learning.train(to)
    wait_for_step(command, state, 0)
    command.send(signal.SIGINT)
    assert command.wait().returncode == 130
    content = state.read_bytes()
    identity = str(_info(state)["identity"])
    offsets = {*range(0, len(content), len(content) // times), *range(64), len(content) - 1}
    for offset in offsets:
        state.write_bytes(content[:offset])
        _refused(lambda: TrainingState.load(state, identity, {}))
    done = learning.train(to).wait()
    assert (done.returncode, "delete it to begin anew" in done.stderr) == (2, True), done.stderr
    state.unlink()
    return learning.judge_training("training's state cut at a byte offset", len(offsets), to)


def _refused(read: Callable[[], object]) -> None:
    with pytest.raises(UsageError) as error:
        read()
    assert "\n" not in str(error.value)
