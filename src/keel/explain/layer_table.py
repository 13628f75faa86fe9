"""Tables of layers down and tasks across, as lines of text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

LINE = 80
"""Columns of a terminal."""
NAME = 20
"""Columns of a terminal for the name of a task."""


class TableColumn(NamedTuple):
    """A task: a cell for each layer, and cells of further rows below."""

    name: str
    cells: Mapping[int, str]
    more: Sequence[str] = ()


def layer_lines(columns: Sequence[TableColumn], more: Sequence[str] = ()) -> Iterator[str]:
    """A row for each layer that any column has, then the rows named in `more`; of at most 80 columns of a terminal:
    further tasks follow below."""
    numbers = sorted({number for each in columns for number in each.cells})
    names = ["layer", *map(str, numbers), *more]
    first = max(map(len, names))
    blocks: list[list[list[str]]] = []
    used = LINE
    for each in columns:
        cells = [cut_name(each.name), *(each.cells.get(number, "-") for number in numbers), *each.more]
        width = max(map(cell_len, cells))
        padded = [" " * (2 + width - cell_len(cell)) + cell for cell in cells]
        if used + 2 + width > LINE:
            blocks.append([])
            used = first
        blocks[-1].append(padded)
        used += 2 + width
    for index, block in enumerate(blocks):
        yield from [""] * (index > 0)
        yield from (name.rjust(first) + "".join(row) for name, row in zip(names, zip(*block, strict=True), strict=True))


def cut_name(name: str, width: int = NAME) -> str:
    """A name of at most `width` columns of a terminal."""
    return name if cell_len(name) <= width else f"{set_cell_size(name, width - 1).rstrip()}…"
