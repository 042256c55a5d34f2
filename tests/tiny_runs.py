"""Small runs on the tiny models, as the tests of both schedules need them."""

from collections.abc import Collection
from typing import ClassVar

import torch
from torch import Tensor

from kvbench.press import LayerCache, Press, Reads
from kvbench.prompts import Prompt
from kvbench.ranking import Protect
from kvbench.registry import make_press
from kvbench.task import Question
from kvbench.variants import Outcome, Variant
from tiny_models import CONFIGS

N = 60
FED = 5
NEW = 12
BUDGETS = (1, 3, 7, 20, 41, 59)
PRESSES = ("random", "streaming_llm", "k_norm", "keydiff", "snapkv:window=8", "tova", "h2o", "keyformer", "lagkv:lag=8")
FAMILIES = sorted(CONFIGS)
UNPROTECTED = Protect(0, 0)


def presses(*specs: str) -> dict[str, Press]:
    return {spec: make_press(spec) for spec in specs}


def random_prompt(seed: int = 0, n: int = N, fed: tuple[int, ...] = (FED,)) -> Prompt:
    generator = torch.Generator().manual_seed(seed)
    context, *questions = (torch.randint(3, 250, (length,), generator=generator) for length in (n, *fed))
    return Prompt(context, tuple(questions), tuple(range(len(questions))), ((),) * len(questions))


def question(new: int = NEW, stop: tuple[str, ...] = ()) -> Question:
    return Question(text="", targets=(), max_new_tokens=new, stop=stop)


def tokens(outcome: Outcome, variant: Variant) -> tuple[int, ...]:
    return outcome.answers[variant][0].tokens


def grid(labels: Collection[str], budgets: Collection[int] = BUDGETS) -> list[Variant]:
    return [Variant(label, budget) for label in labels for budget in budgets]


class Remembered(Press):
    """The order of `random`, kept for the reference."""

    paper: ClassVar[str] = ""
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.POSITIONS})
    rankings: ClassVar[dict[int, Tensor]] = {}

    def sort(self, layer: LayerCache) -> Tensor:
        ranking = make_press("random").sort(layer)
        self.rankings[layer.index] = ranking
        return ranking
