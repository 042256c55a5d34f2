"""Faults injected into runs, traces and trainings of a tiny model: what was lost or counted twice.

    python benchmarks/faults.py
    python benchmarks/faults.py run --json faults.json
    python benchmarks/faults.py parsers --inputs 100000

The suite injects the same faults, fewer times. Mounting a small file system needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from rich.console import Console  # noqa: E402

from faults import injections, learning  # noqa: E402
from faults.injections import Sweep  # noqa: E402
from faults.learning import Learning  # noqa: E402
from fuzzing import TARGETS  # noqa: E402
from kvbench.environment import describe_environment  # noqa: E402

RUN = [
    (injections.kills, 50),
    (injections.interrupts, 20),
    (injections.full_disks, 20),
    (injections.full_file_systems, 5),
    (injections.read_only_folders, 4),
    (injections.second_writers, 5),
    (injections.racing_writers, 5),
    (injections.clock_jumps, 5),
    (injections.cuts, None),
    (injections.failing_presses, 3),
    (injections.long_samples, 3),
    (injections.starved, 6),
]
TRACES = [
    (learning.kills_of_traces, 20),
    (learning.interrupts_of_traces, 5),
    (learning.full_disks_of_traces, 5),
    (learning.read_only_traces, 2),
    (learning.second_writers_of_traces, 3),
    (learning.cut_sequences, 50),
    (learning.cut_manifests, None),
]
TRAIN = [
    (learning.kills_of_trainings, 20),
    (learning.interrupts_of_trainings, 5),
    (learning.full_disks_of_trainings, 5),
    (learning.read_only_trainings, 2),
    (learning.second_writers_of_trainings, 3),
    (learning.cut_states, 200),
]
PARTS = ("run", "traces", "train", "parsers")


def inject(part: str) -> Iterator[dict[str, Any]]:
    """Inject every fault of a part and yield what came of each."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        with Sweep(folder).ready() if part == "run" else Learning(folder).ready() as subject:
            for fault, times in {"run": RUN, "traces": TRACES, "train": TRAIN}[part]:
                if fault is injections.full_file_systems and os.geteuid() != 0:
                    continue
                started = time.perf_counter()
                tally = asdict(fault(subject, times))  # type: ignore[operator]
                yield {"part": part} | tally | {"seconds": round(time.perf_counter() - started)}


def fuzz(inputs: int) -> Iterator[dict[str, Any]]:
    """Let the parsers read damaged files, `inputs` in all; any error but a sentence of kvbench's ends the script."""
    each = -(-inputs // len(TARGETS))
    for target in TARGETS:
        started = time.perf_counter()
        with TemporaryDirectory() as folder:
            taken = sum(target.try_one(Path(folder), seed) for seed in range(each))
        seconds = round(time.perf_counter() - started)
        yield {"part": "parsers", "parser": target.name, "inputs": each, "taken": taken, "seconds": seconds}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures as Markdown."""
    lines = ["| | fault | injections | lost records | double records |", "|---|---|--:|--:|--:|"]
    for row in (row for row in rows if row["part"] != "parsers"):
        lines.append(f"| {row['part']} | {row['fault']} | {row['injections']:,} | {row['lost']} | {row['double']} |")
    lines += [
        "",
        "| parser | damaged inputs | taken | refused in a sentence |",
        "|---|--:|--:|--:|",
    ]
    for row in (row for row in rows if row["part"] == "parsers"):
        refused = row["inputs"] - row["taken"]
        lines.append(f"| {row['parser']} | {row['inputs']:,} | {row['taken']:,} | {refused:,} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what faults are injected into; all by default")
    parser.add_argument("--inputs", type=int, default=100_000, help="damaged inputs for the parsers")
    parser.add_argument("--json", type=Path, help="write the figures here too, beside those of other parts")
    arguments = parser.parse_args()
    parts = arguments.parts or PARTS
    rows: list[dict[str, Any]] = []
    if arguments.json and arguments.json.exists():
        rows = [row for row in json.loads(arguments.json.read_text())["rows"] if row["part"] not in parts]
    for part in parts:
        for row in fuzz(arguments.inputs) if part == "parsers" else inject(part):
            rows.append(row)
            Console(stderr=True).print(row, highlight=False, soft_wrap=True)
            if arguments.json:
                rows.sort(key=lambda row: PARTS.index(row["part"]))
                environment = describe_environment().model_dump(mode="json")
                arguments.json.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")
    print(table(rows))
    sys.exit(any(row.get("lost") or row.get("double") for row in rows))


if __name__ == "__main__":
    main()
