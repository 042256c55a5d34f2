"""Time to draw RULER's samples: counting tokens as kvbench does, and as the official generator does.

    python benchmarks/ruler_generation.py --lengths 4096 131072 --samples 20 --rounds 3 --data squad=dev-v2.0.json

Both draw the same prompts; the official manner retokenises each one that is tried, one subtask after the other.
The three ways take turns, and the table shows the median of the rounds, in seconds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from kvbench.models import find
from kvbench.registry import make_task
from kvbench.sources import parse_sources
from kvbench.tasks.ruler.data import Data
from kvbench.tasks.ruler.subtasks import CORPUS_OF, SUBTASKS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SEED = 42
WAYS = ("official manner", "first run", "second run")


def main() -> None:
    """Measure and print a table, a row per length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096])
    parser.add_argument("--samples", type=int, default=20, help="Of each subtask.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", action="append", default=[], metavar="NAME=PATH")
    options = parser.parse_args()
    tokenizer = find(options.model, weights=False).tokenizer
    sources = parse_sources(options.data)

    title = f"{options.samples} samples per subtask, {options.rounds} rounds, {os.cpu_count()} processors"
    table = Table("length", "subtasks", "text, MB", *(f"{way}, s" for way in WAYS), title=title)
    for length in options.lengths:
        rounds = [measure(length, options.samples, tokenizer, sources) for _ in range(options.rounds)]
        drawn = make_task(f"ruler-{length}", sources).samples(tokenizer, options.samples, SEED)
        megabytes = sum(len(sample.context.encode()) for sample in drawn) / 1e6
        seconds = (f"{median(times[way] for times in rounds):.2f}" for way in WAYS)
        table.add_row(f"{length:,}", str(len({sample.subtask for sample in drawn})), f"{megabytes:.1f}", *seconds)
    Console().print(table)


def measure(
    length: int, samples: int, tokenizer: PreTrainedTokenizerBase, sources: Mapping[str, Path]
) -> dict[str, float]:
    """Draw the samples in each of the three ways; return the seconds that each took."""

    def ours() -> None:
        make_task(f"ruler-{length}", sources).samples(tokenizer, samples, SEED)

    with empty_cache():
        official = timed(lambda: retokenise(length, samples, tokenizer, sources))
        return dict(zip(WAYS, (official, timed(ours), timed(ours)), strict=True))


def retokenise(length: int, samples: int, tokenizer: PreTrainedTokenizerBase, sources: Mapping[str, Path]) -> None:
    """Draw the same prompts, tokenising every one that is tried."""
    data = Data(sources, prose_asked=False)
    for name, make in SUBTASKS.items():
        if name not in CORPUS_OF or data.find(CORPUS_OF[name]):
            prompts = make(data).prompts(length, SEED, lambda text: len(tokenizer.tokenize(text)))
            for _ in islice(prompts, samples):
                pass


def timed(work: Callable[[], None]) -> float:
    """Return the seconds that some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def empty_cache() -> Iterator[None]:
    """Let token counts be kept in a folder that is empty at first."""
    before = os.environ.get("KVBENCH_CACHE")
    with TemporaryDirectory() as folder:
        os.environ["KVBENCH_CACHE"] = folder
        try:
            yield
        finally:
            os.environ.pop("KVBENCH_CACHE") if before is None else os.environ.update(KVBENCH_CACHE=before)


if __name__ == "__main__":
    main()
