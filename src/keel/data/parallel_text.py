"""Parallel text of a sequence-to-sequence task: two parallel files, or a table with source and target columns."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from keel.data.column_names import SOURCE_TARGET_PAIRS
from keel.data.examples import Examples
from keel.data.label_kinds import TextTarget
from keel.data.memory_sources import Frame
from keel.data.table_sources import load_table
from keel.data.tables import DEFAULT_COLUMNS, Columns, Locations, Table
from keel.data.text_files import open_text
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note, pluralize

NESTED = "translation"
"""Column of records with both texts by language (Hugging Face datasets)."""


def two_files(source: Any) -> tuple[Any, Any] | None:
    """The sides of a tuple of two parallel files, or of two lists; a tuple of pairs is a list."""
    if isinstance(source, tuple) and len(source) == 2 and not isinstance(source[0], tuple):
        return source[0], source[1]
    return None


def read_aligned(source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
    """Pairs from two parallel files, a table, a list or a DataFrame; a single column is read without targets.

    The source column is `text_column`, the target column `label_column` or `second_column`.
    """
    if isinstance(source, Examples):
        return source
    both = two_files(source)
    table = _parallel_files(*both, columns, on_event) if both else _table(source, columns, on_event)
    if not len(table):
        raise KeelError(f"{table.source} has no texts: give one per line or item")
    first, second = (0, 1) if both else _source_target_columns(table, columns)
    texts = table.texts(first, "text")
    targets: list[Any] = [None] * len(table) if second is None else table.texts(second, "label")
    pairs = Examples(
        texts=texts,
        values=targets,
        locations=table.locations,
        kind=None if second is None else TextTarget(),
        source=table.source,
        columns=tuple(table.columns),
    )
    if second is None:
        return pairs
    if not both and isinstance(source, str | Path):
        names = table.columns if table.header else [f"column {name}" for name in table.columns]
        note(on_event, f"{table.source}: source in {names[first]!r}, target in {names[second]!r}")
    filled = [(bool(text.strip()), bool(target.strip())) for text, target in zip(texts, targets, strict=True)]
    if half := [index for index, (source_filled, target_filled) in enumerate(filled) if source_filled != target_filled]:
        side = "target" if filled[half[0]][0] else "source"
        more = f" ({len(half)} such pairs in all)" if len(half) > 1 else ""
        what = f"the {side} is empty but the other text is not{more}"
        raise KeelError(f"{table.locations[half[0]]}: {what}: fill it in or drop it")
    nonempty = [index for index, (source_filled, _) in enumerate(filled) if source_filled]
    if len(nonempty) < len(texts):
        note(on_event, f"{table.source}: skipped {pluralize(len(texts) - len(nonempty), 'empty pair')}")
        pairs = pairs.take(nonempty)
    if pairs.texts == pairs.values:
        note(on_event, f"{table.source}: every target is equal to its source: a model can only learn to copy")
    return pairs


def read_sources(source: Any, columns: Columns, on_event: OnEvent | None = None) -> tuple[list[str], Sequence[str]]:
    """The source texts alone of a table, a record or a list of records, and where each is."""
    table = _table(source, columns, ignore)
    if not len(table):
        return [], table.locations
    return table.texts(_source_target_columns(table, columns)[0], "text", on_event), table.locations


def _parallel_files(first: Any, second: Any, columns: Columns, on_event: OnEvent) -> Table:
    sides: list[list[Any]] = []
    names: list[str] = []
    for side, which in ((first, "first"), (second, "second")):
        is_file = isinstance(side, str | Path)
        sides.append(open_text(side, columns.encoding, on_event).lines() if is_file else list(side))
        names.append(str(side) if is_file else f"the {which} list")
    if len(sides[0]) != len(sides[1]):
        counts = f"{names[0]} has {len(sides[0]):,} lines and {names[1]} has {len(sides[1]):,}"
        raise KeelError(f"{counts}: give files whose lines correspond")
    source = f"{names[0]} and {Path(names[1]).name}"
    return Table(source, ["source", "target"], sides, Locations(f"{names[0]}:", range(1, len(sides[0]) + 1)))


def _table(source: Any, columns: Columns, on_event: OnEvent) -> Table:
    # A list may hold texts or pairs; both columns of a file are texts.
    table = load_table(source, columns, on_event, pair=isinstance(source, str | Path))
    records = table.cells[table.columns.index(NESTED)] if NESTED in table.columns else []
    if not any(isinstance(record, dict) for record in records):
        return table
    for index, record in enumerate(records):
        if not isinstance(record, dict):
            what = f"{NESTED!r} is {record!r:.60}, not a text for each language"
            raise KeelError(f"{table.locations[index]}: {what}: correct it, or drop the row")
    frame = Frame.of_records(records)
    return replace(table, columns=frame.names, cells=frame.cells)


def _source_target_columns(table: Table, columns: Columns) -> tuple[int, int | None]:
    """Source and target columns: those that the user named, else usual names, else the only two."""
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
            named = table.column_index(columns.text_column, "text")
            return named, first if named == second else second
        if target:
            named = table.column_index(target, "label")
            return second if named == first else first, named
        return first, second
    what = f"source and target columns are ambiguous: it has {table.column_list}"
    raise KeelError(f"{table.source}: {what}; name them with --text-column and --label-column")
