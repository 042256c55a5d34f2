"""The sweep: plan which cells are missing, run them sample by sample, record each sample as it is finished.

A cell is one question of one sample under one press and budget. Resuming a killed run, adding a press or a budget
and widening the limit are all the same thing: the plan holds the cells whose keys are not in the results yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kvbench.after_prefill import run_prompt
from kvbench.batches import VariantBatches
from kvbench.budgets import Budget
from kvbench.chunked import run_prompt_in_chunks
from kvbench.environment import describe_environment
from kvbench.errors import KvbenchError, UsageError
from kvbench.memory import PeakMemory
from kvbench.models import Model, ModelSource
from kvbench.press import Press, Reads, sample_seed
from kvbench.prompts import Prompt, prompts_of
from kvbench.ranking import Protect
from kvbench.records import FULL, REPEAT, Protocol, Record, Schedule, cell_key, content_hash, press_identity
from kvbench.store import ResultsFolder, ResultsWriter
from kvbench.task import Answer, QuestionPlacement, Sample, Task
from kvbench.variants import Job, Outcome, Timings, Variant

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Settings:
    """What a sweep is asked to do, beside presses and tasks.

    Attributes:
        budgets: For every press that evicts.
        limit: Samples per subtask; all if none.
        question: Where the question sits; the task's own choice if none.
        schedule: When the cache is compressed; the task's own choice if none.
        chunk: Tokens per chunk, where the schedule is chunked.
        protected: What stands in front of every ranking.
        seed: Of the generated data and of the seeded presses.
        dtype: Of the weights and the cache.
        device: What runs them.
        attention: The kernel of the prefill.
        noise_floor: Whether the full cache is answered twice.
    """

    budgets: Sequence[Budget]
    limit: int | None
    question: QuestionPlacement | None
    schedule: Schedule | None
    chunk: int
    protected: Protect
    seed: int
    dtype: str
    device: str
    attention: str
    noise_floor: bool = False


@dataclass(frozen=True)
class PlannedCell:
    """One cell that is not in the results yet."""

    key: str
    press: str
    budget: str
    variant: Variant
    question: int


@dataclass
class WorkItem:
    """One prefill and the cells it serves.

    Its prompt is rendered again when it runs: the tokens of a whole plan would need gigabytes.

    Attributes:
        number: Which of the sample's prompts.
        context_tokens: Tokens of the prompt's context.
        longest: The most positions that answering can take.
    """

    task: Task
    protocol: Protocol
    sample: Sample
    sample_hash: str
    number: int
    context_tokens: int
    longest: int
    cells: list[PlannedCell]

    def prompt(self, tokenizer: PreTrainedTokenizerBase) -> Prompt:
        """Render the prompt."""
        return prompts_of(tokenizer, self.sample, self.protocol.question)[self.number]


@dataclass
class Plan:
    """What a run will do.

    Attributes:
        presses: By label, ready for the model; the full cache is among them.
        identities: Per press the content hash of all that decides its ranking.
        items: The work, sample by sample; items without a missing cell are left out.
        done: Cells that the results hold already.
    """

    presses: dict[str, Press]
    identities: dict[str, str]
    items: list[WorkItem] = field(default_factory=list)
    done: int = 0

    @property
    def cells(self) -> int:
        """How many cells are to be computed."""
        return sum(len(item.cells) for item in self.items)


@dataclass(frozen=True)
class Finished:
    """What came of one work item.

    Attributes:
        item: The item.
        records: One per cell.
        timings: Where the time went; none if it never ran.
    """

    item: WorkItem
    records: list[Record]
    timings: Timings | None

    @property
    def failures(self) -> list[str]:
        """Why cells failed, one reason per failed cell."""
        return [record.error or "" for record in self.records if record.status == "failed"]


def make_plan(
    source: ModelSource,
    presses: dict[str, Press],
    tasks: Sequence[Task],
    settings: Settings,
    results: ResultsFolder,
    named: Collection[str] = (),
) -> Plan:
    """Find the cells that are missing. Loads the tokenizer and the data, but no weights.

    Args:
        source: The model.
        presses: By label, ready for the model.
        tasks: The tasks; two subsets of one task share its table.
        settings: The rest.
        results: Where finished cells are looked up.
        named: Labels of presses that must run: in chunks, the others that would not are left out.

    Raises:
        UsageError: A named press cannot run under a task's schedule, or the results hold other samples under the
            same names.
    """
    identities = {label: press_identity(label, press.identity()) for label, press in presses.items()}
    plan = Plan(presses, identities)
    planned: set[str] = set()
    for task in (task.for_model(source.facts) for task in tasks):
        protocol = _protocol(source, task, settings)
        finished = results.finished(protocol)
        known_samples = results.sample_hashes(protocol)
        fitting = _fitting(presses, protocol, named)
        for sample in task.samples(source.tokenizer, settings.limit, settings.seed):
            sample_hash = content_hash(sample.model_dump(mode="json"))
            if known_samples.get(sample.id, sample_hash) != sample_hash:
                raise UsageError(
                    f"results folder '{results.path}' holds {protocol.task} with another sample '{sample.id}', drawn "
                    f"from other data than {task.data_of(sample.subtask)}: use another folder"
                )
            for number, prompt in enumerate(prompts_of(source.tokenizer, sample, protocol.question)):
                cells = [
                    cell
                    for cell in _cells(prompt, fitting, identities, settings, protocol.hash, sample_hash)
                    if cell.key not in planned
                ]
                planned.update(cell.key for cell in cells)
                missing = [cell for cell in cells if cell.key not in finished]
                plan.done += len(cells) - len(missing)
                size, longest = len(prompt.context), prompt.longest(sample)
                for together in _computed_together(missing):
                    plan.items.append(WorkItem(task, protocol, sample, sample_hash, number, size, longest, together))
    return plan


def run_plan(
    plan: Plan,
    model: Model,
    results: ResultsWriter,
    tell: Callable[[Finished], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Run a plan, recording each item as it is finished.

    Args:
        plan: What to do.
        model: The model, loaded.
        results: Where records go.
        tell: Called after each item is on disk.
        warn: Told, in a sentence, where memory ran out.
        stopped: Asked before each item whether to leave it and all others for another run.
    """
    runner = ItemRunner(plan.presses, plan.identities, model, warn)
    results.add_environment(runner.environment)
    for item in plan.items:
        if stopped():
            return
        finished = runner.run(item)
        results.append(item.protocol, finished.records)
        tell(finished)


