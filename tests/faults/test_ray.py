"""The Ray engine on a local Ray of two workers: the same records and traces, whatever dies."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.injections import Sweep, keys_in, outcomes
from faults.learning import Learning, sequences, wait_for_traces
from kvbench.validate import validate
from processes import Limits, records_in

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    with Sweep(tmp_path_factory.mktemp("ray")).ready() as ready:
        yield ready


def a_worker_of(driver: int) -> int:
    """Wait for a process of a driver's Ray that has kvbench's actor in it."""
    for _ in range(300):
        if found := _workers_of(driver):
            return found[0]
        time.sleep(0.1)
    raise AssertionError("no worker of Ray was seen within 30 seconds")


def _workers_of(driver: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid,sid,args"], capture_output=True, text=True, check=True).stdout
    found = [line.split(None, 2) for line in listed.splitlines() if re.search(r"ray::\w*Worker", line)]
    return [int(pid) for pid, _, _ in found if _descends(int(pid), driver)]


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def test_a_worker_and_a_driver_die_and_the_records_are_those_of_one_process(sweep: Sweep) -> None:
    results = sweep.folder / "on-ray"
    options = {"engine": "ray", "workers": 2}
    driver = sweep.start(results, **options)
    driver.wait_for(1, results)
    os.kill(a_worker_of(driver.pid), signal.SIGKILL)  # its item is tried again, on a worker that is started again
    driver.wait_for(150, results)
    driver.kill()
    before = keys_in(results)
    assert 150 <= len(before) < len(sweep.whole)
    done = sweep.start(results, **options).wait(180)
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} were there already" in done.stdout
    assert before <= keys_in(results)
    assert outcomes(results) == sweep.whole
    assert len(records_in(results)) == len(sweep.whole)
    assert not validate(results).findings


def test_a_worker_starts_again_though_its_presses_are_large(sweep: Sweep) -> None:
    here, on_ray = sweep.folder / "weighty-here", sweep.folder / "weighty-on-ray"
    sweep.run(here, press="weighty", limit=100)
    driver = sweep.start(on_ray, press="weighty", engine="ray", workers=1, limit=100)
    driver.wait_for(300, on_ray)
    os.kill(a_worker_of(driver.pid), signal.SIGKILL)
    done = driver.wait(180)
    assert done.returncode == 0, done.stderr
    assert "constructor arguments" not in done.stderr  # Ray's warning that the worker may not start again
    assert outcomes(on_ray) == outcomes(here)


def test_traces_are_those_of_one_process_though_a_worker_dies(tmp_path: Path) -> None:
    with Learning(tmp_path).ready() as learning:
        here, on_ray = tmp_path / "here", tmp_path / "on-ray"
        more = ("--samples", 40, "--rollout", 40)
        learning.finish(learning.take(here, Limits(), *more))
        driver = learning.take(on_ray, Limits(), *more, "--engine", "ray", "--workers", 2)
        wait_for_traces(driver, on_ray, 0)
        os.kill(a_worker_of(driver.pid), signal.SIGKILL)
        done = driver.wait(180)
        assert done.returncode == 0, done.stderr
        assert "40 sequences taken" in done.stdout
        assert sequences(on_ray) == sequences(here)
