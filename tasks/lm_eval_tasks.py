"""The tasks of lm-eval, EleutherAI's Language Model Evaluation Harness: MMLU, HellaSwag, ARC and thousands more.

Prompts, few-shot examples, filters and metrics are lm-eval's own code at work; kvbench puts the compressed cache
between a prompt and its answer.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, cached_property
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kvbench.errors import UsageError
from kvbench.sources import Sources
from kvbench.task import Answer, Question, Sample, Task

if TYPE_CHECKING:
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks import TaskManager
    from transformers import PreTrainedTokenizerBase

_NAME = "lm_eval"
_FEWSHOT_SEED = 1234
"""lm-eval's default, which published figures are made with."""
_ZERO_OR_ONE = {"acc", "acc_norm", "acc_bytes", "exact_match"}
_SHOTS = re.compile(r"(0|[1-9][0-9]*)shot")
_REVISION = re.compile(r"^hf://datasets/(.+)@([0-9a-f]{40})/")


class LMEval(Task):
    """Any task or group of lm-eval, EleutherAI's Language Model Evaluation Harness, by its name there.

    `lm_eval:hellaswag` is asked without examples unless the task has its own number of them,
    `lm_eval-5shot:mmlu` with five, drawn with lm-eval's default seed. Multiple choice is answered by log-likelihood, a
    generated answer greedily. The score is the task's accuracy, or its first metric that is a mean over the samples;
    its other metrics that are means are recorded beside it. A group's score is the mean of its tasks'.

    The whole prompt but its last token is compressed; with the question after, only what stands before the sample's own
    text is: the description and the examples. `--data lm_eval=FOLDER` adds the tasks whose YAML files are in a folder.
    """

    metric: ClassVar[str] = "the lm-eval task's own"
    sources: ClassVar[tuple[str, ...]] = (_NAME,)

    def __init__(self, task: str, shots: int | None, folder: Path | None) -> None:
        """Look the task up; its data are not read yet.

        Args:
            task: The task, group or tag.
            shots: How many examples precede a question; the task's own number if none.
            folder: Where more tasks are defined.

        Raises:
            UsageError: lm-eval is not installed, has no such task, or the task cannot be scored honestly.
        """
        self.task = task
        self.shots = shots
        self._folder = folder
        self._manager = _manager_of(task, folder)
        self._scorers = _scorers(self._manager, task)
        measures = {scorer.measure for scorer in self._scorers.values()}
        if len(measures) > 1:
            raise UsageError(
                f"{self.name} mixes the metrics {', '.join(sorted(name for name, *_ in measures))}: run its tasks one "
                f"by one, {_NAME}:{next(iter(self._scorers))} for example"
            )
        [(metric, lower_is_better, binary)] = measures
        # Of another lm-eval task they are something else: what a class says of all its tasks, an instance says of one.
        self.metric = metric  # type: ignore[misc]
        self.lower_is_better = lower_is_better  # type: ignore[misc]
        self.binary = binary  # type: ignore[misc]

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process as a name: a task's own functions cannot be pickled."""
        return _looked_up, (self.task, self.shots, self._folder)

    @classmethod
    def create(cls, variant: str | None, subset: str | None, sources: Sources) -> Self:
        """Make a task of lm-eval, with the number of examples as its variant (`5shot`).

        Raises:
            UsageError: There is no such task, or it cannot be had.
        """
        shots = _SHOTS.fullmatch(variant) if variant else None
        if variant and not shots:
            raise UsageError(f"{_NAME}-{variant}: '{variant}' is no number of examples, write {_NAME}-5shot:TASK")
        if not subset:
            raise UsageError(f"{_NAME} needs one of lm-eval's tasks: write {_NAME}:arc_challenge, or another name")
        folder = sources.get(_NAME)
        if folder is not None and not (isinstance(folder, Path) and folder.is_dir()):
            raise UsageError(f"--data {_NAME}={folder}: it is no folder with lm-eval's YAML files")
        return cls(subset, int(shots[1]) if shots else None, folder)

    @classmethod
    def spellings(cls) -> Sequence[str]:
        """Return how they are written; `lm_eval ls tasks` lists their names."""
        return [f"{_NAME}:TASK", f"{_NAME}-5shot:TASK"]

    @property
    def name(self) -> str:
        """The task as it is asked for."""
        return f"{_NAME}{'' if self.shots is None else f'-{self.shots}shot'}:{self.task}"

    @property
    def subtasks(self) -> Sequence[str]:
        """The tasks of a group."""
        return tuple(self._scorers) if len(self._scorers) > 1 else ()

    def data_of(self, subtask: str) -> str:
        """Name the rows, with the hub's revision or a digest of them, and the versions of lm-eval and its task."""
        return self._origins[subtask]

    def remarks(self) -> Sequence[str]:
        """Load the data, and say which metrics are left out.

        Raises:
            UsageError: The data cannot be had.
        """
        _ = self._tasks
        left_out = dict.fromkeys(name for scorer in self._scorers.values() for name in scorer.left_out)
        return [
            f"{self.name}: {name} is no mean of what its samples score, and is left out of the results"
            for name in left_out
        ]

    def samples(self, tokenizer: PreTrainedTokenizerBase, limit: int | None, seed: int) -> Sequence[Sample]:
        """Return a sample per row.

        Raises:
            UsageError: The data cannot be had, or a row cannot be asked about honestly.
        """
        return [
            self._sample(subtask, number, row)
            for subtask, task in self._tasks.items()
            for number, row in task.doc_iterator(limit=limit)
        ]

    def score(self, answer: Answer, question: Question, subtask: str) -> float:
        """Score an answer as the lm-eval task does."""
        return self._scorers[subtask].scores(answer, question)[self.metric]

    def other_scores(self, answer: Answer, question: Question, subtask: str) -> dict[str, float]:
        """Return the lm-eval task's other metrics; of several filters, `metric,filter`."""
        scores = self._scorers[subtask].scores(answer, question)
        return {name: value for name, value in scores.items() if name != self.metric}

    @cached_property
    def _tasks(self) -> dict[str, ConfigurableTask]:
        """The tasks with their data."""
        try:
            tasks: dict[str, ConfigurableTask] = self._manager.load(self.task)["tasks"]
        except Exception as error:  # of the hub, datasets, a YAML file, or the task's own code
            raise UsageError(f"{self.name} cannot be loaded: {_reason(error)}") from None
        for task in tasks.values():
            fixed = task.config.num_fewshot == 0  # zero by its own definition
            if not fixed and self.shots is not None:
                task.set_config("num_fewshot", self.shots)
            task.set_fewshot_seed(_FEWSHOT_SEED)
        return tasks

    @cached_property
    def _origins(self) -> dict[str, str]:
        return {subtask: _origin(task) for subtask, task in self._tasks.items()}

    def _sample(self, subtask: str, number: int, row: Mapping[str, Any]) -> Sample:
        task = self._tasks[subtask]
        context, question = _asked(task, row, f"{self.name}, row {number} of {subtask}")
        return Sample(
            id=f"{subtask}/{number}",
            subtask=subtask,
            context=context,
            questions=(question,),
            source=f"{subtask}/{number}",
            template="none",
        )


