"""The memory of a sweep beside that of a prefill that keeps the full cache.

    python benchmarks/sweep_memory.py --output results/benchmarks/sweep_memory.json

Each measurement is a process of its own, SmolLM2-135M on random tokens: after a warm-up that touches all weights, the
peak of what it holds beyond them. A sweep may take as much as the prefill with its full cache, for each press its
largest budget, and the new tokens of all variants.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from kvbench.after_prefill import run_prompt
from kvbench.environment import describe_environment
from kvbench.full_cache import FullCache
from kvbench.memory import PeakMemory
from kvbench.models import DTYPES, choose_dtype, find, quieten_transformers
from kvbench.prompts import Prompt
from kvbench.ranking import Protect
from kvbench.registry import make_press
from kvbench.task import Question
from kvbench.variants import Job, Variant

PRESSES = ("random", "streaming_llm", "k_norm", "keydiff", "snapkv", "tova", "lagkv")
BUDGETS = (128, 256, 512, 1024, 1536, 2048, 2560, 3072)


def peak(presses: Sequence[str], tokens: int, new_tokens: int, dtype: str) -> int:
    """Return the bytes that a sweep holds at most, or, without presses, a prefill with its full cache."""
    quieten_transformers()
    model = find("smollm2-135m").load(dtype, "cpu", "sdpa")
    context = torch.randint(3, 40000, (tokens,), generator=torch.Generator().manual_seed(0))
    FullCache(model, context[:64], lambda _: None)
    memory = PeakMemory(torch.device("cpu"))
    before = memory.bytes or 0
    if presses:
        prompt = Prompt(context, (torch.tensor([5]),), (0,), ((),))
        question = Question(text="", targets=(), max_new_tokens=new_tokens)
        ready = {name: make_press(name) for name in presses}
        grid = [Variant(press, budget) for press in presses for budget in BUDGETS]
        run_prompt(model, Job(prompt, [question], ready, grid, Protect(4, 16), 0))
    else:
        FullCache(model, context, lambda _: None)
    return (memory.bytes or 0) - before


def main() -> None:
    """Measure, print, and write the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    dtype = choose_dtype(options.dtype, "cpu")
    facts = find("smollm2-135m").facts
    entry = 2 * facts.layers * facts.kv_heads * facts.head_dim * DTYPES[dtype].itemsize
    sets = {"full cache": (), "1 press": PRESSES[:1], "7 presses": PRESSES}
    table = Table("", "peak, MB", "allowed, MB", title=f"{options.tokens} tokens, {len(BUDGETS)} budgets, {dtype}")
    figures: dict[str, dict[str, float]] = {}
    spawn = multiprocessing.get_context("spawn")
    for name, presses in sets.items():
        peaks = []
        for _ in range(options.rounds):
            with spawn.Pool(1) as pool:
                peaks.append(pool.apply(peak, (presses, options.tokens, options.new_tokens, dtype)))
        kept = len(presses) * max(BUDGETS) * entry
        new = len(presses) * len(BUDGETS) * (options.new_tokens + 1) * entry
        base = figures["full cache"]["peak_bytes"] if figures else median(peaks)
        figures[name] = {"peak_bytes": median(peaks), "allowed_bytes": base + kept + new}
        table.add_row(name, *(f"{value / 1e6:.0f}" for value in figures[name].values()))
    Console().print(table)
    if options.output:
        written = {"environment": describe_environment().model_dump(), "entry_bytes": entry, "figures": figures}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
