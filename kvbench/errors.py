"""What kvbench raises. Every message is one sentence: the value, what is allowed, the nearest match."""

from collections.abc import Iterable
from difflib import get_close_matches


class KvbenchError(Exception):
    """A run that failed; the command line prints the sentence and exits with `exit_code`."""

    exit_code = 1


class UsageError(KvbenchError):
    """A wrong command: an unknown name, a value out of range, a folder that cannot be used."""

    exit_code = 2


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a `kind` ("press", "task", …) called `name` that is not among `known`."""
    names = list(known)
    nearest = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'? " if nearest else ""
    return UsageError(f"unknown {kind} '{name}': {hint}allowed are {', '.join(names) or 'none'}")
