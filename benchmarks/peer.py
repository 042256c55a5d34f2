"""A sweep's time beside kvpress: the same weights, samples, presses and budgets, taking turns on one machine.

    python -m venv PEER && PEER/bin/pip install kvpress==0.5.5 'transformers<5.3'
    python benchmarks/peer.py PEER/bin/python --output results/benchmarks/peer.json

kvpress runs in a process of its own, driven over pipes, with the tokens that kvbench's task gives; neither side's time
has tokenisation or loading in it. kvpress answers one cell after the other, each with its own prefill; after every
press of it kvbench answers the whole grid once, so that both meet the machine in the same states. No tokens are
protected, as in kvpress. Where both define the same ranking, answers are compared: in float32 they should agree, in
bfloat16 rounding parts some.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from kvbench.after_prefill import run_prompt
from kvbench.environment import describe_environment
from kvbench.models import Model, ModelSource, choose_dtype, find, quieten_transformers
from kvbench.prompts import Prompt, prompts_of
from kvbench.ranking import Protect
from kvbench.registry import make_press, make_task
from kvbench.task import Question
from kvbench.variants import Job, Outcome, Variant

PRESSES = ("random", "streaming_llm", "k_norm", "keydiff", "snapkv", "tova", "lagkv")
SAME_RANKING = ("streaming_llm", "k_norm", "keydiff", "snapkv", "tova")
"""Random numbers differ, and kvpress's LagKV leaves the order between partitions to how topk breaks ties."""
BUDGETS = (128, 256, 512, 1024, 1536, 2048, 2560, 3072)
ONE = Variant("keydiff", 1024)


def main() -> None:
    """Measure, print, and write the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", help="The Python of the environment with kvpress.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--task", default="ruler-4k:niah_single_1")
    parser.add_argument("--question", choices=["inside", "after"], default="inside")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--single-rounds", type=int, default=9, help="Rounds of one press at one budget.")
    parser.add_argument("--dtype", help="Of both; by default what kvbench chooses here.")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    quieten_transformers()
    dtype = choose_dtype(options.dtype, "cpu")
    source = find(options.model)
    prompts = draw(source, options.task, options.question, options.samples)
    ours = Ours(source.load(dtype, "cpu", "sdpa"), options.new_tokens)
    with Peer(options.peer, source.folder, dtype, options.new_tokens) as peer:
        peer.answer(prompts[0], ONE)  # both touch their weights once before the clock counts
        ours.answer(prompts[0], [ONE])
        single = [measure_single(prompts[0], ours, peer) for _ in range(options.single_rounds)]
        sweeps = [measure_sweep(prompt, ours, peer) for prompt in prompts]
    figures = {
        "command": ["python", *("PEER/bin/python" if argument == options.peer else argument for argument in sys.argv)],
        "kvpress": peer.versions,
        "kvbench": {name: version(name) for name in ("kvbench", "transformers", "torch")}
        | {"threads": torch.get_num_threads()},
        "environment": describe_environment().model_dump(),
        "dtype": dtype,
        "context_tokens": [len(prompt.context) for prompt in prompts],
        "cells": len(PRESSES) * len(BUDGETS),
        "sweep": [sweep.figures for sweep in sweeps],
        "single": [{"kvpress_seconds": theirs, "kvbench_seconds": mine} for theirs, mine in single],
    }
    show(sweeps, single, dtype)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(figures, indent=2) + "\n")


def draw(source: ModelSource, task: str, placement: Any, samples: int) -> list[Prompt]:
    """Return the prompts of a task's first samples."""
    drawn = make_task(task).samples(source.tokenizer, samples, 42)
    return [prompts_of(source.tokenizer, sample, placement)[0] for sample in drawn[:samples]]


@dataclass(frozen=True)
class Ours:
    """kvbench."""

    model: Model
    new_tokens: int

    def answer(self, prompt: Prompt, variants: Sequence[Variant]) -> tuple[Outcome, float]:
        """Answer some variants of one prompt together; return also the seconds."""
        presses = {name: make_press(name) for name in {str(variant.press) for variant in variants}}
        question = Question(text="", targets=(), max_new_tokens=self.new_tokens)
        job = Job(prompt, [question], presses, variants, Protect(0, 0), 0)
        started = time.perf_counter()
        outcome = run_prompt(self.model, job)
        return outcome, time.perf_counter() - started


