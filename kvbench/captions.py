"""A protocol in words, for the titles and notes of tables and figures."""

from kvbench.records import Protocol


def title_of(protocol: Protocol, subtask: str | None = None) -> str:
    """Return what was measured: model, task and metric."""
    task = f"{protocol.task}:{subtask}" if subtask else protocol.task
    return f"{protocol.model} · {task} · {protocol.metric}"


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
