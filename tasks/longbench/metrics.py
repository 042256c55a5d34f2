"""LongBench's metrics, each of a prediction and one answer, from 0 to 1.

They give, to the last digit, what the benchmark's own evaluation gives, its oddities included: published scores
have been computed with them.
"""

from __future__ import annotations

import logging
import re
import string
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import SequenceMatcher

_CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃"
    "》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_CHINESE_PUNCTUATION = str.maketrans("", "", string.punctuation + _CHINESE_PUNCTUATION)


def qa_f1(prediction: str, answer: str) -> float:
    """Return the F1 of the words that both hold, without case, punctuation and articles."""
    return _f1(_words(prediction), _words(answer))


def qa_f1_zh(prediction: str, answer: str) -> float:
    """Return the F1 of the words that both hold, as jieba cuts them, without case and punctuation."""
    return _f1(_chinese_words(prediction), _chinese_words(answer))


def rouge_l(prediction: str, answer: str) -> float:
    """Return the ROUGE-L F of the `rouge` package: of whole summaries, on words between blanks.

    Where the package fails the score is 0: an empty prediction, or sentences of together about a thousand words, for
    which it recurses too deep. It is called in a thread of its own, so that the depth left to it does not depend on
    who asks.
    """
    with ThreadPoolExecutor(1) as fresh:
        return fresh.submit(_rouge_l, prediction, answer).result()


def rouge_l_zh(prediction: str, answer: str) -> float:
    """Return `rouge_l` of the words that jieba cuts."""
    return rouge_l(" ".join(_cut(prediction)), " ".join(_cut(answer)))


def classification(prediction: str, answer: str, classes: Sequence[str]) -> float:
    """Return 1 over the number of classes that the prediction names, if the answer is among them.

    A class that is part of the answer's own name does not count, but for one that follows another such class: the
    benchmark skips it.
    """
    named = [name for name in classes if name in prediction]
    for name in named:  # the list shrinks while it is walked, as in the benchmark
        if name in answer and name != answer:
            named.remove(name)
    return 1 / len(named) if answer in named else 0.0


def retrieval(prediction: str, answer: str, word: str) -> float:
    """Return the share of the prediction's numbers that are the one after `word` in the answer."""
    wanted = re.search(rf"{word}(\d+)", answer)
    return _share_of_numbers(prediction, wanted[1] if wanted else "")


def count(prediction: str, answer: str) -> float:
    """Return the share of the prediction's numbers that are the answer."""
    return _share_of_numbers(prediction, answer)


def code_similarity(prediction: str, answer: str) -> float:
    """Return how alike the prediction's first line of code and the answer are, in hundredths.

    Lines with a backquote, "#" or "//" are passed over. The measure is difflib's ratio, which fuzzywuzzy gives where
    only Python is installed; with python-Levenshtein, or in its successors, it is another.
    """
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    if not line or not answer:
        return float(line == answer)
    return round(100 * SequenceMatcher(None, line, answer).ratio()) / 100


def _words(text: str) -> list[str]:
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_NO_PUNCTUATION)).split()


def _chinese_words(text: str) -> list[str]:
    words = ("".join(word.lower().translate(_NO_CHINESE_PUNCTUATION).split()) for word in _cut(text))
    return [word for word in words if word]


def _cut(text: str) -> list[str]:
    import jieba

    jieba.setLogLevel(logging.WARNING)  # it tells of its dictionary on the terminal otherwise
    return list(jieba.cut(text, cut_all=False))


def _f1(predicted: Sequence[str], wanted: Sequence[str]) -> float:
    same = sum((Counter(predicted) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(predicted), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _share_of_numbers(prediction: str, wanted: str) -> float:
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(wanted) / len(numbers) if numbers else 0.0


def _rouge_l(prediction: str, answer: str) -> float:
    from rouge import Rouge

    try:
        [scores] = Rouge(metrics=["rouge-l"]).get_scores([prediction], [answer])
    except Exception:  # any, as in the benchmark
        return 0.0
    return float(scores["rouge-l"]["f"])
