"""Sources of tables: a file in any format, standard input, a list or a DataFrame."""

import csv
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from keel.data.label_kinds import MultiLabel, Regression, SingleLabel
from keel.data.labelled_lines import has_leading_labels, is_tree, label_file, parse_labelled_lines, read_label_file
from keel.data.markup import markup_kind, refuse_markup
from keel.data.memory_sources import Frame, plain_source, source_items
from keel.data.row_errors import row_error
from keel.data.separators import choose_separator
from keel.data.table_files import read_json_records, read_rows, read_table
from keel.data.tables import DEFAULT_COLUMNS, Columns, Locations, Table, choose_columns, has_known_names, is_header
from keel.data.text_files import file_kind, file_suffix, open_text
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, pluralize

STDIN = "standard input"
FASTTEXT = "__label__"
COLUMN_NAME = re.compile(r"\s*[\w#]+([ _-]\w+){0,3}\s*|")
"""A name in a header, unlike a part of a sentence; that of pandas' index is empty."""
SUFFIX_BY_START = {".json": re.compile(rb'\[\s*([{"\[]|$)'), ".jsonl": re.compile(rb"\{")}
TRANSPOSED_AT_ONCE = 1000
"""Rows; a small chunk is freed before the garbage collector has to track it."""


def load_table(source: Any, columns: Columns, on_event: OnEvent, *, pair: bool) -> Table:
    """A table from a file, `-`, a list or a DataFrame."""
    if isinstance(source, str | Path):
        with named_file(source, columns) as (path, name):
            return _file(path, name, columns, on_event, pair)
    source = plain_source(source)
    if isinstance(source, Frame):
        return Table("the table", source.names, source.cells, Locations("row ", range(len(source))))
    refuse_two_files(source)
    items = source_items(source)
    locations = Locations("item ", range(len(items)), " of the list")
    if items and all(isinstance(item, dict) for item in items):
        return _records("the list", items, locations)
    return _tuples(items, locations, pair)


def refuse_two_files(source: Any) -> None:
    """Refuse two files, a tuple of two Paths, where one is expected."""
    if isinstance(source, tuple) and len(source) == 2 and all(isinstance(item, Path) for item in source):
        remedy = "give one file with the labels in a column"
        raise UsageError(f"{source[0]} and {source[1]}: two parallel files are for --task seq2seq: {remedy}")


def _tuples(items: list[Any], locations: Locations, pair: bool) -> Table:
    names = ["text_a", "text_b", "label"] if pair else ["text", "label"]
    expected = "(text, text) or ((text, text), label)" if pair else "a text or (text, label)"
    rows: list[list[Any]] = []
    for item, location in zip(items, locations, strict=True):
        row = [item] if isinstance(item, str) or not hasattr(item, "__iter__") else list(item)
        if pair and len(row) == 2 and isinstance(row[0], tuple | list):
            row = [*row[0], row[1]]
        if len(row) not in (len(names) - 1, len(names)) or (rows and len(row) != len(rows[0])):
            raise KeelError(f"{location} is {item!r:.60}: give {expected}, the same for all")
        rows.append(row)
    names = names[: len(rows[0])] if rows else names
    return Table("the list", names, _transpose(rows, len(names)), locations)


@contextmanager
def named_file(source: str | Path, columns: Columns = DEFAULT_COLUMNS) -> Iterator[tuple[Path, str]]:
    """A file and its name in messages; `-` is standard input, with the suffix that its first line suggests."""
    if str(source) != "-":
        yield Path(source), str(source)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        with open(path, "w+b") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.seek(0)
            start = file.readline()
        suffix = ".tsv" if b"\t" in start else ".csv" if _is_csv_header(start, columns) else ".txt"
        suffix = next((each for each, pattern in SUFFIX_BY_START.items() if pattern.match(start)), suffix)
        yield path.rename(path.with_suffix(suffix)), STDIN


def _is_csv_header(line: bytes, columns: Columns) -> bool:
    """Whether a first line has the names of columns, one of them a usual one or all that the user named."""
    text = line.decode("utf-8-sig", "replace").strip()
    headers = [next(csv.reader([text], delimiter=separator), []) for separator in ",;"]
    if any(columns.roles.values()) and has_known_names([text], columns):
        return True
    named = (header for header in headers if len(header) > 1 and all(map(COLUMN_NAME.fullmatch, header)))
    return any(has_known_names(header, columns) for header in named)


