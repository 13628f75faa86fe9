"""Tables as lines of text, by the columns that characters take on a terminal."""

import re
import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from keel.localization import Verbatim, translate

COLUMNS = 80
"""Columns of a terminal."""
UNIT = re.compile(r"\s+|(?:[\u2e80-\uffef]|[^\s\u2e80-\uffef]+)[，。；：、！？）】》”’]*")
"""What a line is not broken within: a word, or a wide character, with the punctuation after it."""


class TextLines:
    """A result that prints as its lines."""

    def lines(self) -> list[str]:
        """The result as lines of text, as its command prints them."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(self.lines())


def aligned_lines(rows: Sequence[Sequence[str]], *, left: int = 0) -> Iterator[str]:
    """A table whose first `left` columns are left-aligned, the others right-aligned."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        pairs = enumerate(zip(row, gaps, strict=True))
        yield "  ".join(cell + gap if number < left else gap + cell for number, (cell, gap) in pairs).rstrip()


def wrapped_lines(rows: Sequence[Sequence[str]], width: int = COLUMNS, *, left: int = 1) -> Iterator[str]:
    """A table of at most `width` columns of a terminal: further columns follow below, with the first one repeated;
    longer cells are cut."""
    names, *columns = [list(column) for column in zip(*rows, strict=True)]
    names = [cut_text(name, width // 2) for name in names]
    first = max(map(cell_len, names), default=0)
    blocks: list[list[list[str]]] = []
    used = width
    for column in columns:
        column = [cut_text(cell, width - first - 2) for cell in column]
        size = 2 + max(map(cell_len, column), default=0)
        if used + size > width:
            blocks.append([names])
            used = first
        blocks[-1].append(column)
        used += size
    for number, block in enumerate(blocks):
        yield from [""] * (number > 0)
        yield from aligned_lines([*zip(*block, strict=True)], left=left)


def wrapped_text(text: str, width: int) -> list[str]:
    """A text as lines of at most `width` columns of a terminal; Chinese may be broken between any two characters."""
    lines, line = [], ""
    for unit in UNIT.findall(" ".join(text.split())):
        if line and cell_len(line) + cell_len(unit.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += unit if line else unit.lstrip()
    return [*lines, line.rstrip()] if line.strip() else lines


def translated_lines(text: str, width: int = COLUMNS, *, first: str = "", further: str = "") -> list[str]:
    """A sentence of Keel in the user's language as lines of at most `width` columns; with indents."""
    shown = translate(text)
    if shown == text:
        return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=further)
    lines = wrapped_text(shown, width - len(further))
    return [Verbatim(f"{further if number else first}{line}") for number, line in enumerate(lines)]


def cut_text(text: str, width: int) -> str:
    """A text of at most `width` columns of a terminal."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(1, width - 1)).rstrip()}…"


def cut_characters(text: str, count: int) -> str:
    """A text of at most `count` characters, for a page or JSON; `cut_text` is for a terminal."""
    return text if len(text) <= count else f"{text[: count - 1]}…"


def pad_left(text: str, width: int) -> str:
    """A text on the right of `width` columns of a terminal."""
    return " " * (width - cell_len(text)) + text


def pad_right(text: str, width: int) -> str:
    """A text on the left of `width` columns of a terminal."""
    return text + " " * (width - cell_len(text))


def signed(value: float, largest: float) -> str:
    """A number with its sign and the digits that show differences between values up to the largest one."""
    return f"{value:+.3f}" if largest >= 0.01 else f"{value:+.1e}"
