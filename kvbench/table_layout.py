"""Columns of text as a table: for a terminal of any width, as Markdown, as LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from kvbench.errors import unknown


@dataclass(frozen=True)
class Column:
    """A heading and what is below it; the columns of a table have equally many values."""

    head: str
    values: Sequence[str]

    @property
    def width(self) -> int:
        """Its characters."""
        return max(len(text) for text in (self.head, *self.values))


@dataclass(frozen=True)
class Layout:
    """A table in words.

    Attributes:
        title: What it shows.
        names: Its first column, repeated where the others do not fit side by side.
        groups: The other columns; those of a group stay together.
        notes: What a reader has to know.
        rule: Whether a line sets the first row apart.
    """

    title: str
    names: Column
    groups: Sequence[Sequence[Column]]
    notes: Sequence[str]
    rule: bool = False

    @property
    def columns(self) -> list[Column]:
        """All columns."""
        return [self.names, *(column for group in self.groups for column in group)]


def show_layouts(
    layouts: Sequence[Layout], machine_readable: Mapping[str, Callable[[], str]], style: str, console: Console
) -> None:
    """Print tables as `rich` (for reading, within the console's width), `md`, `latex` or for machines.

    Args:
        layouts: The tables in words.
        machine_readable: What the same tables are in each style that is not for people.
        style: Which.
        console: Where to.

    Raises:
        UsageError: There is no such style.
    """
    texts: dict[str, Callable[[], str]] = {
        "md": lambda: "\n".join(map(to_markdown, layouts)),
        **machine_readable,
        "latex": lambda: "\n".join(map(to_latex, layouts)),
    }
    if style == "rich":
        for layout in layouts:
            to_terminal(layout, console)
    elif style in texts:
        console.out(texts[style](), highlight=False, end="")
    else:
        raise unknown("table format", style, ["rich", *texts])


def to_terminal(layout: Layout, console: Console) -> None:
    """Print a table within the console's width, in several blocks if need be."""
    console.print(Text(layout.title, style="bold"))
    gap, blocks = _blocks(layout, console.width)
    for block in blocks:
        grid = RichTable(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False)
        for column in block:
            grid.add_column(column.head, justify="left" if column is layout.names else "right", overflow="fold")
        for index, values in enumerate(zip(*(column.values for column in block), strict=True)):
            grid.add_row(*map(Text, values), end_section=index == 0 and layout.rule)
        console.print(grid)
        console.print()
    for note in layout.notes:
        console.print(Text(note, style="dim"))
    console.print()


def to_markdown(layout: Layout) -> str:
    """Return a table under a heading."""
    columns = layout.columns
    lines = [[column.head for column in columns], ["---", *["---:"] * (len(columns) - 1)]]
    lines += [[text.strip() for text in texts] for texts in zip(*(column.values for column in columns), strict=True)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"### {layout.title}\n\n{body}\n\n{'; '.join(layout.notes)}.\n"


def to_latex(layout: Layout) -> str:
    """Return a table for LaTeX with the package booktabs, its notes in the caption."""
    columns = [[column.head, *column.values] for column in layout.columns]
    head, *rows = [" & ".join(_latex(text.strip()) for text in texts) + r" \\" for texts in zip(*columns, strict=True)]
    if layout.rule:
        rows.insert(1, r"\midrule")
    lines = [r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_latex('. '.join([layout.title, *layout.notes]))}.}}",
            rf"  \begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            *(f"    {line}" for line in lines),
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "·": r"$\cdot$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "<": "$<$",
        ">": "$>$",
    }
)


def _latex(text: str) -> str:
    return text.translate(_LATEX)


def _blocks(layout: Layout, width: int) -> tuple[int, list[list[Column]]]:
    """Spread the columns evenly over the fewest blocks that fit the width, each with the names in front.

    Returns:
        The space between two columns, which is 1 instead of 2 where that saves a block, and the blocks.
    """
    gap = min((2, 1), key=lambda gap: len(_filled(layout, width, gap)))
    fewest = len(_filled(layout, width, gap))
    even = (_filled(layout, narrower, gap) for narrower in range(width + 1))
    return gap, next(blocks for blocks in even if len(blocks) <= fewest)


def _filled(layout: Layout, width: int, gap: int) -> list[list[Column]]:
    blocks: list[list[Column]] = []
    room = -1
    for group in layout.groups:
        needed = sum(gap + column.width for column in group)
        room -= needed
        if room < 0:
            blocks.append([layout.names])
            room = width - layout.names.width - needed
        blocks[-1] += group
    return blocks
