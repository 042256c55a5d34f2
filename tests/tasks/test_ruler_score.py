"""RULER's score: the fraction of targets that an answer contains; of a question's answers, any."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.registry import make_task
from kvbench.task import Answer, Question


def score(prediction: str, *targets: str, subtask: str = "niah_single_1") -> float:
    question = Question(text="?", targets=targets, max_new_tokens=1)
    return make_task("ruler-4k").score(Answer(prediction), question, subtask)


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


@pytest.mark.parametrize(
    ("prediction", "targets", "expected"),
    [
        ("in 1066, surely", ["1066", "the year 1066"], 1.0),
        ("THE YEAR 1066", ["1067", "the year 1066"], 1.0),
        ("1065", ["1066", "1067"], 0.0),
        ("", ["yes"], 0.0),
        ("yesterday", ["no", "yes"], 1.0),
        ("10\x0066", ["10\n66"], 1.0),
        ("10 66", ["10\n66"], 0.0),
        ("İstanbul", ["istanbul"], 0.0),
    ],
)
def test_any_answer_to_a_question_will_do(prediction: str, targets: list[str], expected: float) -> None:
    for subtask in ("qa_1", "qa_2"):
        assert score(prediction, *targets, subtask=subtask) == expected


TEXTS = st.text("aAbBİß1- \n\t\x00\x1f", max_size=12)
TARGETS = st.lists(st.text("aAbBİß1-\n", min_size=1, max_size=3), min_size=1, max_size=5)


@given(prediction=TEXTS, targets=TARGETS)
def test_agrees_with_the_definition(prediction: str, targets: list[str]) -> None:
    cleaned = re.sub("[\x00-\x1f]", "\n", prediction.strip()).strip()
    found = [1.0 if target.lower() in cleaned.lower() else 0.0 for target in targets]
    for subtask in ("niah_multivalue", "vt", "cwe", "fwe"):
        assert score(prediction, *targets, subtask=subtask) == pytest.approx(sum(found) / len(found))
    for subtask in ("qa_1", "qa_2"):
        assert score(prediction, *targets, subtask=subtask) == max(found)
