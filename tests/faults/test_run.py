"""No fault loses a finished record of a sweep or counts one twice. `benchmarks/faults.py` injects many more."""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from faults import injections
from faults.injections import Sweep, Tally


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    with Sweep(tmp_path_factory.mktemp("faults")).ready() as ready:
        yield ready


@pytest.mark.parametrize(
    ("inject", "times"),
    [
        (injections.kills, 8),
        (injections.interrupts, 2),
        (injections.full_disks, 2),
        (injections.full_file_systems, 1),
        (injections.read_only_folders, 1),
        (injections.second_writers, 1),
        (injections.racing_writers, 1),
        (injections.clock_jumps, 1),
        (injections.cuts, 150),
        (injections.failing_presses, 1),
        (injections.long_samples, 1),
        (injections.starved, 1),
    ],
)
def test_nothing_is_lost_or_counted_twice(sweep: Sweep, inject: Callable[[Sweep, int], Tally], times: int) -> None:
    if inject is injections.full_file_systems and (os.geteuid() != 0 or not shutil.which("mount")):
        pytest.skip("mounting a small file system needs root")
    tally = inject(sweep, times)
    assert tally.injections >= times
    assert (tally.lost, tally.double) == (0, 0)