class ItemRunner:
    """A loaded model that work items are run with, one after the other, wherever it is."""

    def __init__(
        self, presses: Mapping[str, Press], identities: Mapping[str, str], model: Model, warn: Callable[[str], None]
    ) -> None:
        """Take a plan's presses and their identities, the model, and who is told where memory runs out."""
        self.presses = presses
        self.identities = identities
        self.model = model
        self.environment = describe_environment()
        self._after_prefill = VariantBatches(lambda job: run_prompt(model, job), warn)
        self._in_chunks: dict[int, VariantBatches] = {}
        self._warn = warn

    def run(self, item: WorkItem) -> Finished:
        """Answer an item's cells; what cannot be answered is among its records, with the reason."""
        try:
            outcome, questions = self._answer(item)
        except KvbenchError as error:
            return Finished(item, self.failed(item, str(error)), None)
        return Finished(item, list(self._records(item, outcome, questions)), outcome.timings)

    def failed(self, item: WorkItem, reason: str) -> list[Record]:
        """Return the records of an item of which no cell could be answered."""
        return [failed_record(item, cell, self.identities, self.environment.hash, reason) for cell in item.cells]

    def _answer(self, item: WorkItem) -> tuple[Outcome, Sequence[int]]:
        if item.longest > self.model.window:
            raise KvbenchError(
                f"prompt and answer need {item.longest} positions, more than the {self.model.window} that "
                f"{self.model.facts.name} knows"
            )
        prompt = item.prompt(self.model.tokenizer)
        questions = [item.sample.questions[number] for number in prompt.questions]
        variants = {cell.variant for cell in item.cells}
        protected = Protect(item.protocol.protect_first, item.protocol.protect_last)
        seed = sample_seed(item.protocol.seed, item.sample.id)
        job = Job(prompt, questions, self.presses, variants, protected, seed)
        memory = PeakMemory(self.model.device)
        outcome = self._batches(item.protocol.chunk).run(job, item.sample.id)
        outcome.peak_bytes = memory.bytes
        return outcome, prompt.questions

    def _batches(self, chunk: int | None) -> VariantBatches:
        if chunk is None:
            return self._after_prefill
        if chunk not in self._in_chunks:
            run = partial(run_prompt_in_chunks, self.model, chunk=chunk)
            self._in_chunks[chunk] = VariantBatches(run, self._warn)
        return self._in_chunks[chunk]

    def _records(self, item: WorkItem, outcome: Outcome, questions: Sequence[int]) -> Iterator[Record]:
        for cell in item.cells:
            if cell.variant not in outcome.answers:
                reason = outcome.failures.get(cell.variant.press or FULL, "the press gave no ranking")
                yield failed_record(item, cell, self.identities, self.environment.hash, reason)
                continue
            answer = outcome.answers[cell.variant][questions.index(cell.question)]
            yield self._record(item, cell, outcome, answer)

    def _record(self, item: WorkItem, cell: PlannedCell, outcome: Outcome, answer: Answer) -> Record:
        question = item.sample.questions[cell.question]
        kept = outcome.kept[cell.variant]
        unscored = failed_record(item, cell, self.identities, self.environment.hash, "")
        try:
            score = item.task.score(answer, question, item.sample.subtask)
            others = item.task.other_scores(answer, question, item.sample.subtask)
            weight = item.task.weight(answer)
        except Exception as error:  # a task may fail with anything
            return unscored.model_copy(update={"error": f"the task's score: {type(error).__name__}: {error}"})
        if not math.isfinite(score):
            return unscored.model_copy(update={"error": f"the task's score is {score}"})
        return unscored.model_copy(
            update={
                "status": "ok",
                "error": None,
                "score": score,
                "weight": weight,
                "other_metrics": tuple(others),
                "other_scores": tuple(others.values()),
                "prediction": answer.text,
                "log_likelihoods": answer.log_likelihoods,
                "continuation_tokens": answer.continuation_tokens,
                "greedy": answer.greedy,
                "new_tokens": len(answer.tokens),
                "stopped": answer.stopped,
                "kept_min": kept.least,
                "kept_max": kept.most,
                "kept_bytes": kept.bytes,
                "peak_entries": outcome.peaks[cell.variant],
                "peak_bytes": outcome.peak_bytes,
                "prefill_seconds": round(outcome.timings.prefill, 4),
                "ranking_seconds": round(outcome.timings.ranking.get(cell.press, 0.0), 4),
                "answering_seconds": round(outcome.timings.answering, 4),
            }
        )


