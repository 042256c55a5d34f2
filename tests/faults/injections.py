"""Faults injected into real runs, and what was lost or counted twice.

Each function injects one kind of fault a number of times and says how many records were lost or doubled. The tests
call them with few repeats, `benchmarks/faults.py` with many.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from faults import faulty
from kvbench.record_table import read_records
from kvbench.records import Record
from kvbench.store import ResultsFolder, load
from kvbench.validate import validate
from plug_ins import EXAMPLE, on_path, register
from processes import Command, Limits, records_in
from tiny_models import CONFIGS, tiny_network, tiny_tokenizer


@dataclass(frozen=True)
class Tally:
    """What came of injecting a fault: both counts must be 0."""

    fault: str
    injections: int
    lost: int
    double: int


class Sweep:
    """A sweep of a tiny model that takes about two seconds.

    Attributes:
        folder: Where models, plug-ins and outputs are.
        model: The model's folder.
        whole: What a run without faults records, by key.
    """

    def __init__(self, folder: Path) -> None:
        """Make the model and the plug-ins, and run the sweep once without faults."""
        self.folder = folder
        self.model = folder / "tiny-llama"
        tiny_network(CONFIGS["llama"], torch.float32).save_pretrained(self.model)
        tiny_tokenizer().save_pretrained(self.model)
        presses = {"strided": "kvbench_example.strided:Strided", "weighty": "weighty:Weighty"} | faulty.PRESSES
        register(folder / "plug-ins", "example", presses, {"recall": "kvbench_example.recall:Recall"})
        self._started = 0
        self.whole: dict[str, Any] = {}

    @contextmanager
    def ready(self) -> Iterator[Sweep]:
        """Let processes find the plug-ins, and learn what a run without faults records."""
        with on_path(self.folder / "plug-ins", EXAMPLE, Path(faulty.__file__).parent):
            self.run(self.folder / "whole")
            self.whole = outcomes(self.folder / "whole")
            yield self

    def arguments(self, results: Path, **changes: str | int) -> list[str]:
        """Return a command line of the sweep."""
        options: dict[str, str | int] = {
            "model": str(self.model),
            "dtype": "float32",
            "task": "recall",
            "press": "strided,k_norm",
            "budgets": "8,32",
            "limit": 20,
            "results": str(results),
        }
        return ["run", *(f"--{name}={value}" for name, value in (options | changes).items())]

    def start(self, results: Path, limits: Limits = Limits(), **changes: str | int) -> Command:  # noqa: B008
        """Start the sweep in a process of its own."""
        self._started += 1
        folder = self.folder / "output" / str(self._started)
        return Command(folder, *self.arguments(results, **changes), limits=limits)

    def run(self, results: Path, **changes: str | int) -> None:
        """Run the sweep to its end."""
        done = self.start(results, **changes).wait()
        assert done.returncode == 0, done.stderr

    def judge(self, fault: str, injections: int, results: Path, promised: set[str]) -> Tally:
        """Finish the sweep and compare it with one without faults.

        Args:
            fault: What was injected.
            injections: How often.
            results: What it was injected into.
            promised: Keys of records that were seen on disk, or that the run said were.
        """
        before = {record["key"] for record in records_in(results) if record["status"] == "ok"}
        self.run(results)
        report = validate(results)
        assert not report.findings, report.findings
        after = outcomes(results)
        lost = (promised - before) | {key for key in self.whole if after.get(key) != self.whole[key]}
        counts = Counter(record["key"] for record in records_in(results) if record["status"] == "ok")
        double = sum(count - 1 for count in counts.values())
        assert len(load(results).frame) == len(self.whole)
        return Tally(fault, injections, len(lost), double)


def outcomes(results: Path) -> dict[str, Any]:
    """Return what each finished cell is worth, by key."""
    fields = ("press", "budget", "sample", "question", "score", "prediction", "kept_bytes")
    return {
        record["key"]: [record[field] for field in fields] for record in records_in(results) if record["status"] == "ok"
    }


def keys_in(results: Path) -> set[str]:
    """Return the keys of the finished records on disk."""
    return {record["key"] for record in records_in(results) if record["status"] == "ok"}


def said_to_be_done(stderr: Path) -> int:
    """Return how many cells a run's last progress line counts."""
    counts = re.findall(r": (\d+)/\d+ cells", stderr.read_text())
    return int(counts[-1]) if counts else 0


def kills(sweep: Sweep, times: int) -> Tally:
    """SIGKILL one sweep at random moments, each time after it has gone on."""
    results, random, promised = sweep.folder / "killed", Random(0), set[str]()
    for _ in range(times):
        before = len(keys_in(results))
        command = sweep.start(results)
        command.wait_for(before + 1, results)
        time.sleep(random.uniform(0, 1.2 / times))
        command.kill()
        found = keys_in(results)
        assert len(found) >= before + said_to_be_done(command.stderr)
        assert promised <= found
        promised = start_over_if_finished(sweep, results, found)
    return sweep.judge("SIGKILL at a random moment", times, results, promised)


