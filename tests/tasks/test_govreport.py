"""GovReport: its rows in three schemas, and two ROUGE-Ls that are told apart."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from kvbench.errors import UsageError
from kvbench.registry import make_task
from kvbench.task import Answer, Question

REPORT = "The agency spent 3 dollars. It should spend less."
SUMMARY = "The agency spends too much."


def write(file: Path, **row: object) -> Path:
    file.write_text(json.dumps(row) + "\n")
    return file


def test_longbenchs_schema_and_the_summarization_sets_give_the_same_sample(
    tmp_path: Path, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    own = write(tmp_path / "a.jsonl", context=REPORT, input="", answers=[SUMMARY], dataset="gov_report")
    other = write(tmp_path / "b.jsonl", report=REPORT, summary=SUMMARY)
    [sample] = make_task("govreport", {"govreport": own}).samples(smollm2_tokenizer, None, 42)
    assert [sample] == list(make_task("govreport", {"govreport": other}).samples(smollm2_tokenizer, None, 42))
    [question] = sample.questions
    assert sample.context.endswith(f"Report:\n{REPORT}")
    assert question.text == "\n\nNow, write a one-page summary of the report.\n\nSummary:"
    assert question.max_new_tokens == 512
    assert question.targets == (SUMMARY,)
    assert make_task("govreport").question == "after"


def test_both_rouge_ls_are_given_under_their_names() -> None:
    task = make_task("govreport")
    question = Question(text="", targets=(SUMMARY,), max_new_tokens=512)
    answer = Answer("Agencies spend too much money.")
    assert task.metric == "ROUGE-L F (rouge)"
    # By hand. rouge: blanks part words, the full stop of the sentence is gone: "too much" of 5 and 5 words.
    assert task.score(answer, question, "govreport") == pytest.approx(0.4, abs=1e-6)
    # rouge_score: without case, stemmed: "agenc spend too much" of 5 words each.
    assert task.other_scores(answer, question, "govreport") == {"ROUGE-L F (rouge_score)": pytest.approx(0.8)}


def test_long_reports_lose_their_middle(tmp_path: Path, smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    file = write(tmp_path / "a.jsonl", report=" ".join([REPORT] * 100), summary=SUMMARY)
    [sample] = make_task("govreport-200", {"govreport": file}).samples(smollm2_tokenizer, None, 42)
    assert sample.truncated_tokens > 500
    assert len(smollm2_tokenizer(sample.context + sample.questions[0].text)["input_ids"]) <= 205
    assert make_task("govreport-200").name == "govreport-200"


@pytest.mark.parametrize("spec", ["govreport:a", "govreport-x"])
def test_a_wrong_name_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match=r"unknown subset|is no limit"):
        make_task(spec)


def test_a_row_of_neither_schema_is_refused(tmp_path: Path, smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    file = write(tmp_path / "a.jsonl", report=REPORT)
    with pytest.raises(UsageError, match=r"a.jsonl', line 1: the field '\w+' is missing"):
        make_task("govreport", {"govreport": file}).samples(smollm2_tokenizer, None, 42)
