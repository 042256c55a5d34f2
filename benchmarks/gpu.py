"""One script for one large GPU, under eight minutes: speed and memory in Qwen2.5-7B's shape, with random weights.

    python benchmarks/gpu.py --output results/benchmarks/gpu.json

Needs no network. Speed and memory do not depend on weights; answers do, so they are compared on a small model in
float32, the accelerator's against the processor's. Parts that the machine cannot run (FlashAttention that is not
installed, a length that does not fit) are reported with their reason, and the others go on. `--toy` is the same on
any machine in seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from ranking import RankingPrefill, all_presses, random_qwen, untrained_kvp
from rich.console import Console
from torch import Tensor

from kvbench.after_prefill import run_prompt
from kvbench.attention import AttentionCall, register
from kvbench.chunked import run_prompt_in_chunks
from kvbench.environment import describe_environment
from kvbench.models import Model, choose_device, choose_dtype, quieten_transformers
from kvbench.prompts import Prompt
from kvbench.ranking import Protect, now
from kvbench.registry import make_press
from kvbench.task import Question
from kvbench.variants import Job, Outcome, Variant

SWEEP_PRESSES = ("random", "streaming_llm", "k_norm", "keydiff", "snapkv", "tova", "lagkv")
KERNELS = ("sdpa", "flash_attention_2")
PROTECTED = Protect(4, 16)
MINUTES = 7.0
"""A part that has not begun by then is left out."""


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    layers: int
    prefills: tuple[int, ...]
    sweep: int
    budgets: tuple[int, ...]
    long: int
    chunk: int
    new_tokens: int


FULL_SIZE = Sizes(
    layers=28,
    prefills=(4096, 10_240, 131_072),
    sweep=4096,
    budgets=(128, 256, 512, 1024, 1536, 2048, 2560, 3072),
    long=131_072,
    chunk=4096,
    new_tokens=16,
)
TOY = Sizes(layers=2, prefills=(64, 128), sweep=96, budgets=(8, 16, 32, 64), long=192, chunk=48, new_tokens=4)


def main() -> None:
    """Run the parts in turn, print each, and write all if asked to.

    Raises:
        SystemExit: The accelerator's answers are not the processor's.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--device")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    quieten_transformers()
    device = choose_device(options.device)
    dtype = choose_dtype(None, device)
    report = Report(device)
    same = report.run("same answers", lambda: same_answers(device))
    sizes = TOY if options.toy else FULL_SIZE
    model = random_qwen(sizes.layers, 320 if options.toy else 152_064, dtype, device, toy=options.toy)
    for n in sizes.prefills:
        for kernel in KERNELS:
            report.run(f"prefill {n:,} {kernel}", lambda n=n, kernel=kernel: prefill(model, n, kernel))
    model.network.set_attn_implementation(register("sdpa"))
    for n, left_out in zip(sizes.prefills, ((), ("keyformer",)), strict=False):
        report.run(f"ranking {n:,}", lambda n=n, left_out=left_out: ranking(model, n, left_out))
    report.run(f"sweep {sizes.sweep:,}", lambda: sweep(model, sizes))
    report.run(f"chunked {sizes.long:,}", lambda: chunked(model, sizes))
    if options.output:
        figures = {
            "command": ["python", *sys.argv],
            "environment": describe_environment().model_dump(),
            "device": device,
            "dtype": dtype,
            "parts": report.parts,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(figures, indent=2) + "\n")
    if not (same and same["same"] == same["cells"]):
        raise SystemExit(f"answers on {device} are not those of the processor: {same}")