def interrupts(sweep: Sweep, times: int) -> Tally:
    """SIGINT: the run stops after the sample, says how to go on, and exits with 130."""
    results, promised = sweep.folder / "interrupted", set[str]()
    for _ in range(times):
        command = sweep.start(results)
        command.wait_for(len(keys_in(results)) + 1, results)
        command.send(signal.SIGINT)
        done = command.wait()
        assert done.returncode == 130, done.stderr
        assert "stopping after this sample" in done.stderr
        assert "the same command goes on from there" in done.stderr, done.stderr
        assert "cells computed" in done.stdout
        found = keys_in(results)
        assert promised <= found
        assert len(found) % 5 == 0  # whole samples: a prompt has five cells
        promised = start_over_if_finished(sweep, results, found)
    return sweep.judge("SIGINT", times, results, promised)


def start_over_if_finished(sweep: Sweep, results: Path, found: set[str]) -> set[str]:
    """Empty a folder that leaves the next fault nothing to strike; return the keys that must stay in it."""
    if len(found) < 0.9 * len(sweep.whole):
        return found
    assert found == outcomes(results).keys() <= sweep.whole.keys()
    shutil.rmtree(results)
    return set()


def full_disks(sweep: Sweep, times: int) -> Tally:
    """The disk is full in the middle of a write: an error, and what was finished is there."""
    results, promised = sweep.folder / "full-disk", set[str]()
    whole = next((sweep.folder / "whole").glob("records/*.jsonl")).stat().st_size
    for number in range(times):
        limits = Limits(file_bytes=whole * (number + 1) // (times + 2))
        done = sweep.start(results, limits).wait()
        assert done.returncode == 1, done.stderr
        assert re.search(r"error: cannot write to .*\.jsonl: file too large", done.stderr)
        promised |= keys_in(results)
    return sweep.judge("disk full (file size limit)", times, results, promised)


def full_file_systems(sweep: Sweep, times: int) -> Tally:
    """A file system of its own is full: needs the right to mount one."""
    promised, results = set[str](), sweep.folder / "full-file-system"
    whole = next((sweep.folder / "whole").glob("records/*.jsonl")).stat().st_size // 1024
    for number in range(times):
        kilobytes = 32 + whole * (number + 1) // (times + 2)  # 32 for the files beside the records
        with small_file_system(sweep.folder / f"mount-{number}", kilobytes) as mounted:
            if results.exists():
                shutil.copytree(results, mounted / "results")
            done = sweep.start(mounted / "results").wait()
            assert done.returncode in (1, 2), done.stderr
            assert "no space left on device" in done.stderr
            promised |= keys_in(mounted / "results")
            shutil.copytree(mounted / "results", results, dirs_exist_ok=True)
    return sweep.judge("disk full (file system)", times, results, promised)


@contextmanager
def small_file_system(folder: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a file system of that size; skipped by tests where that is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def read_only_folders(sweep: Sweep, times: int) -> Tally:
    """The folder may not be written to: refused before anything is computed."""
    results = sweep.folder / "read-only"
    sweep.start(results, limit=1).wait()
    promised = keys_in(results)
    parts = (results, results / "records", results / "environments")
    for number in range(times):
        locked = parts[number % 2 :: 2] if number % 2 else parts
        for part in locked:
            part.chmod(0o500)
        files = list(results.glob("records/*"))
        for file in files:
            file.chmod(0o400)
        try:
            done = sweep.start(results, Limits(root_is_nobody=True)).wait()
        finally:
            for part in locked:
                part.chmod(0o700)
            for file in files:
                file.chmod(0o600)
        assert done.returncode in (1, 2), done.stderr
        assert re.search(r"cannot (be written|write) to.*: permission denied", done.stderr)
    return sweep.judge("read-only folder", times, results, promised)


def second_writers(sweep: Sweep, times: int) -> Tally:
    """A second run on a folder is refused with the first one's process and host; then goes on where that ended."""
    results = sweep.folder / "two-writers"
    first = sweep.start(results)
    first.wait_for(1, results)
    for _ in range(times):
        assert first.process.is_alive()
        first.send(signal.SIGSTOP)  # however slow the second one starts
        done = sweep.start(results).wait()
        first.send(signal.SIGCONT)
        assert done.returncode == 2
        assert f"is being written to by process {first.pid} on {socket.gethostname()}" in done.stderr
    assert first.wait().returncode == 0
    return sweep.judge("second writer", times, results, keys_in(results))


def racing_writers(sweep: Sweep, times: int) -> Tally:
    """Several runs start at once: one does the work, and nobody computes it again."""
    results = sweep.folder / "racing"
    for _ in range(times):
        racing = [sweep.start(results, limit=4) for _ in range(3)]
        codes = sorted(command.wait().returncode for command in racing)
        assert codes[0] == 0
        assert set(codes) <= {0, 2}
    return sweep.judge("runs started at once", 3 * times, results, keys_in(results))


def clock_jumps(sweep: Sweep, times: int) -> Tally:
    """The machine's clock jumps by years, forwards and back, all the time."""
    results = sweep.folder / "clock"
    for number in range(times):
        done = sweep.start(results, Limits(clock_seed=number), limit=2 * number + 1).wait()
        assert done.returncode == 0, done.stderr
    return sweep.judge("clock jumps", times, results, keys_in(results))


def cuts(sweep: Sweep, times: int | None = None) -> Tally:
    """A record file is cut at every byte offset (at most at so many): whole records stay, the rest is missing."""
    original = sweep.folder / "whole"
    results = sweep.folder / "cut"
    protocol = next(iter(load(original).protocols.values()))
    name = ResultsFolder(original).records_file(protocol).name
    content = (original / "records" / name).read_bytes()
    content = b"".join(content.splitlines(keepends=True)[:3])
    shutil.copytree(original, results)
    file = results / "records" / name
    file.write_bytes(content)
    records = [Record.model_validate_json(line) for line in content.splitlines()]
    ends = [len(b"".join(content.splitlines(keepends=True)[: number + 1])) for number in range(len(records))]
    offsets = range(0, len(content) + 1, max(1, len(content) // times) if times else 1)
    lost = double = 0
    folder = ResultsFolder(results)
    for cut in offsets:
        file.write_bytes(content[:cut])
        finished = folder.finished(protocol)
        promised = {record.key for record, end in zip(records, ends, strict=True) if end <= cut}
        lost += len(promised - finished)
        with folder.writer() as writer:
            writer.append(protocol, [record for record in records if record.key not in finished])
        keys = read_records(file, ["key"])["key"].to_pylist()
        lost += len({record.key for record in records} - set(keys))
        double += len(keys) - len(set(keys))
    tally = sweep.judge("record file cut at a byte offset", len(offsets), results, keys_in(results))
    return Tally(tally.fault, tally.injections, tally.lost + lost, tally.double + double)


def failing_presses(sweep: Sweep, times: int) -> Tally:
    """A press gives NaN, no permutation, an exception or no memory: it alone fails, for that sample alone."""
    results = sweep.folder / "failing-presses"
    presses = ",".join(["strided", "k_norm", *faulty.PRESSES])
    injected = 0
    for number in range(times):
        done = sweep.start(results, press=presses, limit=2 * number + 4).wait()
        assert done.returncode == 1, done.stderr
        last = {record["key"]: record for record in records_in(results)}.values()
        failed = [record for record in last if record["status"] == "failed"]
        assert f"{len(failed)} of " in done.stderr  # counted
        injected += len(failed)
        assert {record["press"] for record in failed} == set(faulty.PRESSES)
        for record in failed:
            assert faulty.REASONS[record["press"]] in record["error"], record["error"]
            assert record["score"] is None
        struck = {(record["press"], record["sample"]) for record in failed}
        for record in last:
            if (record["press"], record["sample"]) not in struck:
                assert record["status"] == "ok"
        ok_presses = {record["press"] for record in last if record["status"] == "ok"}
        assert set(faulty.PRESSES) <= ok_presses  # the lucky half
    report = validate(results)
    assert not report.findings, report.findings
    assert report.failed == len(failed)
    return judged_beside(sweep, "a press fails", injected, results)


def judged_beside(sweep: Sweep, fault: str, injections: int, results: Path) -> Tally:
    """Judge the presses of the usual sweep in a folder that holds others too."""
    sweep.run(results)
    after = outcomes(results)
    lost = {key for key in sweep.whole if after.get(key) != sweep.whole[key]}
    counts = Counter(record["key"] for record in records_in(results) if record["status"] == "ok")
    return Tally(fault, injections, len(lost), sum(count - 1 for count in counts.values()))


def long_samples(sweep: Sweep, times: int) -> Tally:
    """Samples longer than the model's window fail with the reason, counted; others go on."""
    results = sweep.folder / "long"
    done = sweep.start(results, task="recall-60,recall", limit=times).wait()
    assert done.returncode == 1
    failed = [record for record in records_in(results) if record["status"] == "failed"]
    assert len(failed) == 2 * 2 * 5 * times  # corridors, questions, cells
    assert all("more than the 512 that tiny-llama knows" in record["error"] for record in failed)
    assert f"{len(failed)} of {2 * len(failed)} cells failed" in done.stderr
    assert not validate(results).findings
    return judged_beside(sweep, "sample longer than the window", 2 * 2 * times, results)


def starved(sweep: Sweep, times: int) -> Tally:
    """Memory runs out with more than so many variants at once: half as many go on, and it says so."""
    results = sweep.folder / "starved"
    for number in range(times):
        done = sweep.start(results, Limits(rows=2 + number % 3), limit=2 * number + 2).wait()
        assert done.returncode == 0, done.stderr
        assert re.search(
            r"out of memory with \d variants of north/\d+ at once: going on with \d at a time", done.stderr
        )
        assert done.stderr.count("out of memory") <= 2  # learned, not found out anew for every sample
    return sweep.judge("out of memory", times, results, keys_in(results))
