"""Pairs of a text and what it is to become: two files side by side, or a table with a column for each."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from keel.data.examples import DEFAULT_COLUMNS, Columns, ExampleColumns, Examples
from keel.data.tables import SOURCE_TARGET_PAIRS, Locations, Table, load_table
from keel.data.text_files import open_text
from keel.errors import KeelError
from keel.events import OnEvent, counted, ignore, note

NESTED = "translation"
"""The column in which others keep both texts, each by the name of its language."""


def two_files(source: Any) -> tuple[Any, Any] | None:
    """The two that a source names side by side: a tuple of them, or their names with a comma between."""
    if isinstance(source, tuple) and len(source) == 2 and not isinstance(source[0], tuple):
        return source[0], source[1]
    if isinstance(source, str) and source.count(",") == 1 and not Path(source).exists():
        first, second = source.split(",")
        return first, second
    return None


def read_aligned(source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
    """Pairs from two files whose lines belong together, or from a table, a list or a DataFrame; what has one text alone
    is read without targets.

    The column of the source is `text_column`, that of the target `label_column` or `second_column`.
    """
    if isinstance(source, Examples):
        return source
    both = two_files(source)
    table = _side_by_side(*both, columns, on_event) if both else _table(source, columns, on_event)
    if not len(table):
        raise KeelError(f"{table.source} holds no texts: give one in every line or item")
    first, second = (0, 1) if both else _chosen(table, columns)
    for number in (first, second):
        _check_texts(table, number)
    texts = table.cells[first]
    if second is None:
        return Examples(ExampleColumns(texts, None, None, table.locations), None, table.source, tuple(table.columns))
    targets = table.cells[second]
    names = table.columns if table.header else [f"column {name}" for name in table.columns]
    if not both and isinstance(source, str | Path):
        note(on_event, f"{table.source}: source in {names[first]!r}, target in {names[second]!r}")
    empty = [place for place in range(len(texts)) if not (texts[place].strip() and targets[place].strip())]
    void = [place for place in empty if not (texts[place].strip() or targets[place].strip())]
    if len(void) < len(empty):
        place = next(place for place in empty if texts[place].strip() or targets[place].strip())
        side = "source" if targets[place].strip() else "target"
        more = f" ({len(empty) - len(void)} such pairs in all)" if len(empty) - len(void) > 1 else ""
        raise KeelError(
            f"{table.locations[place]}: the {side} is empty and the other text is not{more}: fill it in, or drop the pair"
        )
    items = ExampleColumns(texts, None, targets, table.locations)
    if void:
        note(on_event, f"{table.source}: {counted(len(void), 'pair')} of nothing and nothing left out")
        items = items.take([place for place in range(len(texts)) if place not in set(void)])
    if items.texts == items.values:
        note(
            on_event, f"{table.source}: every target is equal to its source, and there is nothing to learn but copying"
        )
    return Examples(items, "text", table.source, tuple(table.columns))


def _side_by_side(first: Any, second: Any, columns: Columns, on_event: OnEvent) -> Table:
    """Line n of the one beside line n of the other."""
    sides = [_lines(side, columns, on_event) for side in (first, second)]
    names = [
        str(side) if isinstance(side, str | Path) else f"the {place} list"
        for side, place in ((first, "first"), (second, "second"))
    ]
    if len(sides[0]) != len(sides[1]):
        counts = f"{names[0]} has {len(sides[0]):,} lines and {names[1]} has {len(sides[1]):,}"
        raise KeelError(f"{counts}: line n of one must be what line n of the other becomes, so mend the shorter one")
    source = f"{names[0]} and {Path(names[1]).name}"
    return Table(source, ["source", "target"], sides, Locations(f"{names[0]}:", range(1, len(sides[0]) + 1)))


def _lines(side: Any, columns: Columns, on_event: OnEvent) -> list[Any]:
    return open_text(side, columns.encoding, on_event).lines() if isinstance(side, str | Path) else list(side)


def _table(source: Any, columns: Columns, on_event: OnEvent) -> Table:
    named = [name for name in (columns.text_column, columns.second_column, columns.label_column) if name]
    # A list of texts alone is as good as one of pairs; of a file's columns both are texts.
    pair = isinstance(source, str | Path)
    table = load_table(source, pair=pair, named=named, encoding=columns.encoding, on_event=on_event)
    records = table.cells[table.columns.index(NESTED)] if NESTED in table.columns else []
    if not any(isinstance(record, dict) for record in records):
        return table
    for place, record in enumerate(records):
        if not isinstance(record, dict):
            what = f"{NESTED!r} is {record!r:.60}, not both texts by their languages as elsewhere"
            raise KeelError(f"{table.locations[place]}: {what}: mend it, or drop the row")
    names = list(dict.fromkeys(name for record in records for name in record))
    return replace(table, columns=names, cells=[[record.get(name) for record in records] for name in names])


def _chosen(table: Table, columns: Columns) -> tuple[int, int | None]:
    """The columns of source and target: those named, else those whose names are known, else the only two."""
    target = columns.label_column or columns.second_column
    if columns.text_column and target:
        return table.column_index(columns.text_column, "text"), table.column_index(target, "label")
    known = [name.strip().lower() for name in table.columns]
    width = len(known)
    if width == 1:
        return 0, None
    found = [(known.index(one), known.index(two)) for one, two in SOURCE_TARGET_PAIRS if one in known and two in known]
    if found or width == 2:
        first, second = found[0] if found else (0, 1)
        if columns.text_column:
            first = table.column_index(columns.text_column, "text")
            second = 1 - first if width == 2 else second
        return first, table.column_index(target, "label") if target else second
    shown = ", ".join(map(repr, table.columns)) if table.header else f"{width} columns without names"
    flags = "--text-column and --label-column"
    raise KeelError(f"{table.source}: which columns hold source and target is not clear: it has {shown}; say {flags}")


def _check_texts(table: Table, column: int | None) -> None:
    texts: Sequence[Any] = [] if column is None else table.cells[column]
    for place, value in enumerate(texts):
        if not isinstance(value, str):
            remedy = "mend or drop it, or choose another column"
            raise KeelError(f"{table.locations[place]}: the text is {value!r}, not a string: {remedy}")
