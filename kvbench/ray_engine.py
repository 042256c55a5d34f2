"""The engine "ray": work items and traces on workers of a Ray cluster, each of which loads the weights once.

The driver plans, hands out the items of a sample or a sequence at a time, and is the only one that writes, as results
stream back. A worker that dies is started again and what it had is tried again. Ray moves objects between its own
processes with pickle; kvbench itself reads and writes none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kvbench.environment import describe_environment
from kvbench.errors import KvbenchError, UsageError, unknown
from kvbench.sweep import Finished, ItemRunner, Plan, WorkItem, failed_record

if TYPE_CHECKING:
    from kvbench.models import Model, ModelSource
    from kvbench.records import Environment
    from kvbench.store import ResultsWriter
    from kvbench.traces import Trace
    from kvbench.tracing import Drawn, StoredLayers, Tracer

_Job = TypeVar("_Job")

RETRIES = 3
"""How often the items of a sample, or a sequence, are tried again after their worker has died."""


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

    @classmethod
    def of(cls, text: str, source: ModelSource, dtype: str, device: str, attention: str) -> ModelToLoad:
        """Return the model that was typed as `text`, as any process of this machine finds it."""
        path = Path(text).expanduser()
        name = str(path.resolve()) if path.exists() else text
        return cls(name, source.weights, source.trust_remote_code, dtype, device, attention)

    def load(self) -> Model:
        """Load the model in a worker.

        Raises:
            KvbenchError: It cannot be loaded, or its weights are others here.
        """
        import torch

        from kvbench.models import find, quieten_transformers

        quieten_transformers()
        if self.device == "cpu":
            torch.set_num_threads(1)  # Ray gives a worker one processor
        source = find(self.name, trust_remote_code=self.trust_remote_code)
        if source.weights != self.weights:
            raise KvbenchError(f"{self.name} has other weights here: {source.weights} instead of {self.weights}")
        return source.load(self.dtype, self.device, self.attention)


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
        workers = _start_workers(ray, Worker, model, engine)
        presses = ray.put((plan.presses, plan.identities))
        own = ray.get(workers[0].environment.remote())
        samples = [list(items) for _, items in groupby(plan.items, key=lambda item: id(item.sample))]
        for items, outcome in _stream(ray, workers, "run", samples, stopped, [presses]):
            if isinstance(outcome, _Lost):
                outcome = [_unanswered(item, plan, own, outcome.reason) for item in items], own, []
            finished, environment, warnings = outcome
            results.add_environment(environment)
            for sentence in warnings:
                warn(sentence)
            for item, came_back in zip(items, finished, strict=True):
                one = Finished(item, came_back.records, came_back.timings)
                results.append(item.protocol, one.records)
                tell(one)
    finally:
        ray.shutdown()


@contextmanager
def tracer_on_ray(model: ModelToLoad, engine: RayEngine) -> Iterator[Tracer]:
    """Start workers that take traces, and stop them in the end.

    Raises:
        UsageError: Ray is not installed, cannot be reached, or has no room for a worker.
        KvbenchError: No worker can load the model.
    """
    ray = _connect(engine)
    try:
        yield _RayTracer(ray, _start_workers(ray, TraceWorker, model, engine))
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class _RayTracer:
    """A tracer whose sequences are run on workers."""

    ray: Any
    workers: list[Any]

    def layers(self) -> StoredLayers:
        layers: StoredLayers = self.ray.get(self.workers[0].layers.remote())
        return layers

    def take(self, sequences: Sequence[Drawn], stopped: Callable[[], bool]) -> Iterator[tuple[Drawn, Trace]]:
        """Yield the traces in any order.

        Raises:
            KvbenchError: A sequence cannot be taken.
        """
        for drawn, outcome in _stream(self.ray, self.workers, "take", sequences, stopped):
            if isinstance(outcome, _Lost):
                raise KvbenchError(f"sequence {drawn.entry.sample} of {drawn.entry.task}: {outcome.reason}")
            yield drawn, outcome


class Worker:
    """A process of the cluster that has the model loaded. Ray makes an actor of it."""

    def __init__(self, model: ModelToLoad) -> None:
        """Load the model.

        Raises:
            KvbenchError: It cannot be loaded, or its weights are others here.
        """
        self._model = model.load()
        self._warnings: list[str] = []
        self._runner: ItemRunner | None = None

    def environment(self) -> Environment:
        """Return what the worker computes with."""
        return describe_environment()

    def run(self, items: Sequence[WorkItem], presses: Sequence[Any]) -> tuple[list[Finished], Environment, list[str]]:
        """Run the items of one sample; return what came of each, and warnings.

        Args:
            items: What to run.
            presses: One reference to a plan's presses and their identities. They come with the items and not to the
                constructor: Ray forgets a constructor's large arguments, and a worker that dies could not start again.
        """
        if self._runner is None:
            self._runner = self._runner_of(presses)
        self._warnings.clear()
        return [self._runner.run(item) for item in items], self._runner.environment, list(self._warnings)

    def _runner_of(self, presses: Sequence[Any]) -> ItemRunner:
        import ray

        by_name, identities = ray.get(presses[0])
        return ItemRunner(by_name, identities, self._model, self._warnings.append)


class TraceWorker:
    """A process of the cluster that has the model loaded to take traces. Ray makes an actor of it."""

    def __init__(self, model: ModelToLoad) -> None:
        """Load the model.

        Raises:
            KvbenchError: It cannot be loaded, or its weights are others here.
        """
        self._model = model.load()

    def layers(self) -> StoredLayers:
        """Return the layers that traces store."""
        from kvbench.tracing import stored_layers

        return stored_layers(self._model)

    def take(self, drawn: Drawn) -> Trace:
        """Run one sequence."""
        from kvbench.tracing import take_trace

        return take_trace(self._model, drawn)


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


def _start_workers(ray: Any, kind_of_worker: type, model: ModelToLoad, engine: RayEngine) -> list[Any]:
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
    )(kind_of_worker)
    workers = [actor.remote(model) for _ in range(min(engine.workers or room, room))]
    try:
        ray.get([worker.__ray_ready__.remote() for worker in workers])
    except ray.exceptions.RayError as error:
        raise KvbenchError(f"a worker cannot load {model.name}: {_reason(error)}") from None
    return workers


@dataclass(frozen=True)
class _Lost:
    """A job that no worker could do."""

    reason: str


def _stream(
    ray: Any, workers: list[Any], method: str, jobs: Iterable[_Job], stopped: Callable[[], bool], *common: Any
) -> Iterator[tuple[_Job, Any]]:
    """Yield each job with what the workers' method returns of it and of `common`, or `_Lost`, in any order.

    No job is handed out any more once `stopped`.
    """
    waiting = iter(jobs)
    running: dict[Any, tuple[Any, _Job]] = {}
    idle = list(workers)
    while True:
        while idle and not stopped() and (job := next(waiting, None)):
            worker = idle.pop()
            running[getattr(worker, method).remote(job, *common)] = (worker, job)
        if not running:
            return
        [done], _ = ray.wait(list(running), num_returns=1)
        worker, job = running.pop(done)
        idle.append(worker)
        try:
            outcome = ray.get(done)
        except ray.exceptions.RayError as error:
            died = isinstance(error, ray.exceptions.ActorDiedError | ray.exceptions.ActorUnavailableError)
            outcome = _Lost(f"its worker died, {RETRIES + 1} times" if died else f"its worker failed: {_reason(error)}")
        yield job, outcome


def _unanswered(item: WorkItem, plan: Plan, environment: Environment, reason: str) -> Finished:
    records = [failed_record(item, cell, plan.identities, environment.hash, reason) for cell in item.cells]
    return Finished(item, records, None)


def _reason(error: Exception) -> str:
    """Return the last line of what Ray says, where the worker's own exception is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
