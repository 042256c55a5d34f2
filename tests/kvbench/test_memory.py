"""The memory that a sweep holds."""

import platform
import resource
import sys

import pytest
import torch

from kvbench.after_prefill import _Run
from kvbench.memory import PeakMemory, keep_freed_memory
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


def fill() -> int:
    """Fill 64 MB of new memory, free it, and return how many pages the system had to hand out."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(64 << 20, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_freed_memory_is_used_again_and_not_counted_in_a_peak() -> None:
    before = PeakMemory(torch.device("cpu")).bytes
    keep_freed_memory()
    fill()
    assert fill() < (64 << 20) / resource.getpagesize() / 10
    after = PeakMemory(torch.device("cpu")).bytes
    assert before is not None
    assert after is not None
    assert after < before + (32 << 20)


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
