"""Sources in memory, by one rule: a DataFrame or a dict of columns is a table, any other dict one record, every other
collection a list."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from keel.data.column_names import KNOWN_COLUMNS, TEXTS
from keel.errors import KeelError, UsageError

TO_LIST = ("to_pylist", "tolist", "to_list")
"""Methods of arrays and columns (pyarrow; NumPy and pandas; polars) that return Python values."""
NULL_TYPES = ("NAType", "NaTType")
"""pandas' types of a missing value; pandas need not be installed."""


@dataclass(frozen=True)
class Frame:
    """The columns of a DataFrame."""

    names: list[str]
    cells: list[list[Any]]
    """Values of each column."""

    def __len__(self) -> int:
        return len(self.cells[0]) if self.cells else 0

    @classmethod
    def of_records(cls, records: Sequence[Mapping[str, Any]]) -> Self:
        """Columns of all names in the records; None where a record lacks one."""
        names = list(dict.fromkeys(name for record in records for name in record))
        return cls(names, [[record.get(name) for record in records] for name in names])

    def records(self) -> list[dict[str, Any]]:
        """Rows as dicts."""
        return [dict(zip(self.names, row, strict=True)) for row in zip(*self.cells, strict=True)]


def plain_source(source: Any) -> Any:
    """A source in plain types: a DataFrame (pandas, polars, pyarrow, datasets) is a `Frame`, a record or a row of a
    DataFrame a dict, an array, column or iterator a list; a str, a Path, a tuple, a list and what is no collection are
    returned unchanged."""
    if isinstance(source, str | bytes | Path | list | tuple | Frame):
        return source
    if isinstance(source, Mapping):
        return _columns(source) or dict(source)
    if isinstance(source, set | frozenset):
        raise UsageError("the texts are in a set, which has no order: give a list")
    if hasattr(source, "shape") and (hasattr(source, "columns") or hasattr(source, "column_names")):
        return _frame(source)
    if hasattr(source, "index") and hasattr(source, "to_dict") and _is_row(source):
        return {str(name): value for name, value in source.to_dict().items()}
    for method in TO_LIST:
        if hasattr(source, method):
            return getattr(source, method)()
    return list(source) if isinstance(source, Iterable) and not hasattr(source, "__getitem__") else source


def source_items(source: Any) -> list[Any]:
    """The items of a plain source that is neither a file nor a table; a record is the only one."""
    if isinstance(source, dict):
        return [source]
    if isinstance(source, str | bytes | Path) or not isinstance(source, Iterable):
        what = f"{source!r:.60} is neither a file nor a list of texts"
        raise UsageError(f"{what}: give the names of text files, a list of texts or a DataFrame")
    return list(source)


def is_records(items: Any) -> bool:
    """Whether this is a list of records."""
    return isinstance(items, list) and bool(items) and all(isinstance(item, Mapping) for item in items)


def is_null(value: Any) -> bool:
    """Whether a cell has no value: None, NaN, or pandas' NA and NaT."""
    return value is None or (isinstance(value, float) and value != value) or type(value).__name__ in NULL_TYPES


def _columns(source: Mapping[Any, Any]) -> Frame | None:
    """The table of a dict of columns: lists of equal length, of which one holds texts under its usual name."""
    values = list(source.values())
    texts = next((value for name, value in source.items() if str(name).strip().lower() in TEXTS), None)
    listed = all(isinstance(value, list | tuple) for value in values) and len({len(value) for value in values}) == 1
    if not listed or not texts or not all(isinstance(text, str) for text in texts):
        return None
    return Frame([str(name) for name in source], [list(value) for value in values])


def _frame(source: Any) -> Frame:
    names = list(source.column_names if hasattr(source, "column_names") else source.columns)
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise KeelError(f"the table has two columns {str(twice[0])!r}: rename one")
    return Frame([str(name) for name in names], [_values(source[name]) for name in names])


def _values(column: Any) -> list[Any]:
    method = next((method for method in TO_LIST if hasattr(column, method)), None)
    values = getattr(column, method)() if method else list(column)
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]  # words of a sentence


def _is_row(series: Any) -> bool:
    """Whether a Series is a row of a DataFrame, not a column: its index has column names, among them that of texts.

    The index of a column may be words, such as "text" or "title": only values that are no texts, a row number, or
    usual names alone show that it is a row; otherwise neither reading is safe.
    """
    names = [name.strip().lower() if isinstance(name, str) else "" for name in series.index]
    if not set(TEXTS).intersection(names) or "" in names or len({*names}) < len(names):
        return False
    label = getattr(series, "name", None)
    other_values = any(not isinstance(value, str) and not is_null(value) for value in series)
    if other_values or KNOWN_COLUMNS.issuperset(names) or not isinstance(label, str | None):
        return True
    if isinstance(label, str) and label.strip().lower() in TEXTS:
        return False
    found = next(name for name in names if name in TEXTS)
    what = f"the index of a Series has the entry {found!r}, so it may be a row of a table or a column of texts"
    raise UsageError(f"{what}: give series.to_dict() for a row, series.tolist() for texts")
