"""Rows of table files: csv, tsv, xlsx, JSON lines, JSON arrays and parquet."""

import csv
import json
import math
import warnings
from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from keel.data.row_errors import row_error
from keel.data.text_files import MAX_LINE, TextFile, file_kind, long_field, open_bytes, refuse_special_file
from keel.errors import KeelError, MissingExtra
from keel.events import OnEvent, ignore, note

csv.field_size_limit(MAX_LINE)

END = "\x1fend of file\x1f"
"""A line after the last one: it is a row of its own unless a quote is open."""

RECORDS = json.JSONDecoder(parse_constant={"NaN": None, "Infinity": math.inf, "-Infinity": -math.inf}.get)
"""NaN is what pandas and json.dump write for a missing value."""


def read_rows(
    path: str | Path, encoding: str = "auto", on_event: OnEvent = ignore, separator: str = "auto", name: str = ""
) -> Iterator[tuple[int, list[str]]]:
    """Read a csv, tsv (quotes are ordinary characters, as in GLUE) or xlsx file as (line number, fields)."""
    path = Path(path)
    if file_kind(path) == "xlsx":
        yield from _xlsx(path, on_event)
        return
    yield from _rows(TextFile(path, encoding, on_event, name), file_kind(path), separator)


def read_table(
    path: str | Path, encoding: str = "auto", on_event: OnEvent = ignore, separator: str = "auto", name: str = ""
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a table with a header, jsonl or parquet as (line number, {column: value}); a short row lacks columns."""
    path = Path(path)
    kind = file_kind(path)
    if kind == "parquet":
        yield from _parquet(path)
        return
    if kind == "jsonl":
        yield from _jsonl(TextFile(path, encoding, on_event, name))
        return
    rows = read_rows(path, encoding, on_event, separator, name)
    _, header = next(rows, (1, []))
    for number, row in rows:
        yield number, dict(zip(header, row, strict=False))


def _rows(file: TextFile, kind: str, separator: str = "auto") -> Iterator[tuple[int, list[str]]]:
    if separator == "auto":
        separator = "," if kind == "csv" else "\t"
    quoted = kind == "csv" or (kind == "tsv" and separator != "\t")
    end_row = [END] if quoted else []
    lines = chain((line + "\n" for _, line in file), end_row)
    reader = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)
    end = 0
    try:
        for row in reader:
            start, end = end + 1, reader.line_num
            if quoted and row and row[-1].endswith(END):
                if row != end_row:
                    raise KeelError(f"{file.name}:{start}: a quote in this row is not closed: close it, or double it")
                return
            if row:
                yield start, row
    except csv.Error as error:
        raise KeelError(f"{file.name}:{end + 1}: this row cannot be read ({error}): is a quote not closed?") from None


def _jsonl(file: TextFile) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in file:
        if line.strip():
            try:
                row = RECORDS.decode(line)
            except (ValueError, RecursionError) as error:
                row_error(KeelError(f"{file.name}:{number}: this line is not JSON ({error})"))
                continue
            if isinstance(row, dict):
                yield number, row
                continue
            what = 'this line is not a JSON object such as {"text": ...}'
            row_error(KeelError(f"{file.name}:{number}: {what}"))


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data", f"reading {path}") from None
    refuse_special_file(path)
    number = 0
    try:
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    _refuse_long_field(row, f"{path}:{number}")
                    yield number, row
    except KeelError:
        raise
    except (arrow.ArrowException, OSError, ValueError) as error:
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise KeelError(f"{path} cannot be read as parquet ({what}): is it damaged? write it again") from None


def read_json_records(
    path: str | Path, encoding: str = "auto", on_event: OnEvent = ignore, name: str = ""
) -> list[tuple[int, Any]]:
    """The objects of a JSON array or of JSON lines, each with the number of its first line.

    Objects of an array that is one line are counted instead.
    """
    file = TextFile(path, encoding, on_event, name)
    start = next((chunk for _, chunk in file.line_chunks(1 << 16) if chunk.strip()), "")
    if not start.lstrip().startswith("["):  # an array may be one long line, as pandas writes it
        return list(_jsonl(file))
    text = file.document()
    decode, found = RECORDS.raw_decode, list[tuple[int, Any]]()
    position, number = _skip_space(text, text.index("[") + 1), 1
    number += text.count("\n", 0, position)
    try:
        while not text.startswith("]", position):
            item, end = decode(text, position)
            if not isinstance(item, dict):
                what = f'{item!r:.60} is not an object such as {{"text": ...}}'
                raise KeelError(f"{file.name}:{number}: {what}: correct or drop it")
            _refuse_long_field(item, f"{file.name}:{number}")
            found.append((number, item))
            next_position = _skip_space(text, end)
            if text.startswith(",", next_position):
                next_position = _skip_space(text, next_position + 1)
            elif not text.startswith("]", next_position):
                raise json.JSONDecodeError("a comma or ] is missing", text, next_position)
            number += text.count("\n", position, next_position)
            position = next_position
        if end := text[position + 1 :].lstrip():
            raise json.JSONDecodeError("text after the closing ]", text, len(text) - len(end))
    except json.JSONDecodeError as error:
        raise KeelError(f"{file.name}:{error.lineno}: this is not JSON ({error.msg}): correct it") from None
    except RecursionError:
        raise KeelError(f"{file.name}:{number}: this object is nested too deeply: is the file damaged?") from None
    one_line = found and found[0][0] == found[-1][0]
    return [(count, item) for count, (_, item) in enumerate(found, 1)] if one_line else found


def _refuse_long_field(row: dict[str, Any], location: str) -> None:
    if any(isinstance(cell, str) and len(cell) > MAX_LINE for cell in row.values()):
        raise long_field(location, "field")


def _skip_space(text: str, position: int) -> int:
    while text[position : position + 1].isspace():
        position += 1
    return position


def _xlsx(path: Path, on_event: OnEvent) -> Iterator[tuple[int, list[str]]]:
    """The rows of the first sheet that have cells, as text, all as wide as the widest; numbers are those in Excel."""
    try:
        import openpyxl
    except ImportError:
        raise MissingExtra("openpyxl", "data", f"reading {path}") from None
    with open_bytes(path) as file:
        try:
            with warnings.catch_warnings():  # about styles
                warnings.simplefilter("ignore")
                book = openpyxl.load_workbook(file, read_only=True, data_only=True)
                sheet = book.worksheets[0]
                sheet.reset_dimensions()  # often wrong
                values = [list(map(_excel_text, row)) for row in sheet.iter_rows(values_only=True)]
        except Exception as error:  # zip, XML and many others
            raise KeelError(f"{path} cannot be read as xlsx ({error}): save it again as .xlsx or .csv") from None
        if len(book.sheetnames) > 1:
            others = ", ".join(map(repr, book.sheetnames[1:]))
            note(on_event, f"{path}: the first sheet, {sheet.title!r}, is read; {others} are not (save one as .csv)")
    rows = [(number, row) for number, row in enumerate(values, 1) if any(row)]
    width = max((len(row) - next((i for i, cell in enumerate(reversed(row)) if cell), 0) for _, row in rows), default=0)
    for number, row in rows:
        yield number, [*row, *[""] * (width - len(row))][:width]


def _excel_text(value: Any) -> str:
    """A cell as text: whole numbers without decimals, as Excel shows them."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.isoformat(" ") if isinstance(value, datetime) else str(value)
