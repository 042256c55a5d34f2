"""Running out of memory, as torch says it."""

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, the accelerator's or the machine's, is used up."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch's on the CPU
