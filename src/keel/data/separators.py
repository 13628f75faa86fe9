"""The column separator of csv files: given, or detected."""

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from keel.data.table_files import read_rows
from keel.data.text_files import file_kind
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, note
from keel.localization import gettext_noop

SEPARATOR_NAMES = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";"}
SEPARATOR_ROWS = 1000
"""Rows in which commas must give a consistent table."""


def check_separator(separator: str) -> None:
    """Refuse what is no separator, as the user wrote it."""
    if separator not in ("auto", *SEPARATOR_NAMES) and len(separator) != 1:
        raise UsageError(f'--separator must be one character such as ";", or tab, not {separator!r}')


def choose_separator(
    path: Path, name: str, separator: str, encoding: str, is_table: Callable[[str, bool], bool], on_event: OnEvent
) -> str:
    """The separator of a table file, for `read_rows`.

    With auto, that of a csv file is a comma, unless only another one gives a consistent table with the needed columns.
    `is_table` gets a separator, and whether the header must have known names: where commas give a single column.
    """
    separator = SEPARATOR_NAMES.get(separator, separator)
    if separator != "auto" or file_kind(path) != "csv":
        return separator
    try:
        widths = {len(row) for _, row in islice(read_rows(path, encoding, separator=","), SEPARATOR_ROWS)}
    except KeelError:  # reported when the file is read
        return ","
    if len(widths) == 1 and widths != {1}:
        return ","
    others = [each for each in (";", "\t") if is_table(each, widths == {1})]
    if len(others) != 1:
        return ","
    shown = "tabs" if others[0] == "\t" else repr(others[0])
    note(on_event, f"{name}: columns are separated by {gettext_noop(shown)} (change with --separator)")
    return others[0]


def is_consistent(rows: Iterable[tuple[int, list[str]]], column: str) -> bool:
    """Whether rows, with a header that has this column, are all of one width of two or more."""
    header: list[str] = []
    try:
        for _, row in rows:
            header = header or row
            if len(row) != len(header):
                return False
    except KeelError:
        return False
    return len(header) > 1 and column in header
