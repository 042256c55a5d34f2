"""Memory: running out of it, as torch says it, keeping what was freed for reuse, and the most that was held."""

import ctypes
import platform
import re
from pathlib import Path

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, the accelerator's or the machine's, is used up."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch's on the CPU


def keep_freed_memory() -> None:
    """Let this process keep the memory that tensors on the CPU free, for the next ones.

    glibc hands large blocks back to the system at once and takes them again page by page, zeroed: a prefill takes
    several percent longer (`results/benchmarks`). Other C libraries are left as they are.
    """
    if _GLIBC:
        for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            _GLIBC.mallopt(option, _KEPT_BELOW)


class PeakMemory:
    """The most memory that is held at any time from now on, weights included.

    On CUDA what torch has allocated; elsewhere the resident memory of this process, where the system tells it (Linux).
    """

    def __init__(self, device: torch.device) -> None:
        """Start from what is held now."""
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif _RESET.exists():
            if _GLIBC:
                _GLIBC.malloc_trim(0)  # what was freed and kept is not held
            _RESET.write_text("5")  # the peak is what is resident now

    @property
    def bytes(self) -> int | None:
        """The peak so far; none where it cannot be told."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if not _RESET.exists():
            return None
        found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else None


_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")

_GLIBC = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's numbers for them
_KEPT_BELOW = 1 << 30
"""Bytes of a block, or free at the heap's end, from which on glibc still hands memory back."""
