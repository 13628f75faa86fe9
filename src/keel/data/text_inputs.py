"""Texts as an argument, not as a dataset: a str is the text itself, and a table or record has a column of texts."""

from pathlib import Path
from typing import Any

from keel.data.memory_sources import Frame, is_records, plain_source
from keel.data.table_sources import load_table
from keel.data.tables import Columns, choose_columns, fill_missing
from keel.errors import UsageError
from keel.events import OnEvent, ignore

Texts = Any
"""A str, which is the text itself, a list, array, column or iterator of strs, a record, records, or a DataFrame."""


def text_inputs(given: Any, *, text_column: str = "", on_event: OnEvent | None = None) -> tuple[list[str], bool]:
    """The texts, and whether `given` is a single one, a str or a record, rather than a collection of them.

    With `on_event`, missing texts are empty ones, with a note, as in a dataset; otherwise they are refused.
    """
    source = plain_source(given)
    if is_tabular(source):
        return tabular_texts(source, Columns(text_column=text_column), on_event), isinstance(source, dict)
    texts = list(source) if isinstance(source, list | tuple) else [source]
    texts = texts if on_event is None else fill_missing(texts, on_event)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            what = f"{_shown(text)} is no text" if len(texts) == 1 else f"item {number} is {_shown(text)}, not a text"
            remedy = "give the text itself" if isinstance(text, Path) else "give a string, or a list of strings"
            raise UsageError(f"{what}: {remedy}")
    return texts, isinstance(source, str)


def require_text(text: Any, name: str = "the text") -> str:
    """The text, refused if it is anything but a str."""
    if not isinstance(text, str):
        raise UsageError(f"{name} is {_shown(text)}: give one string")
    return text


def _shown(value: Any) -> str:
    """A value in one line, for a message."""
    return f"{' '.join(repr(value).split()):.60}"


def is_tabular(source: Any) -> bool:
    """Whether a plain source is a table, a record, or a list of records."""
    return isinstance(source, Frame | dict) or is_records(source)


def tabular_texts(source: Any, columns: Columns, on_event: OnEvent | None = None) -> list[str]:
    """The column of texts of a table, of records or of one record."""
    table = load_table(source, columns, ignore, pair=False)
    return table.texts(choose_columns(table, columns, pair=False)[0], "text", on_event) if len(table) else []