class Report:
    """What the parts found, each with its seconds and its peak memory on the accelerator."""

    def __init__(self, device: str):
        """Start the script's clock."""
        self.device = torch.device(device)
        self.started = time.perf_counter()
        self.parts: dict[str, dict[str, Any]] = {}
        self.console = Console()

    def run(self, name: str, part: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Run one part; none if it could not be run, for whatever reason, which is reported."""
        if time.perf_counter() - self.started > 60 * MINUTES:
            self._say(name, {"left_out": "no time"})
            return None
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() if cuda else 0
        started = now(self.device)
        try:
            found: dict[str, Any] | None = part()
        except Exception as error:  # a kernel or a driver may fail with anything, and the other parts still count
            reason = str(error).partition("\n")[0]
            self._say(name, {"left_out": f"{type(error).__name__}: {reason}"})
            return None
        spent = {"part_seconds": round(now(self.device) - started, 3)}
        if cuda:
            spent["peak_gib_beside_weights"] = round((torch.cuda.max_memory_allocated() - held) / 2**30, 3)
        self._say(name, (found or {}) | spent)
        return found

    def _say(self, name: str, found: dict[str, Any]) -> None:
        self.parts[name] = found
        self.console.print(name, found, highlight=False, soft_wrap=True)


def random_tokens(n: int) -> Tensor:
    """Return `n` tokens, the same every time."""
    return torch.randint(3, 300, (n,), generator=torch.Generator().manual_seed(n))


def job(n: int, variants: list[Variant], new_tokens: int) -> Job:
    """Return the job of answering `n` random tokens under some variants."""
    prompt = Prompt(random_tokens(n), (torch.tensor([5]),), (0,), ((),))
    presses = {name: make_press(name) for name in {str(variant.press) for variant in variants if variant.press}}
    question = Question(text="", targets=(), max_new_tokens=new_tokens)
    return Job(prompt, [question], presses, variants, PROTECTED, 0)


def same_answers(device: str) -> dict[str, Any]:
    """Count the cells of a small model, in float32, whose answers on `device` are the processor's."""
    grid = [Variant(press, budget) for press in SWEEP_PRESSES for budget in TOY.budgets]
    work = job(TOY.sweep, [Variant(None, TOY.sweep), *grid], new_tokens=8)
    torch.backends.cuda.matmul.allow_tf32 = False
    model = random_qwen(TOY.layers, 320, "float32", "cpu", toy=True)
    runs: list[Callable[[], Outcome]] = [
        lambda: run_prompt(model, work),
        lambda: run_prompt_in_chunks(model, replace(work, variants=grid), TOY.chunk),
    ]
    expected = [run().answers for run in runs]
    model.network.to(device)  # type: ignore[arg-type]
    found = [run().answers for run in runs]
    cells = [(i, variant) for i, answers in enumerate(expected) for variant in answers]
    return {"cells": len(cells), "same": sum(found[i].get(v) == expected[i][v] for i, v in cells)}


class PlainPrefill:
    """A prefill and nothing else."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Run the kernel."""
        return call.kernel()


def prefill(model: Model, n: int, kernel: str) -> dict[str, Any]:
    """Time one prefill with a kernel, after one that does not count."""
    model.network.set_attn_implementation(register(kernel))
    tokens = random_tokens(n).unsqueeze(0).to(model.device)
    for _ in range(2):
        started = now(model.device)
        model.forward(tokens, 0, PlainPrefill())
        seconds = now(model.device) - started
    return {"seconds": round(seconds, 4)}


def ranking(model: Model, n: int, left_out: Sequence[str]) -> dict[str, Any]:
    """Time every press's ranking of all layers as a share of the prefill, after a short one that does not count.

    KeyFormer's noise is drawn on the processor, the same on every device: minutes where the context is long.
    """
    presses = all_presses(model.facts, untrained_kvp(model.facts, hidden=256))
    presses = {label: press for label, press in presses.items() if label not in left_out}
    for length in (min(n, 512), n):
        step = RankingPrefill(presses)
        tokens = random_tokens(length).unsqueeze(0).to(model.device)
        started = now(model.device)
        with torch.inference_mode():
            model.forward(tokens, 0, step)
        total = now(model.device) - started
    rank = step.rankers.seconds
    plain = total - sum(rank.values())
    return {
        "prefill_seconds": round(plain, 4),
        "share_of_prefill": {label: round(seconds / plain, 5) for label, seconds in rank.items()},
        "failures": step.rankers.failures,
    }


def sweep(model: Model, sizes: Sizes) -> dict[str, Any]:
    """Time the sweep of seven presses over all budgets, after a small one that does not count."""
    grid = [Variant(press, budget) for press in SWEEP_PRESSES for budget in sizes.budgets]
    run_prompt(model, job(sizes.sweep, grid[:1], 2))
    outcome = run_prompt(model, job(sizes.sweep, grid, sizes.new_tokens))
    return {"cells": len(outcome.answers), "failures": outcome.failures} | seconds_of(outcome)


def chunked(model: Model, sizes: Sizes) -> dict[str, Any]:
    """Time a chunked prefill of a long context at the largest budget; the report adds its peak memory."""
    outcome = run_prompt_in_chunks(model, job(sizes.long, [Variant("keydiff", sizes.budgets[-1])], 4), sizes.chunk)
    return {"chunk": sizes.chunk, "budget": sizes.budgets[-1], "failures": outcome.failures} | seconds_of(outcome)


def seconds_of(outcome: Outcome) -> dict[str, float]:
    """Return where the time of a run went."""
    timings = outcome.timings
    return {
        "prefill_seconds": round(timings.prefill, 4),
        "ranking_seconds": round(sum(timings.ranking.values()), 4),
        "gathering_seconds": round(timings.gathering, 4),
        "answering_seconds": round(timings.answering, 4),
    }


if __name__ == "__main__":
    main()
