"""Chunked prefill under a hard memory limit: memory and seconds per chunk as the context grows.

    python benchmarks/chunked_memory.py

Each line is a process of its own on SmolLM2-135M in float32, with KeyDiff at a budget of 512 and chunks of 2,048.
After a warm-up that touches all weights, the process may allocate `ROOM` more; the full cache of the longest
context needs more than that, and the last line shows it fail.
"""

import subprocess
import sys
import time
from pathlib import Path
from resource import RLIMIT_DATA, RUSAGE_SELF, getrusage, setrlimit

import torch

from kvbench.chunked import run_prompt_in_chunks
from kvbench.models import Model, find, quieten_transformers
from kvbench.prompts import Prompt
from kvbench.ranking import Protect
from kvbench.registry import make_press
from kvbench.task import Question
from kvbench.variants import Job, Variant

LENGTHS = (8192, 16384, 32768)
CHUNK = 2048
BUDGET = 512
ROOM = 900 << 20


def run(model: Model, n: int, variant: Variant) -> float:
    """Prefill `n` random tokens in chunks and answer two; return the seconds."""
    prompt = Prompt(torch.randint(3, 40000, (n,)), (torch.tensor([5]),), (0,), ((),))
    question = Question(text="", targets=(), max_new_tokens=2)
    presses = {"keydiff": make_press("keydiff")}
    started = time.perf_counter()
    run_prompt_in_chunks(model, Job(prompt, [question], presses, [variant], Protect(4, 16), 0), CHUNK)
    return time.perf_counter() - started


def measure(n: int, kind: str) -> None:
    """Print one line of the table, in this process."""
    quieten_transformers()
    model = find("smollm2-135m").load("float32", "cpu", "sdpa")
    run(model, CHUNK, Variant("keydiff", BUDGET))
    held = int(Path("/proc/self/statm").read_text().split()[5]) * 4096
    before = getrusage(RUSAGE_SELF).ru_maxrss
    setrlimit(RLIMIT_DATA, (held + ROOM, held + ROOM))
    try:
        seconds = run(model, n, Variant("keydiff", BUDGET) if kind == "compressed" else Variant(None, n))
        outcome = f"{seconds / (n / CHUNK):.2f} s per chunk"
    except (MemoryError, RuntimeError) as error:
        outcome = f"out of memory: {str(error).partition(chr(10))[0][:60]}"
    grown = (getrusage(RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{kind:10}  {n:6,} tokens  {grown:6.0f} MiB beyond the warm-up's peak  {outcome}", flush=True)


def main() -> None:
    """Print the table."""
    cache = 2 * 30 * 3 * 64 * 4 * LENGTHS[-1] / 2**20
    print(f"room: {ROOM >> 20} MiB; the full cache of {LENGTHS[-1]:,} tokens: {cache:.0f} MiB", flush=True)
    for n, kind in [*((n, "compressed") for n in LENGTHS), (LENGTHS[-1], "full")]:
        subprocess.run([sys.executable, __file__, str(n), kind], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]), sys.argv[2])
    else:
        main()
