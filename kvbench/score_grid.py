"""Records as one array of scores, in which everything that is compared lies side by side: paired by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvbench.bootstrap import Codes, Floats
from kvbench.errors import UsageError
from kvbench.records import FULL, REPEAT


@dataclass(frozen=True)
class ScoreGrid:
    """The scores of one protocol. A sample here is one question: what two presses can both answer.

    Attributes:
        presses: The names of the second axis.
        scores: `[samples, presses, budgets]`, NaN where a cell failed or was not run.
        full: `[samples]`, the full cache's.
        subtask: `[samples]`, as integers.
        source: `[samples]`, the source document, as integers; in the subtasks of `one_document` the sample.
        weight: `[samples]`, what a score counts in its subtask's mean.
        repeat: `[samples]`, the full cache's once more; NaN where it was not answered twice.
        one_document: The subtasks whose samples all come from one document that no other subtask has. It tells nothing
            of other documents, so its samples are taken for what was sampled: intervals are for other questions
            about it.
    """

    presses: tuple[str, ...]
    scores: Floats
    full: Floats
    subtask: Codes
    source: Codes
    weight: Floats
    repeat: Floats
    one_document: tuple[str, ...] = ()

    @property
    def complete(self) -> NDArray[np.bool_]:
        """`[samples, presses]`: whether the press scored at every budget and the full cache did, too."""
        return ~np.isnan(self.scores).any(axis=2) & ~np.isnan(self.full)[:, None]


def score_grid(frame: pd.DataFrame, budgets: Sequence[str]) -> ScoreGrid:
    """Arrange the records of one protocol.

    Args:
        frame: Rows of `kvbench.store.Results.frame`.
        budgets: The labels of the last axis.

    Raises:
        UsageError: One question's scores weigh differently under two presses or budgets, so that their means are not
            comparable.
    """
    subtask, subtasks = pd.factorize(frame["subtask"])
    source, sample = (pd.factorize(frame[column])[0] for column in ("source", "sample"))
    question, first = _questions(frame, subtask, sample)
    subtask, source, sample = subtask[first], source[first], sample[first]
    alone = _of_one_document(subtask, source, sample)
    score = frame["score"].where(frame["status"] == "ok").to_numpy(float)
    press, names = pd.factorize(press_names(frame))
    budget = pd.Index(budgets).get_indexer(pd.Index(frame["budget"]))

    full, repeat = (
        _placed(score, question, (frame["budget"] == label).to_numpy(), len(first)) for label in (FULL, REPEAT)
    )
    scores = np.full((len(first), len(names), len(budgets)), np.nan)
    placed = budget >= 0
    scores[question[placed], press[placed], budget[placed]] = score[placed]
    presses = [place for place, name in enumerate(names) if name != FULL]
    return ScoreGrid(
        presses=tuple(str(names[place]) for place in presses),
        scores=scores[:, presses],
        full=full,
        subtask=subtask,
        source=pd.factorize(np.where(alone, source.max() + 1 + sample, source))[0],
        weight=_weights(frame, score, question, len(first)),
        repeat=repeat,
        one_document=tuple(str(subtasks[code]) for code in np.unique(subtask[alone])),
    )


def press_names(frame: pd.DataFrame) -> pd.Series:
    """Return each row's press label, with the identity where one label has several."""
    pairs = frame[["press", "press_identity"]].drop_duplicates()
    twins = set(pairs["press"][pairs["press"].duplicated()]) - {FULL}
    if not twins:
        return frame["press"]
    label, identity = frame["press"].astype(str), frame["press_identity"].astype(str).str[:6]
    return label.where(~label.isin(twins), label + "#" + identity)


def _placed(score: Floats, sample: Codes, rows: NDArray[np.bool_], samples: int) -> Floats:
    """Return some rows' scores by sample."""
    placed = np.full(samples, np.nan)
    placed[sample[rows]] = score[rows]
    return placed


def _weights(frame: pd.DataFrame, score: Floats, sample: Codes, samples: int) -> Floats:
    """Return what each sample counts in a mean; 1 where none of its cells has a score."""
    weight, scored = frame["weight"].to_numpy(float), ~np.isnan(score)
    weights = np.ones(samples)
    weights[sample[scored]] = weight[scored]
    different = scored & (weights[sample] != weight)
    if different.any():
        row = int(np.flatnonzero(different)[0])
        raise UsageError(
            f"sample '{frame['sample'].iloc[row]}' has scores of weight {weight[row]:g} and "
            f"{weights[sample[row]]:g}: a question's scores weigh the same under every press and budget"
        )
    return weights


def _of_one_document(subtask: Codes, source: Codes, sample: Codes) -> NDArray[np.bool_]:
    """Return which questions belong to a subtask of several samples and one document that no other subtask has."""
    one_document = _distinct_partners(subtask, source) == 1
    several_samples = _distinct_partners(subtask, sample) > 1
    one_subtask = _distinct_partners(source, subtask) == 1
    alone: NDArray[np.bool_] = (one_document & several_samples)[subtask] & one_subtask[source]
    return alone


def _distinct_partners(codes: Codes, partners: Codes) -> Codes:
    """Return of each code how many distinct partners it is paired with."""
    return np.asarray(pd.Series(partners).groupby(codes).nunique(), np.int64)


def _questions(frame: pd.DataFrame, subtask: Codes, sample: Codes) -> tuple[Codes, Codes]:
    """Number the questions; return each row's number, and of each question the first row."""
    question = frame["question"].to_numpy(int)
    combined = np.ravel_multi_index(
        (subtask, sample, question), (subtask.max() + 1, sample.max() + 1, question.max() + 1)
    )
    number = pd.factorize(combined)[0]
    return number, np.flatnonzero(~pd.Series(number).duplicated())
