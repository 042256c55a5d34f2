"""RULER's score: the mean fraction of targets that an answer contains."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.registry import make_task
from kvbench.task import Question


def score(prediction: str, *targets: str) -> float:
    question = Question(text="?", targets=targets, max_new_tokens=1)
    return make_task("ruler-4k").score(prediction, question, "niah_single_1")


@pytest.mark.parametrize(
    ("prediction", "targets", "expected"),
    [
        ("The number is 5437923.", ["5437923"], 1.0),
        ("5437924", ["5437923"], 0.0),
        ("54379234", ["5437923"], 1.0),
        ("", ["5437923"], 0.0),
        ("kimbv and Kuyaw", ["KIMBV", "KUYAW"], 1.0),
        ("1. WORLD 2. brain", ["world", "brain", "stew", "pinot"], 0.5),
        ("world world world", ["world", "brain"], 0.5),
        ("foundation", ["foundation", "found"], 1.0),
        ("5437\x00923", ["5437923"], 0.0),
        ("5437\n923", ["5437\t923"], 0.0),
        ("\x05 5437923 \x1f", ["5437923"], 1.0),
        ("red\x00car", ["red\ncar"], 1.0),
    ],
)
def test_scores(prediction: str, targets: list[str], expected: float) -> None:
    assert score(prediction, *targets) == expected


TEXTS = st.text("aAbB1- \n\t\x00\x1f", max_size=12)


@given(prediction=TEXTS, targets=st.lists(st.text("aAbB1-", min_size=1, max_size=3), min_size=1, max_size=5))
def test_agrees_with_the_definition(prediction: str, targets: list[str]) -> None:
    cleaned = re.sub("[\x00-\x1f]", "\n", prediction.strip()).strip()
    found = [1.0 if target.lower() in cleaned.lower() else 0.0 for target in targets]
    assert score(prediction, *targets) == pytest.approx(sum(found) / len(found))