def failed_record(
    item: WorkItem, cell: PlannedCell, identities: Mapping[str, str], environment: str, error: str
) -> Record:
    """Return the record of a cell that has no score, and why."""
    return Record(
        key=cell.key,
        environment=environment,
        press=cell.press,
        press_identity=identities[cell.press],
        budget=cell.budget,
        budget_tokens=cell.variant.budget,
        sample=item.sample.id,
        sample_hash=item.sample_hash,
        data=item.task.data_of(item.sample.subtask),
        question=cell.question,
        subtask=item.sample.subtask,
        source=item.sample.source,
        context_tokens=item.context_tokens,
        truncated_tokens=item.sample.truncated_tokens,
        compressed=cell.variant.press is not None,
        targets=item.sample.questions[cell.question].targets,
        status="failed",
        error=error,
    )


def _protocol(source: ModelSource, task: Task, settings: Settings) -> Protocol:
    schedule = settings.schedule or task.schedule
    return Protocol(
        model=source.name,
        weights=source.weights,
        task=task.name,
        task_version=task.version,
        subtasks=tuple(task.subtasks),
        metric=task.metric,
        binary=task.binary,
        lower_is_better=task.lower_is_better,
        shown_as=task.shown_as,
        schedule=schedule,
        chunk=settings.chunk if schedule == "chunked" else None,
        question=settings.question or task.question,
        protect_first=settings.protected.first,
        protect_last=settings.protected.last,
        dtype=settings.dtype,
        attention=settings.attention,
        device=settings.device.partition(":")[0],
        seed=settings.seed,
    )


def _fitting(presses: dict[str, Press], protocol: Protocol, named: Collection[str]) -> dict[str, Press]:
    """Return the presses that run under a protocol's schedule.

    In chunks the future is not known, and the full cache, which grows with the context, runs only if named.
    """
    if protocol.schedule != "chunked":
        return presses
    foreseeing = [label for label, press in presses.items() if Reads.FUTURE in press.reads]
    for label in foreseeing:
        if label in named:
            raise UsageError(
                f"press {label} reads the future, which chunked prefill does not know: "
                f"leave it out of {protocol.task}, or run that with --schedule after-prefill"
            )
    return {
        label: press for label, press in presses.items() if label not in foreseeing and (press.evicts or label in named)
    }


def _cells(
    prompt: Prompt,
    presses: dict[str, Press],
    identities: dict[str, str],
    settings: Settings,
    protocol: str,
    sample: str,
) -> Iterator[PlannedCell]:
    n = len(prompt.context)
    whole = [(FULL, n), (REPEAT, n)] if settings.noise_floor else [(FULL, n)]
    for label, press in presses.items():
        wanted = [(budget.label, budget.resolve(n)) for budget in settings.budgets] if press.evicts else whole
        for budget, tokens in wanted:
            variant = Variant(label if tokens < n else None, tokens)
            for question in prompt.questions:
                key = cell_key(protocol, sample, question, identities[label], budget)
                yield PlannedCell(key, label, budget, variant, question)


def _computed_together(cells: Sequence[PlannedCell]) -> Iterator[list[PlannedCell]]:
    """Yield the cells that share a prefill; a repeat has its own and is answered alone, or it would repeat nothing."""
    for repeats in (False, True):
        together = [cell for cell in cells if (cell.budget == REPEAT) == repeats]
        if together:
            yield together
