"""Counting tokens for RULER: exact for every tokenizer, and done once."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from kvbench.tasks.ruler.token_counts import TokenCounter, remembered

TEXT = "One of the special magic numbers for\n\nred-car is:  7047102. \n"


def spaces_inside_tokens() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens reach across words."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    backend.train_from_iterator([TEXT] * 3, trainers.BpeTrainer(vocab_size=80, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")


TOKENIZERS = [spaces_inside_tokens(), ByT5Tokenizer()]


@given(text=st.text("One f\n\tspecial-7.é<|im_start|>", max_size=60))
@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["fast", "python"])
def test_counts_what_tokenize_gives(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert TokenCounter(tokenizer)(text) == len(tokenizer.tokenize(text))


def test_counts_what_smollm2_gives(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    text = TEXT * 50 + "<|im_start|>"
    assert TokenCounter(smollm2_tokenizer)(text) == len(smollm2_tokenizer.tokenize(text))


def test_padding_and_truncation_set_by_others_do_not_count() -> None:
    tokenizer = spaces_inside_tokens()
    tokens = len(tokenizer.tokenize(TEXT))
    before = TokenCounter(tokenizer)
    tokenizer(TEXT, padding="max_length", truncation=True, max_length=5)
    assert [count(TEXT) for count in (before, TokenCounter(tokenizer))] == [tokens, tokens]
    assert before.fingerprint == TokenCounter(tokenizer).fingerprint


def test_counts_are_taken_from_the_disk_the_second_time(empty_cache: Path) -> None:
    counter = TokenCounter(spaces_inside_tokens())
    with remembered(counter, "name") as count:
        assert count(TEXT) == counter(TEXT)
    (file,) = empty_cache.rglob("*.*")
    (digest,) = json.loads(file.read_text())

    file.write_text(json.dumps({digest: 12345}))

    with remembered(counter, "name") as count:
        assert count(TEXT) == 12345
        assert count("another text") == counter("another text")
    with remembered(counter, "another name") as count:
        assert count(TEXT) == counter(TEXT)


def test_another_tokenizer_has_counts_of_its_own(smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    counters = [TokenCounter(spaces_inside_tokens()), TokenCounter(smollm2_tokenizer)]
    for counter in counters:
        with remembered(counter, "name") as count:
            assert count(TEXT) == counter(TEXT)
    assert counters[0](TEXT) != counters[1](TEXT)


def test_a_damaged_file_is_counted_again(empty_cache: Path) -> None:
    counter = TokenCounter(spaces_inside_tokens())
    with remembered(counter, "name") as count:
        count(TEXT)
    (file,) = empty_cache.rglob("*.*")
    file.write_text(file.read_text()[:-5])
    with remembered(counter, "name") as count:
        assert count(TEXT) == counter(TEXT)
    assert len(json.loads(file.read_text())) == 1


def test_a_cache_that_cannot_be_written_is_done_without(empty_cache: Path) -> None:
    empty_cache.write_text("a file in the folder's place")
    counter = TokenCounter(spaces_inside_tokens())
    with remembered(counter, "name") as count:
        assert count(TEXT) == counter(TEXT)


def test_counts_survive_an_interrupted_run(empty_cache: Path) -> None:
    counter = TokenCounter(spaces_inside_tokens())

    def interrupted() -> None:
        with remembered(counter, "name") as count:
            count(TEXT)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (file,) = empty_cache.rglob("*.*")
    assert list(json.loads(file.read_text()).values()) == [counter(TEXT)]
