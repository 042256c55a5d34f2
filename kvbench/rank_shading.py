"""The tokens of a text shaded by their rank, press beside press: the opening figure of the KVP paper.

Shades are ten steps from what a press evicts first to what it keeps longest, each step a tenth of the tokens.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kvbench.errors import KvbenchError
from kvbench.record_table import reason

ON_DARK = (
    *("#00224e", "#123570", "#3b496c", "#575d6d", "#707173"),
    *("#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"),
)
"""What is kept stands out of a dark page (cividis, made for every kind of colour vision)."""
ON_LIGHT = (
    *("#f4f8fc", "#e3eef8", "#d0e1f2", "#b7d4ea", "#94c4df"),
    *("#6aaed6", "#4a98c9", "#2e7ebc", "#1764ab", "#084a91"),
)
"""What is kept stands out of a light page."""
LEVELS = len(ON_LIGHT)
_PANEL = 26
"""Columns of the narrowest panel in a terminal: three fit into 80."""


@dataclass(frozen=True)
class ShadedText:
    """A text's tokens and how presses rank them.

    Attributes:
        pieces: Each token as it is read; joined they are the text. A character of several tokens is the first one's,
            and the others are empty.
        ranks: Per press each token's rank, mean over the heads that are shown, from 0 (kept longest): `[n]`.
        title: What is shown, in a sentence.
    """

    pieces: Sequence[str]
    ranks: dict[str, NDArray[np.float64]]
    title: str

    def places(self, press: str) -> NDArray[np.int64]:
        """Return each token's place in the order of the mean ranks, from 0, `[n]`."""
        return np.argsort(np.argsort(self.ranks[press], kind="stable"), kind="stable")

    def levels(self, press: str) -> NDArray[np.int64]:
        """Return each token's shade, from 0 (evicted first) to `LEVELS` − 1 (kept longest), `[n]`."""
        n = len(self.pieces)
        return (n - 1 - self.places(press)) * LEVELS // n


