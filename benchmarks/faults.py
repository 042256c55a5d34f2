"""Faults injected into sweeps of a tiny model: how many finished records were lost or counted twice.

    python benchmarks/faults.py
    python benchmarks/faults.py --fuzz 0

The suite injects the same faults, fewer times. Mounting a small file system needs root.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from faults import injections  # noqa: E402
from faults.injections import Sweep, Tally  # noqa: E402
from fuzzing import TARGETS  # noqa: E402

RUNS: list[tuple[Callable[[Sweep, int], Tally], int]] = [
    (injections.kills, 50),
    (injections.interrupts, 20),
    (injections.full_disks, 20),
    (injections.full_file_systems, 5),
    (injections.read_only_folders, 4),
    (injections.second_writers, 5),
    (injections.racing_writers, 5),
    (injections.clock_jumps, 5),
    (lambda sweep, _: injections.cuts(sweep), 0),
    (injections.failing_presses, 3),
    (injections.long_samples, 3),
    (injections.starved, 6),
]


def inject(console: Console) -> list[Tally]:
    """Inject every fault and return what came of each."""
    tallies = []
    with TemporaryDirectory() as folder, Sweep(Path(folder)).ready() as sweep:
        for run, times in RUNS:
            if run is injections.full_file_systems and os.geteuid() != 0:
                continue
            started = time.perf_counter()
            tallies.append(run(sweep, times))
            console.print(f"{tallies[-1].fault}: {time.perf_counter() - started:.0f} s", highlight=False)
    return tallies


def fuzz(inputs: int, console: Console) -> None:
    """Let the parsers read damaged files, `inputs` in all; any error but a sentence of kvbench's ends the script."""
    each = -(-inputs // len(TARGETS))
    for target in TARGETS:
        started = time.perf_counter()
        with TemporaryDirectory() as folder:
            taken = sum(target.try_one(Path(folder), seed) for seed in range(each))
        seconds = time.perf_counter() - started
        console.print(f"fuzzed {target.name}: {each} inputs, {taken} taken, {each - taken} refused, {seconds:.0f} s")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fuzz", type=int, default=100_000, help="damaged inputs for the parsers")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    table = Table("fault", "injections", "lost records", "double records")
    tallies = inject(console)
    for tally in tallies:
        table.add_row(tally.fault, f"{tally.injections:,}", str(tally.lost), str(tally.double))
    Console().print(table)
    if arguments.fuzz:
        fuzz(arguments.fuzz, console)
    sys.exit(any(tally.lost or tally.double for tally in tallies))


if __name__ == "__main__":
    main()
