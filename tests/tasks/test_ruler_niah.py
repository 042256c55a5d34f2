"""Needles: several keys, values and queries, as the essay subtasks ask for them."""

from itertools import islice

from kvbench.tasks.ruler.niah import Niah, enumeration, noise
from kvbench.tasks.ruler.subtask import Prompt


def words(text: str) -> int:
    return len(text.split())


def drawn(subtask: Niah) -> list[Prompt]:
    return list(islice(subtask.prompts(1000, 5, words), 3))


def test_all_values_of_a_key_are_asked_for() -> None:
    for prompt in drawn(Niah(noise(), values=4)):
        key = prompt.question.partition("numbers for ")[2].partition(" mentioned")[0]
        needles = [line for line in prompt.context.split("\n") if line.startswith("One of the special")]
        assert sorted(needles) == sorted(f"One of the special magic numbers for {key} is: {v}." for v in prompt.answers)
        assert len(set(prompt.answers)) == 4


def test_several_keys_of_those_hidden_are_asked_for() -> None:
    for prompt in drawn(Niah(noise(), keys=5, queries=3)):
        phrase = prompt.question.partition("numbers for ")[2].partition(" mentioned")[0]
        keys = phrase.replace(", and ", ", ").split(", ")
        assert len(set(keys)) == 3
        for key, value in zip(keys, prompt.answers, strict=True):
            assert f"One of the special magic numbers for {key} is: {value}." in prompt.context
        assert prompt.context.count("One of the special") == 5
        assert f"The special magic numbers for {phrase} mentioned in the provided text are" in prompt.answer_prefix


def test_one_of_several_keys_is_asked_for_in_the_singular() -> None:
    for prompt in drawn(Niah(noise(), keys=4)):
        assert prompt.context.startswith("A special magic number is hidden")
        assert prompt.question.startswith("\nWhat is the special magic number for ")
        assert prompt.answer_prefix.endswith(" is")
        assert len(prompt.answers) == 1


def test_enumeration() -> None:
    assert enumeration(["a"]) == "a"
    assert enumeration(["a", "b"]) == "a, and b"
    assert enumeration(["a", "b", "c"]) == "a, b, and c"
