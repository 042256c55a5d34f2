"""What lm-eval's requests ask of a model, read the same way by its tasks here and by kvbench's model there.

Importing this module imports lm-eval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs

from kvbench.errors import UsageError

MAX_NEW_TOKENS = 256
"""What lm-eval's models generate at most where a task does not say."""
_WITHOUT_EFFECT = {"do_sample", "temperature", "top_p", "top_k", "min_p"}  # where nothing is sampled


def greedy(arguments: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    """Return the stop texts and the most new tokens of a generation request.

    Args:
        arguments: lm-eval's `generation_kwargs`.

    Raises:
        UsageError: They ask for anything but greedy decoding.
    """
    asked = dict(normalize_gen_kwargs(dict(arguments), MAX_NEW_TOKENS))
    stop, tokens = asked.pop("until"), asked.pop("max_gen_toks")
    if asked.get("do_sample"):
        raise UsageError(f"temperature {asked['temperature']:g} asks for a sampled answer: kvbench answers greedily")
    for name, value in asked.items():
        if name not in _WITHOUT_EFFECT:
            raise UsageError(
                f"generation argument {name}={value!r} is not allowed: kvbench decodes greedily, until a stop text or "
                "max_gen_toks tokens"
            )
    return tuple(text for text in stop if text), tokens
