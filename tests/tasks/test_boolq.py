"""BoolQ: its prompt, its choices, and that its answers come from the compressed passage."""

import json
from pathlib import Path

import pytest

from kvbench.errors import UsageError
from kvbench.registry import make_task
from kvbench.task import Answer
from tiny_models import tiny_tokenizer

ROWS = [
    {"question": "is the sky blue", "title": "Sky", "answer": True, "passage": "The sky is blue."},
    {"question": "is it green", "title": "Sky", "answer": False, "passage": "The sky is blue."},
    {"question": "do cats fly", "title": "Cat", "answer": False, "passage": "Cats walk."},
]


@pytest.fixture
def boolq(tmp_path: Path) -> Path:
    file = tmp_path / "validation.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def test_a_row_is_lm_evals_prompt_with_two_choices(boolq: Path) -> None:
    first, second, third = make_task("boolq", {"boolq": boolq}).samples(tiny_tokenizer(), None, 0)
    [question] = first.questions
    assert first.context + question.text == "The sky is blue.\nQuestion: is the sky blue?\nAnswer:"
    assert question.continuations == (" no", " yes")
    assert [sample.questions[0].targets for sample in (first, second, third)] == [(" yes",), (" no",), (" no",)]
    assert first.template == "none"
    assert first.source == second.source != third.source


def test_a_smaller_limit_gives_the_first_samples(boolq: Path) -> None:
    task = make_task("boolq", {"boolq": boolq})
    assert task.samples(tiny_tokenizer(), 2, 0) == task.samples(tiny_tokenizer(), None, 0)[:2]


def test_the_more_likely_choice_is_scored(boolq: Path) -> None:
    task = make_task("boolq", {"boolq": boolq})
    [question] = task.samples(tiny_tokenizer(), 1, 0)[0].questions
    assert task.score(Answer(" yes"), question, "boolq") == 1
    assert task.score(Answer(" no"), question, "boolq") == 0


@pytest.mark.parametrize("spec", ["boolq-2k", "boolq:passages"])
def test_it_has_no_variants(spec: str, boolq: Path) -> None:
    with pytest.raises(UsageError, match="write boolq"):
        make_task(spec, {"boolq": boolq})


def test_a_row_without_its_answer_is_named(boolq: Path) -> None:
    boolq.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps({"question": "?", "passage": "."}) + "\n")
    with pytest.raises(UsageError, match="line 2: the field 'answer' is missing"):
        make_task("boolq", {"boolq": boolq}).samples(tiny_tokenizer(), None, 0)
