"""Running out of memory: a prompt's variants are halved until they fit, and later prompts start from there."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from kvbench.memory import is_out_of_memory
from kvbench.records import FULL
from kvbench.variants import Job, Outcome, Timings, Variant


class VariantBatches:
    """Runs prompts with as many variants at a time as memory holds. A prompt's answers do not depend on how many."""

    def __init__(self, run: Callable[[Job], Outcome], warn: Callable[[str], None]) -> None:
        """Start without a limit.

        Args:
            run: Answers a prompt under all variants of a job.
            warn: Told, in a sentence, of every halving.
        """
        self._run = run
        self._warn = warn
        self._limits: dict[int, int] = {}
        """Per context length at which memory ran out, how many variants to try from that length on."""

    def run(self, job: Job, name: str) -> Outcome:
        """Answer a prompt; a variant that does not even fit alone is among the failures.

        Args:
            job: What to answer.
            name: What to call the prompt in a warning.
        """
        most = self._most(len(job.prompt.context), len(job.variants))
        variants = sorted(job.variants, key=lambda variant: (variant.press or "", variant.budget))
        batches = [variants[start : start + most] for start in range(0, len(variants), most)]
        return _together([self._run_batch(job, batch, name) for batch in batches])

    def _run_batch(self, job: Job, variants: Sequence[Variant], name: str) -> Outcome:
        try:
            return self._run(replace(job, variants=set(variants)))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = _first_line(error)
        # Outside the except clause, whose traceback holds on to the failed attempt's tensors.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(variants) == 1:
            return Outcome({}, {}, {}, {variants[0].press or FULL: f"out of memory: {reason}"}, Timings())
        half = -(-len(variants) // 2)
        self._limits[len(job.prompt.context)] = half
        self._warn(f"out of memory with {len(variants)} variants of {name} at once: going on with {half} at a time")
        parts = (variants[:half], variants[half:])
        return _together([self._run_batch(job, part, name) for part in parts])

    def _most(self, context: int, variants: int) -> int:
        return min([most for length, most in self._limits.items() if context >= length], default=variants) or 1


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcomes of a prompt's batches as one; its seconds are those of all batches."""
    first, *others = outcomes
    for other in others:
        first.answers.update(other.answers)
        first.kept.update(other.kept)
        first.peaks.update(other.peaks)
        first.failures.update(other.failures)
        first.timings.add(other.timings)
    return first
