"""How figures look: colours and markers that name a press, and the style that all figures share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from kvbench.records import FULL
from kvbench.registry import PRESSES, registered

# Okabe and Ito's without yellow and black, and six more that stay apart from them under every colour blindness.
_COLOURS = (
    *("#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"),
    *("#332288", "#882255", "#999933", "#8C564B", "#5B3A1A", "#0B3D2E"),
)
_MARKERS = "osD^v<>pPXh"
DASHED = (0, (3.5, 1.5))
INK, MUTED = "#222222", "#6b6b6b"

STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same glyphs everywhere
    "font.size": 8,
    "text.parse_math": False,  # a name is not a formula
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "svg.hashsalt": "kvbench",
    "pdf.fonttype": 42,  # TrueType: journals refuse Type 3
}


@dataclass(frozen=True)
class Look:
    """How the line of one press is drawn."""

    colour: str
    marker: str
    dashed: bool


def looks_of(presses: Iterable[str], attention_reading: Callable[[str], bool]) -> dict[str, Look]:
    """Give each press a colour and a marker.

    A registered press has its own in every figure. One with parameters, or from elsewhere, takes those that its
    name prefers, or the next that fewest others have.
    """
    names = [name for name in registered(PRESSES) if name != FULL]
    looks: dict[str, Look] = {}
    for press in sorted(presses, key=lambda press: (press not in names, press)):
        preferred = names.index(press) if press in names else _number(press)
        others = list(looks.values())
        colour = _least_used(_COLOURS, preferred, [look.colour for look in others])
        alike = [look.marker for look in others if look.colour == colour]
        marker = _least_used(_MARKERS, preferred, alike) if alike else _MARKERS[preferred % len(_MARKERS)]
        looks[press] = Look(colour, marker, attention_reading(press.partition("#")[0]))
    return looks


def looks_in_order(names: Sequence[str]) -> dict[str, Look]:
    """Give names that are no presses colours and markers, no two the same among the first eleven."""
    return {
        name: Look(_COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)], dashed=False)
        for place, name in enumerate(names)
    }


def _number(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:4], "big")


def _least_used(choices: Sequence[str], preferred: int, used: list[str]) -> str:
    ring = [choices[(preferred + step) % len(choices)] for step in range(len(choices))]
    return min(ring, key=used.count)