def mean_ranks(rankings: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each token's rank, mean over heads, `[n]`, from their rankings `[heads, n]`."""
    ranks: NDArray[np.float64] = np.argsort(rankings, axis=-1).mean(axis=0)
    return ranks


def pieces_of(text: str, spans: Sequence[tuple[int, int]], names: Sequence[str]) -> list[str]:
    """Return each token's part of a text, so that joined they are the text again.

    Args:
        text: The text.
        spans: Where each token begins and ends in it; special tokens that the tokenizer has added are empty.
        names: Each token's name, shown for special tokens.
    """
    pieces, read = [], 0
    for (start, end), name in zip(spans, names, strict=True):
        if start == end:
            pieces.append(name)
            continue
        pieces.append(text[read:end])  # whitespace that no token claims goes to the next
        read = max(read, end)
    return pieces


def print_shaded(shaded: ShadedText, console: Console) -> None:
    """Print the presses side by side, in as many columns as fit; without colours, as a table of ranks."""
    console.print(Text(shaded.title, style="bold"))
    if console.color_system is None:
        _print_places(shaded, console)
        return
    legend = Text.assemble("evicted first ", *(("   ", _style(level)) for level in range(LEVELS)), " kept longest")
    console.print(legend)
    across = min(len(shaded.ranks), max(1, console.width // _PANEL))
    width = console.width // across
    panels = [
        Panel(_assembled(shaded, press, _style), title=Text(press), width=width, padding=0) for press in shaded.ranks
    ]
    console.print(Columns(panels, padding=0, width=width))


def _assembled(shaded: ShadedText, press: str, style: Callable[[int], str]) -> Text:
    """Return all tokens, each in the style of its shade."""
    levels = shaded.levels(press).tolist()
    text = Text.assemble(*((visible(piece), style(level)) for piece, level in zip(shaded.pieces, levels, strict=True)))
    if text.plain.endswith("\n"):  # which would be an empty line
        text.right_crop()
    return text


def _style(level: int) -> str:
    return f"{ink_on(ON_DARK[level])} on {ON_DARK[level]}"


def _print_places(shaded: ShadedText, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("token")
    table.add_column("text")
    for press in shaded.ranks:
        table.add_column(Text(press), justify="right", overflow="fold")
    places = [shaded.places(press).tolist() for press in shaded.ranks]
    for number, (piece, *ranks) in enumerate(zip(shaded.pieces, *places, strict=True)):
        table.add_row(str(number), Text(_cell(piece)), *(str(rank + 1) for rank in ranks))
    console.print(table)


def _cell(piece: str) -> str:
    """Return a token as a cell of a table: on one line, its spaces marked too."""
    return visible(piece).replace("\n", "").replace(" ", "␣")


def visible(piece: str) -> str:
    """Return a token with marks for what cannot be seen; a line break stays one, behind its mark."""
    shown = piece.replace("\r\n", "\n").replace("\n", "↵\n").replace("\t", "→ ")
    return "".join(
        "·" if unicodedata.category(letter) in ("Cc", "Cf") and letter != "\n" else letter for letter in shown
    )


def ink_on(colour: str) -> str:
    """Return black or white, whichever is read better on a colour (by WCAG's contrast)."""
    light = _luminance(colour)
    return "#000000" if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else "#ffffff"


def _luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def write_png(shaded: ShadedText, file: Path) -> None:
    """Draw the presses side by side, the same bytes whenever it is the same text and ranks.

    Raises:
        KvbenchError: The file cannot be written.
    """
    from matplotlib.collections import PatchCollection
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.patches import Rectangle

    from kvbench.plot_frame import save

    size, gap = 7.0, 3
    columns = 44 if len(shaded.ranks) > 1 and sum(map(len, shaded.pieces)) < 6000 else 88
    panels = {press: list(_lines(shaded, press, columns)) for press in shaded.ranks}
    rows = max(run.row for runs in panels.values() for run in runs) + 1
    across = len(panels) * (columns + gap) - gap + 2
    top = 5  # title, legend and the presses' names
    font = FontProperties(family="DejaVu Sans Mono", size=size)
    inches = (across * 0.602 * size / 72, (rows + top + 1) * 1.35 * size / 72)
    figure = Figure(figsize=inches, dpi=150, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-1, across - 1)
    axes.set_ylim(rows + 1, -top)
    squares: list[Rectangle] = []
    colours: list[str] = []

    def write(x: float, y: float, text: str, colour: str, weight: str = "normal") -> None:
        axes.text(
            x, y + 0.5, text, color=colour, weight=weight, va="center_baseline", fontproperties=font, parse_math=False
        )

    def shade(x: float, y: float, width: float, level: int) -> None:
        squares.append(Rectangle((x, y), width, 1))
        colours.append(ON_LIGHT[level])

    title = shaded.title if len(shaded.title) <= across - 2 else f"{shaded.title[: across - 3]}…"
    write(0, -top + 0.4, title, "#222222", "bold")
    write(0, -top + 1.9, "evicted first", "#555555")
    for level in range(LEVELS):
        shade(14 + 2 * level, -top + 1.9, 2, level)
    write(15 + 2 * LEVELS, -top + 1.9, "kept longest", "#555555")
    for number, (press, runs) in enumerate(panels.items()):
        left = number * (columns + gap)
        write(left, -1.4, press[:columns], "#222222", "bold")
        for run in runs:
            shade(left + run.column, run.row, cell_len(run.text), run.level)
            write(left + run.column, run.row, run.text, ink_on(ON_LIGHT[run.level]))
    axes.add_collection(PatchCollection(squares, facecolors=colours, edgecolors="none", antialiased=False, zorder=0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # drawn as a box
        save(figure, file)


@dataclass(frozen=True)
class _Run:
    """Letters of one token on one line."""

    row: int
    column: int
    text: str
    level: int


def _lines(shaded: ShadedText, press: str, columns: int) -> Iterator[_Run]:
    """Break the tokens into lines of so many columns, between words where that can be."""
    styled = _assembled(shaded, press, str)
    for row, line in enumerate(styled.wrap(Console(width=columns), columns, overflow="fold")):
        for span in line.spans:
            if text := line.plain[span.start : span.end].rstrip("\n"):
                yield _Run(row, cell_len(line.plain[: span.start]), text, int(str(span.style)))


def write_html(shaded: ShadedText, file: Path) -> None:
    """Write one page that needs nothing else: the presses side by side, each token's rank where it is pointed at.

    Raises:
        KvbenchError: The file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_page(shaded), encoding="utf-8")
    except OSError as error:
        raise KvbenchError(f"cannot write to {file}: {reason(error)}") from error


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ --page: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; {light} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #0d1117; --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; {dark} }}
}}
body {{ margin: 0 auto; padding: 1.5rem; max-width: 110rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.25rem; margin: 0 0 .75rem; }}
h2 {{ font: 600 1rem ui-monospace, monospace; margin: 0 0 .5rem; overflow-wrap: anywhere; }}
.legend {{ display: flex; flex-wrap: wrap; align-items: center; gap: .25rem .5rem; margin: 0 0 1.25rem;
  color: var(--soft); font-size: .9rem; }}
.legend b {{ font-weight: normal; width: 100%; }}
.scale {{ display: flex; border: 1px solid var(--line); }}
.scale i {{ width: clamp(.35rem, 2vw, 1.6rem); height: 1.1rem; }}
.presses {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1.25rem; }}
section {{ border: 1px solid var(--line); border-radius: .4rem; padding: .9rem; min-width: 0; }}
.text {{ margin: 0; font: .85rem/1.65 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }}
details {{ margin-top: 1.25rem; }}
summary {{ cursor: pointer; }}
table {{ border-collapse: collapse; margin-top: .75rem; font-size: .85rem; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .15rem .75rem .15rem 0; text-align: right; }}
th:nth-child(2), td:nth-child(2) {{ text-align: left; font-family: ui-monospace, monospace; white-space: pre; }}
.scroll {{ overflow-x: auto; }}
{classes}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="legend">evicted first <span class="scale" role="img" aria-label="Ten shades, from evicted first to kept
longest">{scale}</span> kept longest <b>Point at a token for its rank.</b></p>
<div class="presses">
{presses}
</div>
<details>
<summary>All ranks as a table</summary>
<div class="scroll" tabindex="0" role="region" aria-label="All ranks">
<table>
<thead><tr><th scope="col">token</th><th scope="col">text</th>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
</details>
</main>
</body>
</html>
"""


def _page(shaded: ShadedText) -> str:
    places = {press: shaded.places(press).tolist() for press in shaded.ranks}
    numbered = enumerate(zip(shaded.pieces, *places.values(), strict=True))
    return _PAGE.format(
        title=escape(shaded.title),
        light=_variables(ON_LIGHT),
        dark=_variables(ON_DARK),
        classes="\n".join(
            f".s{level} {{ background: var(--b{level}); color: var(--f{level}); }}" for level in range(LEVELS)
        ),
        scale="".join(f'<i class="s{level}"></i>' for level in range(LEVELS)),
        presses="\n".join(_section(shaded, press) for press in shaded.ranks),
        heads="".join(f'<th scope="col">{escape(press)}</th>' for press in shaded.ranks),
        rows="\n".join(
            f"<tr><td>{number}</td><td>{escape(_cell(piece))}</td>"
            f"{''.join(f'<td>{place + 1}</td>' for place in row)}</tr>"
            for number, (piece, *row) in numbered
        ),
    )


def _section(shaded: ShadedText, press: str) -> str:
    n = len(shaded.pieces)
    tokens = zip(
        shaded.pieces,
        shaded.levels(press).tolist(),
        shaded.places(press).tolist(),
        shaded.ranks[press].tolist(),
        strict=True,
    )
    spans = "".join(
        f'<span class="s{level}" title="token {number}: rank {place + 1} of {n}, mean {mean + 1:.1f}">'
        f"{escape(visible(piece))}</span>"
        for number, (piece, level, place, mean) in enumerate(tokens)
    )
    return f'<section><h2>{escape(press)}</h2><p class="text">{spans}</p></section>'


def _variables(colours: Sequence[str]) -> str:
    return " ".join(f"--b{level}: {colour}; --f{level}: {ink_on(colour)};" for level, colour in enumerate(colours))