@cache
def _looked_up(task: str, shots: int | None, folder: Path | None) -> LMEval:
    return LMEval(task, shots, folder)


class _Scorer:
    """An lm-eval task without its data, as far as it scores answers.

    It is given, in place of a row, only what lm-eval's scoring reads of one: the reference answer and the choices; the
    whole row where a task scores with code of its own. That is a question's last target, so that a record holds all
    that its score is made of.
    """

    def __init__(self, task: ConfigurableTask) -> None:
        """Take over a task that was built without data.

        Raises:
            UsageError: It cannot be scored honestly.
        """
        from lm_eval.api.metrics import mean

        self.task = task
        self.name = task.config.task
        self._refuse()
        aggregation = task.aggregation()
        self.means = [name for name in aggregation if aggregation[name] is mean]
        self.left_out = [name for name in aggregation if aggregation[name] is not mean]
        if not self.means:
            raise UsageError(
                f"lm-eval task {self.name}: {', '.join(self.left_out)} is no mean of what its samples score"
            )
        main = "acc" if "acc" in self.means else self.means[0]
        self.main = main
        self.filters = [ensemble.name for ensemble in task._filters]

    @property
    def measure(self) -> tuple[str, bool, bool]:
        """The main metric's name, whether less is better, and whether it is 0 or 1."""
        binary = self.task.config.process_results is None and self.main in _ZERO_OR_ONE
        return self._key(self.main, self.filters[0]), self.task.higher_is_better()[self.main] is False, binary

    def scores(self, answer: Answer, question: Question) -> dict[str, float]:
        """Score an answer with every filter and metric, the main metric among them."""
        row = json.loads(question.targets[-1])
        task = self.task
        if task.config.process_results is None:
            task.set_config("doc_to_choice", "choices" if "choices" in row else None)
            task.multiple_target = len(row["gold"]) if isinstance(row["gold"], list) else 0
        responses: list[Any] = list(zip(answer.log_likelihoods, answer.greedy, strict=True)) or [answer.text]
        found: dict[str, float] = {}
        for ensemble in task._filters:
            scores = task.process_results(row, _filtered(task, ensemble, row, responses))
            found |= {self._key(name, ensemble.name): float(scores[name]) for name in self.means if name in scores}
        return found

    def _key(self, metric: str, filter_: str) -> str:
        return metric if len(self.filters) == 1 else f"{metric},{filter_}"

    def _refuse(self) -> None:
        """Refuse what a record's score could not be made of, or what kvbench cannot give a model.

        Raises:
            UsageError: It is such a task.
        """
        from lm_eval.api.task import ConfigurableTask

        task = self.task
        if type(task) is not ConfigurableTask:
            why = "it is a Python class, not a YAML file"
        elif task.OUTPUT_TYPE == "loglikelihood_rolling":
            why = "a rolling perplexity has no context that could be compressed"
        elif getattr(task, "UNSAFE_CODE", False):
            why = "it runs the code that the model writes"
        elif getattr(task, "MULTIMODAL", False):
            why = "it shows images or plays sounds"
        elif task.config.repeats > 1:
            why = f"it wants {task.config.repeats} sampled answers, and kvbench answers greedily"
        elif "acc_mutual_info" in task.aggregation():
            why = "acc_mutual_info asks for a choice without its context, where nothing can be compressed"
        elif missing := [name for name, function in task._metric_fn_list.items() if not function]:
            if task.config.process_results is not None:
                return
            why = f"the metric {missing[0]} is neither lm-eval's own nor to be had from the hub"
        else:
            return
        raise UsageError(f"lm-eval task {self.name} is refused: {why}")


