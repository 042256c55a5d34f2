"""Commands in processes of their own, which a test may kill, interrupt or starve.

They are forked from a server that has imported everything, because a test of faults starts dozens of them.
"""

import ctypes
import json
import multiprocessing
import multiprocessing.forkserver
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from command_line import Done

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["warm"])


@dataclass(frozen=True)
class Limits:
    """What a process has to do with.

    Attributes:
        file_bytes: How large a file may get: a write beyond it stops in the middle, as on a full disk.
        root_is_nobody: Whether root, too, needs a permission to write.
        clock_seed: Of a clock that jumps by years.
        rows: How many variants fit into memory at once.
    """

    file_bytes: int | None = None
    root_is_nobody: bool = False
    clock_seed: int | None = None
    rows: int | None = None

    def apply(self) -> None:
        """Limit this process."""
        if self.file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_bytes, resource.RLIM_INFINITY))
        if self.root_is_nobody:
            _drop_capabilities()
        if self.clock_seed is not None:
            random, now = Random(self.clock_seed), time.time
            time.time = lambda: now() + random.uniform(-3e8, 3e8)
        if self.rows is not None:
            _starve(self.rows)


def _drop_capabilities() -> None:
    """Give up root's right to pass over permissions, through Linux's capset."""
    version_3 = 0x20080522
    header = struct.pack("Ii", version_3, 0)
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)):
        raise OSError(ctypes.get_errno(), "capset")


def _starve(rows: int) -> None:
    """Let memory run out whenever the model gets more rows than that."""
    from kvbench.models import Model

    enough = Model._logits

    def scarce(self: Model, tokens: Tensor, *more: Any) -> Tensor:
        if len(tokens) > rows:
            raise torch.OutOfMemoryError("3 GB more than there is")
        return enough(self, tokens, *more)

    Model._logits = scarce  # type: ignore[method-assign]


class Command:
    """A `kvbench` command that is running."""

    def __init__(self, folder: Path, *arguments: object, limits: Limits = Limits()) -> None:
        """Start it; what it prints goes to files in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.stdout, self.stderr = folder / "stdout", folder / "stderr"
        with _server_finds_the_tests():
            self.process = _CONTEXT.Process(
                target=_run, args=(list(map(str, arguments)), self.stdout, self.stderr, limits)
            )
            self.process.start()

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self.process.pid
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.process.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and wait until it is gone."""
        self.process.kill()
        self.process.join()

    def wait(self, seconds: float = 120) -> Done:
        """Wait until it ends by itself."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running after {seconds} s: {self.stderr.read_text()}"
        return Done(self.process.exitcode, self.stdout.read_text(), self.stderr.read_text())

    def wait_for(self, lines: int, results: Path) -> None:
        """Wait until there are so many records in a results folder, or the process has ended."""
        while self.process.is_alive() and _lines_in(results) < lines:
            time.sleep(0.005)


def _lines_in(results: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in results.glob("records/*.jsonl"))


def records_in(results: Path) -> list[dict[str, Any]]:
    """Read the records of a folder that may be being written to, a torn last line aside."""
    text = "".join(file.read_text(errors="replace") for file in sorted(results.glob("records/*.jsonl")))
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _run(arguments: list[str], stdout: Path, stderr: Path, limits: Limits) -> None:
    for path, descriptor in ((stdout, 1), (stderr, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # what it starts itself finds what it finds
    limits.apply()
    from kvbench.cli import main

    sys.argv = ["kvbench", *arguments]
    main()


@contextmanager
def _server_finds_the_tests() -> Iterator[None]:
    """Start the server, if it is not running, with a path on which it finds what to import."""
    before = os.environ.get("PYTHONPATH")
    tests = Path(__file__).parent
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tests), str(tests.parent), *filter(None, [before])])
    try:
        multiprocessing.forkserver.ensure_running()
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
