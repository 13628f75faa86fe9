"""Rows of table files: csv, tsv, JSON lines and parquet."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keel.data.text_files import MAX_LINE, TextFile, file_kind, long_field
from keel.errors import KeelError, MissingExtra, row_error
from keel.events import OnEvent, ignore

csv.field_size_limit(MAX_LINE)


def read_rows(path: str | Path, encoding: str = "auto", on_event: OnEvent = ignore) -> Iterator[tuple[int, list[str]]]:
    """Read a csv or tsv (quotes are ordinary characters, as in GLUE) file as (line number, fields)."""
    file = TextFile(path, encoding, on_event)
    yield from _rows(file, file_kind(file.path))


def read_table(
    path: str | Path, encoding: str = "auto", on_event: OnEvent = ignore
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read csv or tsv with a header, jsonl or parquet as (line number, {column: value}); a short row lacks columns."""
    path = Path(path)
    kind = file_kind(path)
    if kind == "parquet":
        yield from _parquet(path)
        return
    file = TextFile(path, encoding, on_event)
    if kind == "jsonl":
        yield from _jsonl(file)
        return
    rows = _rows(file, kind)
    _, header = next(rows, (1, []))
    for number, row in rows:
        yield number, dict(zip(header, row, strict=False))


def _rows(file: TextFile, kind: str) -> Iterator[tuple[int, list[str]]]:
    lines = (line + "\n" for _, line in file)
    tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    reader = csv.reader(lines, **(tabs if kind == "tsv" else {}))
    end = 0
    try:
        for row in reader:
            start, end = end + 1, reader.line_num
            if row:
                yield start, row
    except csv.Error as error:
        raise KeelError(f"{file.name}:{end + 1}: this row cannot be read ({error}): is a quote not closed?") from None


def _jsonl(file: TextFile) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in file:
        if line.strip():
            try:
                row = json.loads(line)
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
    number = 0
    try:
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    if any(isinstance(cell, str) and len(cell) > MAX_LINE for cell in row.values()):
                        raise long_field(f"{path}:{number}", "field")
                    yield number, row
    except (arrow.ArrowException, OSError) as error:
        raise KeelError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]}") from None
