"""Several processes that train together, one per device, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Processes:
    """This process among those that train together.

    Attributes:
        rank: Its number.
        count: How many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the one that measures, prints and writes."""
        return self.rank == 0

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.count > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor)

    def agree(self, value: float, device: torch.device) -> float:
        """Return the first process's value."""
        if self.count == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)
        distributed.broadcast(shared, 0)
        return float(shared)


@contextmanager
def joined(device: str) -> Iterator[tuple[Processes, str]]:
    """Join the other processes if torchrun has started several; yield this one's place and device."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes(), device
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Processes(distributed.get_rank(), count), device
    finally:
        distributed.destroy_process_group()
