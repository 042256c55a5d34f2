"""One press against every other on the same samples, by the area under the curve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from rich.console import Console

from kvbench.captions import conditions_of, one_document_in_words, title_of
from kvbench.comparison import OUTCOME_NOTE, Outcome, compare_where_possible, outcome_columns, require_press
from kvbench.records import FULL, REPEAT, Protocol
from kvbench.score_grid import press_names
from kvbench.statistics import adjusted
from kvbench.store import Results
from kvbench.table_layout import Column, Layout, show_layouts


@dataclass(frozen=True)
class Standing:
    """How a press does against the others under one protocol.

    Attributes:
        protocol: What was measured and how.
        press: Which press.
        others: Of the areas as shares of the full cache, by the other press, the best first; p-values are corrected
            for their number.
        missing: Subtasks of the task that have no results.
        one_document: Subtasks whose intervals are for other questions about their only document (`ScoreGrid`).
    """

    protocol: Protocol
    press: str
    others: dict[str, Outcome]
    missing: tuple[str, ...]
    one_document: tuple[str, ...]


def compare_with_all(results: Results, press: str) -> list[Standing]:
    """Compare a press with every other, under each protocol that has it.

    Args:
        results: The records.
        press: Its name as tables show it.

    Raises:
        UsageError: There is no such press.
    """
    require_press(results, press)
    others = sorted(set(map(str, press_names(results.frame).unique())) - {press, FULL, REPEAT})
    found = {other: compare_where_possible(results, press, other) for other in others}
    standings = []
    for protocol in results.protocols.values():
        pairs = {
            other: comparison
            for other, comparisons in found.items()
            for comparison in comparisons
            if comparison.protocol == protocol
        }
        if pairs:
            pair = next(iter(pairs.values()))
            areas = {other: comparison.area for other, comparison in pairs.items()}
            standings.append(Standing(protocol, press, _corrected(areas, protocol), pair.missing, pair.one_document))
    return standings


def _corrected(areas: dict[str, Outcome], protocol: Protocol) -> dict[str, Outcome]:
    differences = adjusted([outcome.difference for outcome in areas.values()])
    corrected = {
        other: replace(outcome, difference=difference)
        for (other, outcome), difference in zip(areas.items(), differences, strict=True)
    }
    sign = -1 if protocol.lower_is_better else 1

    def lead_over(other: str) -> float:
        mean = corrected[other].difference.mean
        return float("inf") if mean is None else sign * mean

    return {other: corrected[other] for other in sorted(corrected, key=lead_over)}


def show_standings(standings: Sequence[Standing], style: str, console: Console) -> None:
    """Print standings as `rich` (for reading), `md`, `latex` or `json`.

    Raises:
        UsageError: There is no such style.
    """
    show_layouts(list(map(_layout, standings)), {"json": lambda: _to_json(standings)}, style, console)


def _layout(standing: Standing) -> Layout:
    lower = "; lower is better" if standing.protocol.lower_is_better else ""
    return Layout(
        title=f"{standing.press} − others · AUC · {title_of(standing.protocol, missing=standing.missing)}",
        names=Column("other press", list(standing.others)),
        groups=[[column] for column in outcome_columns(list(standing.others.values()), standing.protocol)],
        notes=[
            *([f"missing: {', '.join(standing.missing)}"] if standing.missing else []),
            conditions_of(standing.protocol),
            f"difference [95 % interval] of AUC as a share of the full cache{lower}; "
            f"{OUTCOME_NOTE.format(corrected_for='presses', press=standing.press)}",
            *one_document_in_words(standing.one_document),
        ],
    )


def _to_json(standings: Sequence[Standing]) -> str:
    content = [
        {"hash": standing.protocol.hash, **asdict(standing), "protocol": standing.protocol.model_dump(mode="json")}
        for standing in standings
    ]
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