class Peer:
    """kvpress, in a process of its own."""

    def __init__(self, python: str, folder: Path, dtype: str, new_tokens: int):
        """Start it and wait until it has loaded the weights."""
        worker = Path(__file__).with_name("kvpress_worker.py")
        self.process = subprocess.Popen(
            [python, str(worker), str(folder), dtype], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.new_tokens = new_tokens
        self.versions = self._read()

    def __enter__(self) -> Peer:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def answer(self, prompt: Prompt, variant: Variant) -> tuple[str, float]:
        """Answer one cell; return also the seconds."""
        cell = {
            "context": prompt.context.tolist(),
            "fed": prompt.fed[0].tolist(),
            "press": variant.press,
            "budget": variant.budget,
            "new_tokens": self.new_tokens,
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(cell) + "\n")
        self.process.stdin.flush()
        given = self._read()
        return given["answer"], given["seconds"]

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("kvpress's process ended; what it said is above")
        read: dict[str, Any] = json.loads(line)
        return read


@dataclass(frozen=True)
class Sweep:
    """One sample's sweep on both sides.

    Attributes:
        theirs: Seconds of all of kvpress's cells.
        ours: Seconds of kvbench's whole grid, once after every press of kvpress.
        parts: Where kvbench's time went in the last of them.
        same: Per press of `SAME_RANKING`, how many budgets got the same answer.
    """

    theirs: float
    ours: list[float]
    parts: dict[str, float]
    same: dict[str, int]

    @property
    def ratio(self) -> float:
        """How many times faster kvbench is."""
        return self.theirs / median(self.ours)

    @property
    def figures(self) -> dict[str, Any]:
        """All of it, for a file."""
        return {
            "kvpress_seconds": self.theirs,
            "kvbench_seconds": self.ours,
            "kvbench_parts": self.parts,
            "same_answers": self.same,
        }


def measure_sweep(prompt: Prompt, ours: Ours, peer: Peer) -> Sweep:
    """Run all presses × budgets of one sample on both sides."""
    grid = [Variant(press, budget) for press in PRESSES for budget in BUDGETS]
    theirs: dict[Variant, str] = {}
    seconds, mine = 0.0, []
    for press in PRESSES:
        for variant in grid:
            if variant.press == press:
                theirs[variant], spent = peer.answer(prompt, variant)
                seconds += spent
        outcome, spent = ours.answer(prompt, grid)
        mine.append(spent)
    timings = outcome.timings
    parts = {
        "prefill": timings.prefill,
        "ranking": sum(timings.ranking.values()),
        "gathering": timings.gathering,
        "answering": timings.answering,
    }
    same = {
        press: sum(outcome.answers[variant][0].text == theirs[variant] for variant in grid if variant.press == press)
        for press in SAME_RANKING
    }
    return Sweep(seconds, mine, parts, same)


def measure_single(prompt: Prompt, ours: Ours, peer: Peer) -> tuple[float, float]:
    """Return the seconds that kvpress and kvbench take for one press at one budget."""
    _, theirs = peer.answer(prompt, ONE)
    _, mine = ours.answer(prompt, [ONE])
    return theirs, mine


def show(sweeps: Sequence[Sweep], single: Sequence[tuple[float, float]], dtype: str) -> None:
    """Print the figures."""
    console = Console()
    table = Table("cells", "kvpress, s", "kvbench, s", "ratio", "lowest", "highest", title=dtype)
    ratios = [sweep.ratio for sweep in sweeps]
    rows = [
        (len(PRESSES) * len(BUDGETS), [s.theirs for s in sweeps], [t for s in sweeps for t in s.ours], ratios),
        (1, [theirs for theirs, _ in single], [mine for _, mine in single], [a / b for a, b in single]),
    ]
    for cells, theirs, mine, times in rows:
        spread = (f"{value:.2f}" for value in (median(theirs), median(mine), median(times), min(times), max(times)))
        table.add_row(str(cells), *spread)
    console.print(table)
    parts = {part: median(sweep.parts[part] for sweep in sweeps) for part in sweeps[0].parts}
    console.print("kvbench's time:", ", ".join(f"{part} {seconds:.2f} s" for part, seconds in parts.items()))
    total = len(BUDGETS) * len(sweeps)
    agreeing = ", ".join(f"{press} {sum(s.same[press] for s in sweeps)}/{total}" for press in SAME_RANKING)
    console.print("same answers:", agreeing)


if __name__ == "__main__":
    main()
