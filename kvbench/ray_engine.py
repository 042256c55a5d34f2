"""The engine "ray": a plan's work items on workers of a Ray cluster, each of which loads the weights once.

The driver plans, hands out the items of a sample at a time, and is the only one that writes records, as they stream
back. A worker that dies is started again and its items are tried again. Ray moves objects between its own processes
with pickle; kvbench itself reads and writes none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kvbench.errors import KvbenchError, UsageError, unknown
from kvbench.press import Press
from kvbench.sweep import Finished, ItemRunner, Plan, WorkItem, failed_record

if TYPE_CHECKING:
    from kvbench.records import Environment
    from kvbench.store import ResultsWriter

RETRIES = 3
"""How often the items of a sample are tried again after their worker has died."""


@dataclass(frozen=True)
class RayEngine:
    """Where the workers are and what each of them gets.

    Attributes:
        address: `ray://HOST:PORT`; none for the cluster of this machine (RAY_ADDRESS), or else a local one.
        gpus_per_worker: GPUs, or a share of one, of each worker; 0 for a worker on one processor.
        workers: How many; as many as the cluster has room for if none.
    """

    address: str | None
    gpus_per_worker: float
    workers: int | None


@dataclass(frozen=True)
class ModelToLoad:
    """The model that every worker loads.

    Attributes:
        name: A hub id, an alias, or an absolute path that all machines share.
        weights: The identity that the weights must have.
        trust_remote_code: Whether Python code that comes with the model may run.
    """

    name: str
    weights: str
    trust_remote_code: bool
    dtype: str
    device: str
    attention: str


def parse_engine(text: str, gpus_per_worker: float | None, workers: int | None, device: str) -> RayEngine | None:
    """Read `--engine`: none for `local`, this process.

    Raises:
        UsageError: It is something else than `local`, `ray` or `ray://HOST:PORT`.
    """
    if text == "local":
        return None
    if text != "ray" and not text.startswith("ray://"):
        raise unknown("engine", text, ["local", "ray", "ray://HOST:PORT"])
    if gpus_per_worker is None:
        gpus_per_worker = 0 if device == "cpu" else 1
    return RayEngine(text if text != "ray" else None, gpus_per_worker, workers)


def run_plan_on_ray(
    plan: Plan,
    model: ModelToLoad,
    engine: RayEngine,
    results: ResultsWriter,
    tell: Callable[[Finished], None],
    warn: Callable[[str], None],
    stopped: Callable[[], bool],
) -> None:
    """Run a plan on Ray, recording each item as it comes back; see `kvbench.sweep.run_plan`.

    Raises:
        UsageError: Ray is not installed, cannot be reached, or has no room for a worker.
        KvbenchError: No worker can load the model.
    """
    ray = _connect(engine)
    try:
        workers = _start_workers(ray, plan, model, engine)
        for finished, environment, warnings in _stream(ray, plan, workers, stopped):
            results.add_environment(environment)
            results.append(finished.item.protocol, finished.records)
            for sentence in warnings:
                warn(sentence)
            tell(finished)
    finally:
        ray.shutdown()


class Worker:
    """A process of the cluster that has the model loaded. Ray makes an actor of it."""

    def __init__(self, presses: Mapping[str, Press], identities: Mapping[str, str], model: ModelToLoad) -> None:
        """Load the model.

        Raises:
            KvbenchError: It cannot be loaded, or its weights are others here.
        """
        import torch

        from kvbench.models import find, quieten_transformers

        quieten_transformers()
        if model.device == "cpu":
            torch.set_num_threads(1)  # Ray gives a worker one processor
        source = find(model.name, trust_remote_code=model.trust_remote_code)
        if source.weights != model.weights:
            raise KvbenchError(f"{model.name} has other weights here: {source.weights} instead of {model.weights}")
        loaded = source.load(model.dtype, model.device, model.attention)
        self._warnings: list[str] = []
        self._runner = ItemRunner(presses, identities, loaded, self._warnings.append)

    def environment(self) -> Environment:
        """Return what the worker computes with."""
        return self._runner.environment

    def run(self, items: Sequence[WorkItem]) -> tuple[list[Finished], Environment, list[str]]:
        """Run the items of one sample; return what came of each, and warnings."""
        self._warnings.clear()
        return [self._runner.run(item) for item in items], self._runner.environment, list(self._warnings)


def _connect(engine: RayEngine) -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"--engine ray needs Ray: pip install 'kvbench[ray]' ({error})") from None
    try:
        ray.init(address=engine.address, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray has many ways to say so
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"Ray at '{engine.address or 'this machine'}' cannot be reached: {reason}") from None
    return ray


def _start_workers(ray: Any, plan: Plan, model: ModelToLoad, engine: RayEngine) -> list[Any]:
    kind = "GPU" if engine.gpus_per_worker else "CPU"
    share = engine.gpus_per_worker or 1
    room = int(ray.cluster_resources().get(kind, 0) / share)
    if room < 1:
        raise UsageError(f"the Ray cluster has no room for a worker with {share:g} {kind}")
    actor = ray.remote(
        num_cpus=0 if engine.gpus_per_worker else 1,
        num_gpus=engine.gpus_per_worker,
        max_restarts=-1,
        max_task_retries=RETRIES,
    )(Worker)
    workers = [actor.remote(plan.presses, plan.identities, model) for _ in range(min(engine.workers or room, room))]
    try:
        ray.get([worker.environment.remote() for worker in workers])
    except ray.exceptions.RayError as error:
        raise KvbenchError(f"a worker cannot load {model.name}: {_reason(error)}") from None
    return workers


def _stream(
    ray: Any, plan: Plan, workers: list[Any], stopped: Callable[[], bool]
) -> Iterator[tuple[Finished, Environment, list[str]]]:
    """Yield what comes back, in any order; hand out nothing more once `stopped`."""
    samples = iter([list(items) for _, items in groupby(plan.items, key=lambda item: id(item.sample))])
    environment = ray.get(workers[0].environment.remote())
    running: dict[Any, tuple[Any, list[WorkItem]]] = {}
    idle = list(workers)
    while True:
        while idle and not stopped() and (items := next(samples, None)):
            worker = idle.pop()
            running[worker.run.remote(items)] = (worker, items)
        if not running:
            return
        [done], _ = ray.wait(list(running), num_returns=1)
        worker, items = running.pop(done)
        idle.append(worker)
        try:
            finished, environment, warnings = ray.get(done)
        except ray.exceptions.RayError as error:
            died = isinstance(error, ray.exceptions.ActorDiedError | ray.exceptions.ActorUnavailableError)
            reason = f"its worker died, {RETRIES + 1} times" if died else f"its worker failed: {_reason(error)}"
            finished, warnings = [_lost(item, plan, environment, reason) for item in items], []
        for number, one in enumerate(finished):
            yield Finished(items[number], one.records, one.timings), environment, warnings if number == 0 else []


def _lost(item: WorkItem, plan: Plan, environment: Environment, reason: str) -> Finished:
    records = [failed_record(item, cell, plan.identities, environment.hash, reason) for cell in item.cells]
    return Finished(item, records, None)


def _reason(error: Exception) -> str:
    """Return the last line of what Ray says, where the worker's own exception is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
