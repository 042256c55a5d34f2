"""A protocol in words, for the titles and notes of tables and figures."""

from collections.abc import Container, Sequence

from kvbench.records import Protocol


def title_of(protocol: Protocol, subtask: str | None = None, missing: Sequence[str] = ()) -> str:
    """Return what was measured: model, task and metric, and of how many subtasks if some are missing."""
    task = f"{protocol.task}:{subtask}" if subtask else protocol.task
    if missing:
        total = len(protocol.subtasks)
        task += f" ({total - len(missing)} of {total} subtasks)"
    return f"{protocol.model} · {task} · {metric_of(protocol)}"


def metric_of(protocol: Protocol) -> str:
    """Return the metric's name, and its direction where that is not the usual one."""
    return f"{protocol.metric} (lower is better)" if protocol.lower_is_better else protocol.metric


def interval_in_words(protocol: Protocol) -> str:
    """Return what the interval of a press's score is, as a part of a note."""
    if protocol.shown_as == "exp":
        return "95 % interval of the difference from the full cache"
    return "95 % interval"


def area_in_words(protocol: Protocol) -> str:
    """Return what the area under a protocol's curve is, as the end of a note."""
    if not protocol.lower_is_better:
        return "AUC over log2(budget) as a share of the full cache"
    score = "negative log-likelihood" if protocol.shown_as == "exp" else protocol.metric
    return f"AUC of the mean {score} over log2(budget), as a multiple of the full cache's; lower is better"


def area_decimals(protocol: Protocol) -> int:
    """Return how many decimals areas, and differences of scores, are written with: a few percent of perplexity are
    some thousandths of its logarithm."""
    return 3 if protocol.shown_as == "exp" else 2


def missing_subtasks(protocol: Protocol, measured: Container[str]) -> tuple[str, ...]:
    """Return the subtasks that the task's score is the mean of and that were not measured."""
    return tuple(name for name in protocol.subtasks if name not in measured)


def one_document_in_words(subtasks: Sequence[str]) -> list[str]:
    """Return, as a note or none, which subtasks' intervals are for other questions about the same document."""
    if not subtasks:
        return []
    return [f"{', '.join(subtasks)}: all answers are about one document, and intervals are for others about it"]


def conditions_of(protocol: Protocol) -> str:
    """Return how it was measured: the rest of what decides a result."""
    return ", ".join(
        [
            f"question {protocol.question}",
            f"first {protocol.protect_first} and last {protocol.protect_last} tokens protected",
            "compressed after prefill" if protocol.chunk is None else f"prefilled in chunks of {protocol.chunk}",
            protocol.dtype,
            f"{protocol.attention} on {protocol.device}",
            f"seed {protocol.seed}",
        ]
    )