def _file(path: Path, name: str, columns: Columns, on_event: OnEvent, pair: bool) -> Table:
    kind, encoding = file_kind(path), columns.encoding
    if kind in ("jsonl", "parquet"):
        return _numbered_records(name, read_table(path, encoding, on_event, name=name))
    if kind in ("csv", "tsv", "xlsx") or columns.separator != "auto":
        separator = _grid_separator(path, name, columns, on_event, pair)
        return _grid(name, read_rows(path, encoding, on_event, separator, name), columns, pair)
    if file_suffix(path) == ".json" and markup_kind(path, encoding) in ("JSON array of objects", "JSON lines"):
        return _numbered_records(name, read_json_records(path, encoding, on_event, name))
    refuse_markup(path, name, encoding)
    file = open_text(path, encoding, on_event, name)
    first = next((line for _, line in file.numbered_lines(cut=True) if line.strip()), "")
    lines = file.lines(cut=not is_table_line(first))
    if not pair and (labels := label_file(path)):  # ATIS, SNIPS
        cells = [lines, read_label_file(labels, lines, name, encoding, on_event)]
        return Table(name, ["text", "label"], cells, Locations(f"{name}:", range(1, len(lines) + 1)))
    numbers = [number for number, line in enumerate(lines, 1) if line and not line.isspace()]
    if len(numbers) < len(lines):
        lines = [lines[number - 1] for number in numbers]
    if first.startswith(FASTTEXT):
        return _fasttext(name, lines, Locations(f"{name}:", numbers))
    if first.count("||") == 3:  # the Chinese STS-B
        header = (0, ["id", "sentence1", "sentence2", "score"])
        rows = [(number, line.split("||")) for number, line in zip(numbers, lines, strict=True)]
        return replace(_grid(name, [header, *rows], columns, pair), kind=Regression())
    if "\t" in first:
        return _grid(name, zip(numbers, (line.split("\t") for line in lines), strict=True), columns, pair)
    if parsed := parse_labelled_lines(lines, name, numbers, on_event, whole=columns.format == "text"):
        numbers, *cells = parsed
        return Table(name, ["label", "text"], cells, Locations(f"{name}:", numbers), kind=SingleLabel())
    return Table(name, ["1"], [lines], Locations(f"{name}:", numbers), header=False)


def is_table_line(line: str) -> bool:
    """Whether a first line is that of a table without a suffix: fastText labels, columns, the Chinese STS-B."""
    return line.startswith(FASTTEXT) or "\t" in line or line.count("||") == 3


def has_labels(lines: Iterable[str]) -> bool:
    """Whether the lines of a text file, without empty ones, have labels: in columns, in trees or before the texts."""
    lines = iter(lines)
    first = next(lines, "")
    return is_table_line(first) or is_tree(first) or has_leading_labels(chain([first], lines))


def _numbered_records(name: str, found: Iterable[tuple[int, dict[str, Any]]]) -> Table:
    """The table of records with the numbers of their lines."""
    found = list(found)
    return _records(name, [record for _, record in found], Locations(f"{name}:", [number for number, _ in found]))


def _records(source: str, records: Sequence[dict[str, Any]], locations: Locations) -> Table:
    frame = Frame.of_records(records)
    return Table(source, frame.names, frame.cells, locations)


def _fasttext(name: str, lines: list[str], locations: Locations) -> Table:
    known: dict[str, tuple[str, ...]] = {}
    labels: list[tuple[str, ...]] = []
    texts: list[str] = []
    for number, line in enumerate(lines):
        if not line.startswith(FASTTEXT):
            what = f"this line does not start with {FASTTEXT}, unlike the first"
            raise KeelError(f"{locations[number]}: {what}: add its label")
        label, _, text = line.partition(" ")
        while text.startswith(FASTTEXT):
            another, _, text = text.partition(" ")
            label += f" {another}"
        if label not in known:
            known[label] = tuple(word.removeprefix(FASTTEXT) for word in label.split(" "))
        labels.append(known[label])
        texts.append(text)
    kind = MultiLabel() if any(len(names) > 1 for names in known.values()) else SingleLabel()
    return Table(name, ["label", "text"], [labels, texts], locations, kind=kind)


def _grid(name: str, lines: Iterable[tuple[int, list[str]]], columns: Columns, pair: bool) -> Table:
    """The table of a csv or tsv file, with or without a header."""
    numbers: list[int] = []
    width = 0

    def rows() -> Iterator[list[str]]:
        nonlocal width
        for number, row in lines:
            width = width or len(row)
            if len(row) != width:
                what = f"this row has {pluralize(len(row), 'column')}, but the first has {width}"
                remedy = "look for a stray separator, or name it with --separator"
                row_error(KeelError(f"{name}:{number}: {what}: {remedy}"))
                continue
            numbers.append(number)
            yield row

    cells = _transpose(rows())
    table = Table(name, list(map(str, range(1, width + 1))), cells, Locations(f"{name}:", numbers), header=False)
    if not numbers or not is_header(table, columns, pair):
        return table
    return Table(name, [column[0] for column in cells], [column[1:] for column in cells], table.locations[1:])


def _grid_separator(path: Path, name: str, columns: Columns, on_event: OnEvent, pair: bool) -> str:
    def is_table(separator: str, known_header: bool) -> bool:
        try:
            found = list(read_rows(path, columns.encoding, ignore, separator))
            if len({len(row) for _, row in found}) != 1 or len(found[0][1]) == 1:
                return False
            table = _grid(name, found, columns, pair)
            choose_columns(table, columns, pair=pair)
        except KeelError:
            return False
        return table.header and (not known_header or has_known_names(found[0][1], columns))

    return choose_separator(path, name, columns.separator, columns.encoding, is_table, on_event)


def _transpose(rows: Iterable[list[Any]], width: int = 0) -> list[list[Any]]:
    """Rows as columns; `width` empty columns without rows."""
    remaining = iter(rows)
    columns: list[list[Any]] = [[] for _ in range(width)]
    while chunk := list(islice(remaining, TRANSPOSED_AT_ONCE)):
        columns = columns or [[] for _ in chunk[0]]
        for column, cells in zip(columns, zip(*chunk, strict=True), strict=True):
            column += cells
    return columns
