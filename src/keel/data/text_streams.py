"""Texts in parts: a plain text file of any number of lines is predicted in bounded memory."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from keel.data.examples import Examples
from keel.data.labelled_lines import has_leading_labels, is_tree, label_file, note_whole_lines
from keel.data.markup import markup_kind
from keel.data.table_sources import is_table_line
from keel.data.tables import Columns, Locations
from keel.data.text_files import TextFile, file_kind, open_text
from keel.events import OnEvent, note

PART = 1 << 22
"""Characters of text that are held at once."""
PER_TEXT = 100
"""What a text takes beside its characters, counted in characters."""


def plain_text_parts(source: Any, columns: Columns, on_event: OnEvent) -> Iterator[Examples] | None:
    """The lines of a plain text file without labels, in parts; None for any other source.

    The file is read twice: first as a whole to validate it and to look for labels.
    """
    if not isinstance(source, str | Path) or not (path := Path(source)).is_file() or file_kind(path) != "txt":
        return None
    named = any(columns.roles.values()) or columns.separator != "auto"
    if named or label_file(path) or markup_kind(path, columns.encoding):
        return None
    lines = (line for _, line in _filled_lines(open_text(path, columns.encoding)))
    first = next(lines, "")
    if not first or is_table_line(first) or is_tree(first):
        return None
    if has_leading_labels(chain([first], lines)):
        if columns.format != "text":
            return None
        note_whole_lines(str(source), on_event)
    file = open_text(path, columns.encoding, on_event)
    note(on_event, f"{source}: text in column 1, no labels")
    return (_examples(part, str(source)) for part in _parts(_filled_lines(file)))


def split_examples(examples: Examples) -> Iterator[Examples]:
    """Examples in parts of about PART characters: results come early, in bounded memory."""
    for part in _parts(enumerate(examples.texts)):
        yield examples[part[0][0] : part[-1][0] + 1]


def _filled_lines(file: TextFile) -> Iterator[tuple[int, str]]:
    lines = file.numbered_lines(cut=True, streamed=True)
    return ((number, line) for number, line in lines if line and not line.isspace())


def _parts(numbered: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Numbered texts in parts of about PART characters."""
    part: list[tuple[int, str]] = []
    size = 0
    for number, text in numbered:
        part.append((number, text))
        size += len(text) + PER_TEXT
        if size >= PART:
            yield part
            part, size = [], 0
    if part:
        yield part


def _examples(part: list[tuple[int, str]], name: str) -> Examples:
    locations = Locations(f"{name}:", [number for number, _ in part])
    texts = [text for _, text in part]
    return Examples(texts=texts, values=[None] * len(texts), locations=locations, kind=None, source=name)
