"""The thirteen subtasks, in RULER's order."""

from __future__ import annotations

from collections.abc import Callable

from .common_words import CommonWords
from .data import HOTPOTQA, SQUAD, Data
from .essays import Essay
from .frequent_words import FrequentWords
from .niah import IDENTIFIER, NUMBER, WORD, Niah, distractors, noise
from .question_answering import QuestionAnswering
from .subtask import Subtask
from .variable_tracking import VariableTracking

SUBTASKS: dict[str, Callable[[Data], Subtask]] = {
    "niah_single_1": lambda _: Niah(noise(), key=WORD, value=NUMBER),
    "niah_single_2": lambda data: Niah(Essay(data.haystack), key=WORD, value=NUMBER),
    "niah_single_3": lambda data: Niah(Essay(data.haystack), key=WORD, value=IDENTIFIER),
    "niah_multikey_1": lambda data: Niah(Essay(data.haystack), key=WORD, value=NUMBER, keys=4),
    "niah_multikey_2": lambda _: Niah(distractors(WORD, NUMBER), key=WORD, value=NUMBER),
    "niah_multikey_3": lambda _: Niah(distractors(IDENTIFIER, IDENTIFIER), key=IDENTIFIER, value=IDENTIFIER),
    "niah_multivalue": lambda data: Niah(Essay(data.haystack), key=WORD, value=NUMBER, values=4),
    "niah_multiquery": lambda data: Niah(Essay(data.haystack), key=WORD, value=NUMBER, keys=4, queries=4),
    "vt": lambda _: VariableTracking(),
    "cwe": lambda _: CommonWords(),
    "fwe": lambda _: FrequentWords(),
    "qa_1": lambda data: QuestionAnswering(data.corpus(SQUAD)),
    "qa_2": lambda data: QuestionAnswering(data.corpus(HOTPOTQA)),
}
"""Make a subtask from the data that it draws from."""

ESSAY_SUBTASKS = frozenset({"niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery"})
CORPUS_OF = {"qa_1": SQUAD, "qa_2": HOTPOTQA}