def _manager_of(task: str, folder: Path | None) -> TaskManager:
    """Return the index that holds a task: the folder's if it has the task, else with all that lm-eval brings along.

    Raises:
        UsageError: lm-eval is not installed.
    """
    if folder is not None:
        own = _manager(folder, installed=False)
        if _holds(own, task):
            return own  # at once: it takes seconds to read thousands of files
    return _manager(folder, installed=True)


def _holds(manager: TaskManager, name: str) -> bool:
    """Whether an index has a task, or a group with all its tasks."""
    entry = manager.task_index.get(name)
    if entry is None or not entry.cfg:
        return False
    members = entry.cfg["task"]
    return isinstance(members, str) or all(isinstance(one, str) and _holds(manager, one) for one in members)


@cache
def _manager(folder: Path | None, installed: bool) -> TaskManager:
    """Read an index of tasks: a folder's, and those of the installed lm-eval.

    Raises:
        UsageError: lm-eval is not installed.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise UsageError(
            f"{_NAME} needs lm-eval: pip install 'kvbench[lm-eval]' ({type(error).__name__}: {error})"
        ) from None
    return TaskManager(include_path=folder, include_defaults=installed)


def _scorers(manager: TaskManager, name: str) -> dict[str, _Scorer]:
    """Build a task, or the tasks of a group or tag, without their data.

    Raises:
        UsageError: There is none of that name, or it cannot be scored honestly.
    """
    if name not in manager.task_index:
        nearest = get_close_matches(name, manager.all_tasks, n=1)
        hint = f"did you mean '{nearest[0]}'? " if nearest else ""
        raise UsageError(
            f"unknown lm-eval task '{name}': {hint}`lm_eval ls tasks` lists the installed ones, and "
            f"--data {_NAME}=FOLDER adds those of a folder"
        )
    entry = manager.task_index[name]
    without_data = {
        "custom_dataset": _no_rows,
        "dataset_kwargs": None,
        "training_split": None,
        "validation_split": None,
        "test_split": "test",
        "fewshot_split": None,
        "fewshot_config": None,
        "process_docs": None,
        "use_prompt": None,
        "doc_to_text": "text",
        "doc_to_target": "gold",
        "doc_to_choice": "choices",
    }
    try:
        # Only the factory builds a group with something changed in each of its tasks.
        built = manager._factory.build(entry, overrides=without_data, registry=manager.task_index)
        tasks = manager.load(built if isinstance(built, list) else [built])["tasks"]
    except Exception as error:  # of a YAML file, or the task's own code
        raise UsageError(f"lm-eval task {name} cannot be loaded: {_reason(error)}") from None
    return {subtask: _Scorer(task) for subtask, task in tasks.items()}


def _no_rows(**_: Any) -> Any:
    """Stand in for a task's data: lm-eval looks at the first row while it builds a task."""
    from datasets import Dataset

    return {"test": Dataset.from_list([{"text": "question", "gold": 0, "choices": ["answer"]}])}


