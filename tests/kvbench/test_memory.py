"""The memory that a sweep holds."""

import platform
import resource
import subprocess
import sys

import pytest
import torch

from kvbench.after_prefill import _Run
from kvbench.memory import PeakMemory
from kvbench.variants import Job
from tiny_models import tiny_model
from tiny_runs import BUDGETS, UNPROTECTED, N, grid, presses, question, random_prompt


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's peak")
def test_the_peak_counts_what_was_held_and_starts_anew() -> None:
    memory = PeakMemory(torch.device("cpu"))
    before = memory.bytes
    held = torch.ones(64 << 20, dtype=torch.uint8)
    assert memory.bytes is not None
    assert before is not None
    assert memory.bytes >= before + (60 << 20)
    del held
    assert memory.bytes >= before + (60 << 20)
    again = PeakMemory(torch.device("cpu")).bytes
    assert again is not None
    assert again < before + (32 << 20)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_freed_memory_is_used_again_and_not_counted_in_a_peak() -> None:
    """In a process of its own: what this one has freed before decides where its heap ends."""
    found = subprocess.run([sys.executable, "-c", FILLED_TWICE], capture_output=True, text=True, check=True)
    pages, grown = map(int, found.stdout.split())
    assert pages < (32 << 20) / resource.getpagesize() / 10
    assert grown < 32 << 20


FILLED_TWICE = """
import resource
import torch
from kvbench.memory import PeakMemory, keep_freed_memory

def fill(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(size << 20, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = PeakMemory(torch.device("cpu")).bytes
keep_freed_memory()
fill(64)
print(fill(32), PeakMemory(torch.device("cpu")).bytes - before)
"""
"""Prints how many pages the system had to hand out for 32 MB after 64 MB were filled and freed (glibc does not find a
freed block of the very same size where alignment leaves no room), and by how many bytes a peak that is begun then is
larger than one begun before."""


def test_a_sweep_holds_the_largest_budget_of_each_press_and_no_whole_cache() -> None:
    """Beside the prefill's own: what it holds of the context is Σ over the presses of the largest budget, whatever
    the number of budgets."""
    model = tiny_model("llama")
    ready = presses("random", "k_norm", "tova")
    run = _Run(model, Job(random_prompt(), [question()], ready, grid(ready), UNPROTECTED, 0))
    with torch.inference_mode():
        run.prefill()
    held = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for cache in run.context.grids
        for layer in (cache._keys, cache._values)
        for tensor in layer.values()
    }
    facts = model.facts
    token = 2 * facts.layers * facts.kv_heads * facts.head_dim * torch.float64.itemsize
    assert max(BUDGETS) < N
    assert sum(held.values()) == len(ready) * max(BUDGETS) * token
