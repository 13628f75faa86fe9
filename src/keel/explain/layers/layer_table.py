"""Tables of layers down and tasks across, as lines of text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from keel.localization import translate, translated
from keel.text_table import cut_text, wrapped_lines

NAME = 20
"""Columns of a terminal for the name of a task."""


class TableColumn(NamedTuple):
    """A task: a cell for each layer, and cells of further rows below."""

    name: str
    cells: Mapping[int, str]
    more: Sequence[str] = ()


def layer_lines(columns: Sequence[TableColumn], more: Sequence[str] = ()) -> Iterator[str]:
    """A row for each layer that any column has, then the rows named in `more`."""
    numbers = sorted({number for each in columns for number in each.cells})
    names = [translate("layer"), *map(str, numbers), *translated(more)]
    cells = [
        [cut_text(each.name, NAME), *(each.cells.get(number, "-") for number in numbers), *each.more]
        for each in columns
    ]
    return wrapped_lines([*zip(names, *cells, strict=True)], left=0)