def _filtered(task: ConfigurableTask, ensemble: Any, row: Mapping[str, Any], responses: Sequence[Any]) -> list[Any]:
    """Return what a chain of lm-eval's filters makes of a model's responses to one row."""
    from lm_eval.api.instance import Instance

    instances = [
        Instance(task.OUTPUT_TYPE, row, ("", ""), number, (task.config.task, 0, 1), [response])
        for number, response in enumerate(responses)
    ]
    ensemble.apply(instances)
    return [instance.filtered_resps[ensemble.name] for instance in instances]


def _asked(task: ConfigurableTask, row: Mapping[str, Any], where: str) -> tuple[str, Question]:
    """Return what stands before a row's own text in lm-eval's prompt, and the question about it.

    Raises:
        UsageError: The row cannot be asked about honestly.
    """
    text = task.doc_to_text(row)
    if not isinstance(text, str):
        raise UsageError(f"{where}: every choice has a context of its own, and a cache is compressed once for all")
    prompt = task.fewshot_context(row, task.config.num_fewshot or 0, gen_prefix=task.doc_to_prefix(row))
    requests = task.construct_requests(row, prompt, metadata=(task.config.task, 0, 1))
    start = prompt.rfind(text)
    targets = _targets(task, row, where)
    if task.OUTPUT_TYPE == "generate_until":
        from kvbench.lm_eval_requests import greedy

        stop, tokens = greedy(requests.args[1])
        return prompt[:start], Question(text=prompt[start:], targets=targets, max_new_tokens=tokens, stop=stop)
    continuations = [request.args[1] for request in (requests if isinstance(requests, list) else [requests])]
    ending = len(prompt.rstrip())  # as lm-eval does: white space belongs to what follows it
    start = min(start, ending)
    return prompt[:start], Question(
        text=prompt[start:ending],
        targets=targets,
        continuations=tuple(prompt[ending:] + continuation for continuation in continuations),
    )


def _targets(task: ConfigurableTask, row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the reference answers, and as JSON what scoring reads of a row.

    Raises:
        UsageError: That cannot be written as JSON.
    """
    gold = task.doc_to_target(row)
    choices = None if task.config.doc_to_choice is None else task.doc_to_choice(row)
    scored: Mapping[str, Any] = {"gold": gold} if choices is None else {"gold": gold, "choices": choices}
    if task.config.process_results is not None:
        scored = row
    try:
        written = json.dumps(scored, ensure_ascii=False, sort_keys=True)
    except TypeError as error:
        raise UsageError(f"{where}: its score is made of a value that no record can hold: {error}") from None
    return (*_readable(gold, choices), written)


def _readable(gold: Any, choices: Sequence[str] | None) -> Iterator[str]:
    """Yield the reference answers as texts."""
    for one in gold if isinstance(gold, list) else [gold]:
        if choices is not None and isinstance(one, int) and 0 <= one < len(choices):
            yield choices[one]
        else:
            yield str(one)


def _origin(task: ConfigurableTask) -> str:
    """Return where a task's rows are from, and the versions of the task and of lm-eval.

    The rows are named by the hub's repository and revision if they say so, else by a digest.
    """
    name = task.config.task if task.VERSION == "Yaml" else f"{task.config.task} {task.VERSION}"  # it has no version
    made = f"{name} of lm-eval {version('lm-eval')}"
    rows = task.eval_docs
    checksums = getattr(getattr(rows, "info", None), "download_checksums", None) or {}
    for address in checksums:
        if found := _REVISION.match(address):
            return f"hub {found[1]}@{found[2]}, {made}"
    digest = sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    return f"{task.DATASET_PATH} sha256:{digest.hexdigest()[:16]}, {made}"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
