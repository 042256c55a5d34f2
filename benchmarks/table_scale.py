"""Time and peak memory of `kvbench table` on a large results folder, which this writes first.

python benchmarks/table_scale.py FOLDER            100 presses × 20 tasks × 10 budgets × 500 samples
python benchmarks/table_scale.py FOLDER --samples 50
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvbench.record_files import record_files
from kvbench.records import FULL, Protocol
from kvbench.store import ResultsFolder

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from simulated import make_protocol, make_record

CONTEXT = 32_000
BUDGETS = [32 << step for step in range(10)]


def main() -> None:
    """Write the folder unless it is there, then print its tables in a process of their own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--presses", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--options", nargs="*", default=[], help="Options of `kvbench table`, without their dashes.")
    options = parser.parse_args()
    if not options.folder.exists():
        write(options.folder, options.presses, options.tasks, options.samples)
    size = sum(file.stat().st_size for file in record_files(options.folder))
    command = [sys.executable, "-m", "kvbench", "table", str(options.folder), *(f"--{o}" for o in options.options)]
    start = time.perf_counter()
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{size / 1e9:.2f} GB of records, {printed.count(chr(10))} lines printed")
    print(f"{wall:.1f} s wall, {used.ru_utime + used.ru_stime:.1f} s CPU, {used.ru_maxrss / 1e6:.2f} GB peak")


def write(folder: Path, presses: int, tasks: int, samples: int) -> None:
    """Write results in which scores rise with the log of the budget towards the full cache's."""
    (folder / "records").mkdir(parents=True)
    random = np.random.default_rng(0)
    middles = np.sort(random.uniform(5, 13, presses))
    chances = 0.8 / (1 + np.exp(middles[:, None] - np.log2(BUDGETS)))  # [presses, budgets]
    for task in range(tasks):
        protocol = make_protocol(model="simulated", task=f"task-{task}")
        file = ResultsFolder(folder).records_file(protocol)
        file.with_suffix(".protocol.json").write_text(protocol.model_dump_json())
        with file.open("w") as stream:
            for sample in range(samples):
                stream.writelines(_lines(protocol, f"sample/{sample}", chances, random))


def _lines(protocol: Protocol, sample: str, chances: np.ndarray, random: np.random.Generator) -> Iterator[str]:
    before, after = _template(sample)
    scores = (random.binomial(4, chances) / 4).tolist()
    yield _line(before, after, protocol, sample, FULL, FULL, CONTEXT, random.binomial(4, 0.8) / 4)
    for press, row in enumerate(scores):
        for budget, score in zip(BUDGETS, row, strict=True):
            yield _line(before, after, protocol, sample, f"press_{press}", str(budget), budget, score)


def _template(sample: str) -> tuple[str, str]:
    """Return what a record of a sample has between its budget and its score, and after its score."""
    changes = {"context_tokens": CONTEXT, "compressed": True, "peak_entries": 32_024}
    record = make_record("", "256", sample, score=0.0, **changes)
    line = record.model_dump_json()
    start, middle, end = line.index('"sample"'), line.index('"score"'), line.index('"weight"')
    return line[start:middle], line[end:]


def _line(
    before: str, after: str, protocol: Protocol, sample: str, press: str, budget: str, tokens: int, score: float
) -> str:
    key = f"{hash((protocol.task, press, budget, sample)) & (1 << 64) - 1:016x}"
    return (
        f'{{"key":"{key}","environment":"0123456789abcdef","press":"{press}","press_identity":"{press:_<16}",'
        f'"budget":"{budget}","budget_tokens":{tokens},{before}"score":{score},{after}\n'
    )


if __name__ == "__main__":
    main()
