"""Tables written to files: the rows of a source with changed or further columns, as csv, tsv or JSON lines."""

import csv
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from keel.data.examples import table_examples
from keel.data.label_cleaning import clean_examples
from keel.data.label_kinds import label_names
from keel.data.memory_sources import is_null
from keel.data.table_sources import load_table
from keel.data.tables import Columns, Table, choose_columns
from keel.data.text_files import file_kind
from keel.errors import KeelError, UsageError
from keel.events import ignore, pluralize

WRITTEN = ("csv", "tsv", "jsonl")


def check_table_name(path: Path, source: Any, flag: str) -> None:
    """Refuse a file name whose suffix is no format that is written, and the source itself."""
    if file_kind(path) not in WRITTEN or path.suffix in (".gz", ".xz", ".zst", ".bz2"):
        raise UsageError(f"{flag} {path}: name a .csv, .tsv or .jsonl file")
    if isinstance(source, str | Path) and path.exists() and Path(source).exists() and path.samefile(source):
        raise UsageError(f"{flag} {path} would replace its input: name another file")


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows as csv, tsv (whitespace within a cell becomes a space) or JSON lines, by the file's suffix."""
    kind, part = file_kind(path), path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "w", encoding="utf-8", newline="") as file:
            if kind == "csv":
                rows_out = csv.writer(file, lineterminator="\n")
                rows_out.writerow(columns)
                rows_out.writerows([_cell(value) for value in row] for row in rows)
            elif kind == "tsv":
                for row in [columns, *rows]:
                    file.write("\t".join(_without_breaks(_cell(value)) for value in row) + "\n")
            else:
                for row in rows:
                    record = {name: None if is_null(value) else value for name, value in zip(columns, row, strict=True)}
                    file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
        part.replace(path)
    except OSError as error:
        raise KeelError(f"{path} cannot be written ({error.strerror}): choose another file") from None
    finally:  # also where a row could not be made
        with suppress(OSError):
            part.unlink()


def _cell(value: Any) -> str:
    if is_null(value):
        return ""
    if isinstance(value, tuple | list | set):
        return ",".join(map(str, value))
    return str(value).replace("\r\n", "\n").replace("\r", "\n")  # csv does not quote a carriage return


def _without_breaks(cell: str) -> str:
    return cell.replace("\t", " ").replace("\n", " ")


def column_names(table: Table, roles: tuple[int, int | None, int | None]) -> list[str]:
    """Names for the columns of a table; without a header by their roles, else by their numbers."""
    if table.header:
        return list(table.columns)
    names = [f"column_{number}" for number in table.columns]
    for role, column in zip(("text", "second", "label"), roles, strict=True):
        if column is not None:
            names[column] = role
    return names


def write_cleaned(source: Any, path: Path, *, pair: bool, columns: Columns) -> str:
    """Write a table without empty, duplicate and unlabelled rows, one variant of each label; returns what changed."""
    check_table_name(path, source, "--fix")
    table = load_table(source, columns, ignore, pair=pair)
    roles = choose_columns(table, columns, pair=pair)
    every = table_examples(table, roles, columns)
    labelled = [index for index, value in enumerate(every.values) if value is not None]
    cleaned = clean_examples(every.take(labelled))
    cells = [[column[labelled[index]] for index in cleaned.kept] for column in table.cells]
    if roles[2] is not None and cleaned.variants:
        cells[roles[2]] = [_label_cell(value) for value in cleaned.examples.values]
    write_table(path, column_names(table, roles), zip(*cells, strict=True))
    unlabelled = len(every) - len(labelled)
    dropped = f"dropped {pluralize(unlabelled, 'row')} without a label; " if unlabelled else ""
    return f"cleaned table: {dropped}{cleaned}"


def _label_cell(value: Any) -> Any:
    names = label_names(value)
    return names[0] if len(names) == 1 else names or value
