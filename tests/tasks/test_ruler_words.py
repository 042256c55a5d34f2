"""RULER's words: a list of six million pairs without building it."""

import random

from hypothesis import given
from hypothesis import strategies as st

from kvbench.tasks.ruler.words import WordPairs, word_pairs

WORDS = st.lists(st.text("ab- ", min_size=1, max_size=4), min_size=1, max_size=8)


@given(adjectives=WORDS, nouns=WORDS)
def test_pairs_are_the_sorted_set_of_all_combinations(adjectives: list[str], nouns: list[str]) -> None:
    pairs = WordPairs(adjectives, nouns)
    expected = sorted({f"{adjective}-{noun}" for adjective in adjectives for noun in nouns})
    assert list(pairs) == expected
    assert pairs[-1] == expected[-1]
    assert pairs[1:3] == expected[1:3]


@given(adjectives=WORDS, nouns=WORDS, seed=st.integers(0, 9))
def test_a_choice_among_pairs_is_a_choice_from_the_list(adjectives: list[str], nouns: list[str], seed: int) -> None:
    pairs = WordPairs(adjectives, nouns)
    assert random.Random(seed).choice(pairs) == random.Random(seed).choice(list(pairs))


def test_the_real_pairs_are_in_order_around_hyphenated_adjectives() -> None:
    pairs = word_pairs()
    beginnings = range(0, len(pairs), 997)
    sampled = [pairs[i] for i in beginnings]
    assert sampled == sorted(sampled)
    assert len(set(sampled)) == len(sampled)
