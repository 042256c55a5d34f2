"""Interrupts of a long command: it stops where nothing is half done."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible(unit: str) -> Iterator[Callable[[], bool]]:
    """Let an interrupt stop the command after the unit in flight, "sample" say, and a second one at once.

    Yields:
        Whether there was an interrupt.
    """
    asked = False

    def interrupt(_: int, __: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        # Straight to the file: the interrupt may have come in the middle of a print.
        os.write(2, f"stopping after this {unit}; interrupt again to stop at once\n".encode())

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
