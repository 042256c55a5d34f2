"""LongBench's metrics: what the official evaluation gave, and properties."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.registry import make_task
from kvbench.task import Answer, Question
from kvbench.tasks.longbench.metrics import classification, code_similarity, qa_f1, rouge_l
from kvbench.tasks.longbench.subsets import SUBSETS

TASK = make_task("longbench")


def score(subset: str, prediction: str, *answers: str) -> float:
    return TASK.score(Answer(prediction), Question(text="", targets=answers, max_new_tokens=1), subset)


def test_all_official_scores_are_given_again(shared: Path) -> None:
    lines = (shared / "fixtures" / "longbench_official_scores.jsonl").read_text(encoding="utf-8").splitlines()
    official = [json.loads(line) for line in lines]
    assert len(official) == 568
    assert {one["dataset"] for one in official} == set(SUBSETS)
    for one in official:
        assert score(one["dataset"], one["prediction"], *one["answers"]) == pytest.approx(one["score"], abs=1e-9)


@pytest.mark.parametrize("subset", ["trec", "triviaqa", "samsum", "lsht"])
def test_only_the_first_line_counts_where_the_benchmark_says_so(subset: str) -> None:
    answer = (SUBSETS[subset].classes or ["an answer"])[0]
    assert score(subset, f"\n\n{answer}\nmore words", answer) == score(subset, answer, answer) > 0.99
    assert score(subset, f"more words\n{answer}", answer) < 0.99


def test_elsewhere_the_whole_answer_counts() -> None:
    assert 0 < score("qasper", "three words\nhere", "here") < 1


def test_the_best_of_the_answers_counts() -> None:
    assert score("triviaqa", "fifty-five", "55", "fifty-five") == 1.0


def test_naming_several_classes_shares_the_score() -> None:
    assert classification("Food or Date", "Date", ["Food", "Date", "Speed"]) == 0.5
    assert classification("Other", "Date", ["Food", "Date"]) == 0.0
    # A class within the answer's name does not count against it.
    assert classification("Expression abbreviated", "Expression abbreviated", SUBSETS["trec"].classes) == 1.0


def test_comments_and_fences_are_no_line_of_code() -> None:
    assert code_similarity("```python\n# a comment\nx = 1\ny = 2", "x = 1") == 1.0
    assert code_similarity("# only a comment", "x = 1") == 0.0
    assert code_similarity("x = 2", "x = 1") == 0.8


def numbered(word: str, count: int) -> str:
    return " ".join(f"{word}{number}" for number in range(count))


def test_rouge_does_not_depend_on_how_deep_it_is_called() -> None:
    words = numbered("w", 400)

    def nested(depth: int) -> float:
        return nested(depth - 1) if depth else rouge_l(words, words)

    assert nested(sys.getrecursionlimit() - 300) == pytest.approx(1)


def test_where_rouge_fails_the_score_is_0() -> None:
    common = numbered("w", 100)
    assert rouge_l(f"{common} {numbered('a', 480)}", f"{common} {numbered('b', 480)}") == 0.0  # it recurses too deep
    assert rouge_l("", common) == rouge_l("...", common) == 0.0


@given(st.text(), st.text(min_size=1))
def test_scores_are_between_0_and_1(prediction: str, answer: str) -> None:
    for name, subset in SUBSETS.items():
        if not subset.classes:
            assert 0 <= score(name, prediction, answer) <= 1, name


@given(st.lists(st.sampled_from(["one", "two", "three", "the", "a"]), min_size=1))
def test_f1_is_1_for_the_answer_itself_in_any_order_and_case(words: list[str]) -> None:
    wanted = " ".join(words)
    expected = 1.0 if set(words) - {"the", "a"} else 0.0
    assert qa_f1(" ".join(reversed(words)).upper() + ".", wanted) == expected
