"""No fault loses a finished trace or a step of a training. `benchmarks/faults.py` injects many more."""

from collections.abc import Callable, Iterator

import pytest

from faults import learning as faults
from faults.injections import Tally
from faults.learning import Learning


@pytest.fixture(scope="module")
def learning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Learning]:
    with Learning(tmp_path_factory.mktemp("learning")).ready() as ready:
        yield ready


@pytest.mark.parametrize(
    ("inject", "times"),
    [
        (faults.kills_of_traces, 3),
        (faults.interrupts_of_traces, 1),
        (faults.full_disks_of_traces, 1),
        (faults.read_only_traces, 1),
        (faults.second_writers_of_traces, 1),
        (faults.cut_sequences, 10),
        (faults.cut_manifests, 200),
        (faults.kills_of_trainings, 3),
        (faults.interrupts_of_trainings, 1),
        (faults.full_disks_of_trainings, 1),
        (faults.read_only_trainings, 1),
        (faults.second_writers_of_trainings, 1),
        (faults.cut_states, 20),
    ],
)
def test_nothing_is_lost_or_made_twice(
    learning: Learning, inject: Callable[[Learning, int], Tally], times: int
) -> None:
    tally = inject(learning, times)
    assert tally.injections >= times
    assert (tally.lost, tally.double) == (0, 0)
