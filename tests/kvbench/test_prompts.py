"""Prompts: one tokenisation, split without a token being lost, shared or leaked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from kvbench.errors import KvbenchError
from kvbench.prompts import prompts_of
from kvbench.task import Question, Sample, Template
from tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="#"), min_size=1, max_size=30)


def sample(context: str, *questions: str, prefix: str = " So:", template: Template = "chat") -> Sample:
    asked = tuple(Question(text=text, answer_prefix=prefix, targets=(), max_new_tokens=1) for text in questions)
    return Sample(id="s", subtask="t", context=context, questions=asked, source="s", template=template)


@given(WORDS, WORDS)
def test_context_and_fed_tokens_are_the_rendered_prompt_wherever_the_question_sits(context: str, text: str) -> None:
    whole = f"<user>{context}{text}</s><assistant> So:"
    for placement in ("inside", "after"):
        [prompt] = prompts_of(TOKENIZER, sample(context, text), placement)
        tokens = [*prompt.context.tolist(), *prompt.fed[0].tolist()]
        assert tokens == TOKENIZER(whole, add_special_tokens=False)["input_ids"]


@given(WORDS, WORDS)
def test_after_compresses_the_context_alone_and_inside_holds_back_the_last_token(context: str, text: str) -> None:
    [after] = prompts_of(TOKENIZER, sample(context, text), "after")
    assert TOKENIZER.decode(after.context) == f"<user>{context}"
    [inside] = prompts_of(TOKENIZER, sample(context, text), "inside")
    assert len(inside.fed[0]) == 1
    assert TOKENIZER.decode(inside.fed[0]) == ":"


def test_questions_after_share_one_context_and_questions_inside_do_not() -> None:
    asked = sample("The sky is blue.", " Which colour?", " Whose?", " What?")
    [shared] = prompts_of(TOKENIZER, asked, "after")
    assert (len(shared.fed), shared.questions) == (3, (0, 1, 2))
    inside = prompts_of(TOKENIZER, asked, "inside")
    assert [prompt.questions for prompt in inside] == [(0,), (1,), (2,)]


def test_without_a_chat_template_the_prompt_is_the_plain_text() -> None:
    [prompt] = prompts_of(TOKENIZER, sample("context", " question", template="none"), "after")
    assert TOKENIZER.decode(prompt.context) == "context"
    assert TOKENIZER.decode(prompt.fed[0]) == " question So:"


def test_an_empty_context_after_which_a_question_stands_is_refused() -> None:
    with pytest.raises(KvbenchError, match="nothing to compress"):
        prompts_of(TOKENIZER, sample("", "question", template="none"), "after")


@pytest.mark.real_model
def test_a_token_that_spans_the_boundary_is_not_part_of_the_context(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    [prompt] = prompts_of(smollm2_tokenizer, sample("the cat sat on the mat", "erial world"), "after")
    assert smollm2_tokenizer.decode(prompt.context).endswith("on the")
    assert smollm2_tokenizer.decode(prompt.fed[0]).startswith(" material world")


@pytest.mark.real_model
def test_the_template_is_tokenised_without_a_second_start_token(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    [prompt] = prompts_of(smollm2_tokenizer, sample("hello", " you"), "inside")
    tokens = prompt.context.tolist()
    assert tokens[0] == smollm2_tokenizer.bos_token_id
    assert tokens[1] != smollm2_tokenizer.bos_token_id
