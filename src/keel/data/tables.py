"""Tables of labelled texts: their rows, which columns hold text and label, and which kind the labels are of."""

import re
import shutil
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, overload

from keel.config import Validated
from keel.data.label_kinds import LabelKind, MultiLabel, Regression, SingleLabel
from keel.data.text_files import file_kind, open_text, read_rows, read_table
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, pluralize

Item = TypeVar("Item", covariant=True)

# Usual names of columns, in the order in which they are tried.
TEXTS = ("text", "sentence", "review", "content", "comment", "document", "body", "title", "text_a", "text1",
         "sentence1", "premise", "question1", "question", "query")  # fmt: skip
PAIRS = (("text_a", "text_b"), ("text1", "text2"), ("sentence1", "sentence2"), ("sentence_a", "sentence_b"),
         ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"), ("query", "passage"),
         ("#1 string", "#2 string"), ("first", "second"))  # fmt: skip
LABELS = ("label", "labels", "score", "target", "class", "category", "quality", "sentiment", "gold_label", "intent",
          "similarity", "relevance")  # fmt: skip
SOURCE_TARGET_PAIRS = (("source", "target"), ("input", "output"), ("document", "summary"), ("article", "highlights"),
                       ("text", "summary"), *PAIRS)  # fmt: skip
NUMBERING = re.compile(r"|(.*[ _])?(id|idx|index|guid)|pairid|unnamed.*")
KNOWN_COLUMNS = {*TEXTS, *LABELS, "id", "index", *(name for pair in SOURCE_TARGET_PAIRS for name in pair)}
FASTTEXT = "__label__"
TRANSPOSED_AT_ONCE = 1000
"""Rows; a small chunk is freed before the garbage collector has to track it."""


@dataclass(frozen=True, kw_only=True)
class Columns(Validated):
    """Columns and format of a labelled dataset; an empty name is inferred from header or shape, and reported."""

    text_column: str = ""
    """Column of the text."""
    second_column: str = ""
    """Column of the second text of a pair."""
    label_column: str = ""
    """Column of the label."""
    labels: Literal["auto", "single", "multi", "regression"] = "auto"
    """Label kind: one class (single-label), any number of classes (multi-label) or a number (regression)."""
    format: Literal["auto", "columns", "conllu", "slashes", "segmented", "text"] = "auto"
    """Format of tagged words: one word per line, CoNLL-U, word/tag, words separated by whitespace, or untagged text."""
    scheme: Literal["auto", "BIO", "BIOES", "BMES"] = "auto"
    """Tagging scheme to train with; auto keeps the file's, but converts BIO1 (IOB1) to BIO."""
    encoding: str = "auto"
    """Character encoding of the file; auto tries UTF-8, then GB18030."""

    @property
    def roles(self) -> dict[str, str]:
        """The columns of text, second text and label, by the word in their flags."""
        return {"text": self.text_column, "second": self.second_column, "label": self.label_column}


DEFAULT_COLUMNS = Columns()


class LazySequence(Sequence[Item]):
    """A sequence that makes its items on access; a slice is one of the same kind."""

    @abstractmethod
    def item(self, index: int) -> Item:
        """The item at an index from 0."""

    @abstractmethod
    def take(self, indices: Iterable[int]) -> Self:
        """The items at these indices, in this order."""

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Item | Self:
        chosen = range(len(self))[index]
        return self.item(chosen) if isinstance(chosen, int) else self.take(chosen)

    def __iter__(self) -> Iterator[Item]:
        return map(self.item, range(len(self)))


@dataclass(frozen=True)
class Locations(LazySequence[str]):
    """Locations of rows, such as dev.tsv:17."""

    prefix: str
    numbers: Sequence[int]
    suffix: str = ""

    def __len__(self) -> int:
        return len(self.numbers)

    def item(self, index: int) -> str:
        return f"{self.prefix}{self.numbers[index]}{self.suffix}"

    def take(self, indices: Iterable[int]) -> Self:
        return replace(self, numbers=[self.numbers[index] for index in indices])


@dataclass(frozen=True)
class Table:
    """A table, stored by columns, with the location of each row."""

    source: str
    columns: list[str]
    """Names; without a header their numbers from 1."""
    cells: list[list[Any]]
    """Values of each column."""
    locations: Locations
    header: bool = True
    kind: LabelKind | None = None
    """Label kind, where the format defines it."""

    def __len__(self) -> int:
        return len(self.locations)

    @property
    def column_list(self) -> str:
        """The column names for a message."""
        if self.header:
            return ", ".join(map(repr, self.columns))
        return f"{pluralize(len(self.columns), 'column')} without names"

    def column_name(self, column: int) -> str:
        """The name of a column for a message."""
        return repr(self.columns[column]) if self.header else f"column {self.columns[column]}"

    def column_index(self, name: str, flag: str) -> int:
        """The index of a column that the user named."""
        if name not in self.columns:
            known = ", ".join(map(repr, self.columns))
            raise KeelError(f"{self.source} has no column {name!r}: it has {known} (choose with --{flag}-column)")
        return self.columns.index(name)

    def texts(self, column: int, flag: str) -> list[str]:
        """The cells of a column, all of which must be strings."""
        texts = self.cells[column]
        if set(map(type, texts)) != {str}:
            for value, location in zip(texts, self.locations, strict=True):
                if not isinstance(value, str):
                    remedy = f"correct or drop it, or choose another --{flag}-column"
                    raise KeelError(f"{location}: the text is {value!r}, not a string: {remedy}")
        return texts


def load_table(source: Any, columns: Columns, on_event: OnEvent, *, pair: bool) -> Table:
    """A table from a file, `-`, a list or a DataFrame."""
    if isinstance(source, str | Path):
        with named_file(source) as (path, name):
            return _file(path, name, columns, on_event, pair)
    if hasattr(source, "columns"):  # a DataFrame of pandas, polars, ...
        cells = [list(source[column]) for column in source.columns]
        return Table("the table", list(map(str, source.columns)), cells, Locations("row ", range(len(source))))
    refuse_two_files(source)
    items = list(source)
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
def named_file(source: str | Path) -> Iterator[tuple[Path, str]]:
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
        suffix = ".jsonl" if start.startswith(b"{") else ".tsv" if b"\t" in start else ".txt"
        yield path.rename(path.with_suffix(suffix)), "standard input"


def _file(path: Path, name: str, columns: Columns, on_event: OnEvent, pair: bool) -> Table:
    kind, encoding = file_kind(path), columns.encoding
    if kind in ("jsonl", "parquet"):
        found = list(read_table(path, encoding, on_event))
        return _records(name, [row for _, row in found], Locations(f"{name}:", [number for number, _ in found]))
    if kind in ("csv", "tsv"):
        return _grid(name, read_rows(path, encoding, on_event), columns, pair)
    lines = open_text(path, encoding, on_event).lines()
    numbers = [number for number, line in enumerate(lines, 1) if line and not line.isspace()]
    if len(numbers) < len(lines):
        lines = [lines[number - 1] for number in numbers]
    first = lines[0] if lines else ""
    if first.startswith(FASTTEXT):
        return _fasttext(name, lines, Locations(f"{name}:", numbers))
    if first.count("||") == 3:  # the Chinese STS-B
        header = (0, ["id", "sentence1", "sentence2", "score"])
        rows = [(number, line.split("||")) for number, line in zip(numbers, lines, strict=True)]
        return replace(_grid(name, [header, *rows], columns, pair), kind=Regression())
    if "\t" in first:
        return _grid(name, zip(numbers, (line.split("\t") for line in lines), strict=True), columns, pair)
    return Table(name, ["1"], [lines], Locations(f"{name}:", numbers), header=False)


def _records(source: str, records: list[dict[str, Any]], locations: Locations) -> Table:
    columns = list(dict.fromkeys(name for row in records for name in row))
    return Table(source, columns, [[row.get(name) for row in records] for name in columns], locations)


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
                raise KeelError(f"{name}:{number}: {what}: look for a stray separator")
            numbers.append(number)
            yield row

    cells = _transpose(rows())
    table = Table(name, list(map(str, range(1, width + 1))), cells, Locations(f"{name}:", numbers), header=False)
    if not numbers or not _is_header(table, columns, pair):
        return table
    return Table(name, [column[0] for column in cells], [column[1:] for column in cells], table.locations[1:])


def _transpose(rows: Iterable[list[Any]], width: int = 0) -> list[list[Any]]:
    """Rows as columns; `width` empty columns without rows."""
    remaining = iter(rows)
    columns: list[list[Any]] = [[] for _ in range(width)]
    while chunk := list(islice(remaining, TRANSPOSED_AT_ONCE)):
        columns = columns or [[] for _ in chunk[0]]
        for column, cells in zip(columns, zip(*chunk, strict=True), strict=True):
            column += cells
    return columns


def _is_header(table: Table, columns: Columns, pair: bool) -> bool:
    """Whether the first row is a header: it has a usual column name, or its label does not occur in other rows."""
    first = [column[0] for column in table.cells]
    named = {*filter(None, columns.roles.values())}
    if any(cell.strip().lower() in KNOWN_COLUMNS for cell in first) or (named and named <= {*first}):
        return True
    _, _, label = _by_shape(table, pair)
    return label is not None and len(table) > 3 and table.cells[label].count(first[label]) == 1


def choose_columns(table: Table, columns: Columns, *, pair: bool) -> tuple[int, int | None, int | None]:
    """The columns of text, second text and label: those that the user named, else by usual names, else by shape."""
    chosen = [table.column_index(name, flag) if name else None for flag, name in columns.roles.items()]
    guess = _by_name(table, pair, chosen) if table.header else _by_shape(table, pair)
    text, second, label = (guess[role] if named is None else named for role, named in enumerate(chosen))
    if text is None or (pair and second is None):
        texts, flags = ("two texts", "--text-column and --second-column") if pair else ("text", "--text-column")
        tagged = "" if pair or table.header else " (words with tags: --task tag)"
        what = f"the columns of {texts} are ambiguous: it has {table.column_list}; name them with {flags}{tagged}"
        raise KeelError(f"{table.source}: {what}")
    second = second if pair else None
    return text, second, None if label in (text, second) else label


def describe_columns(table: Table, text: int, second: int | None, label: int | None) -> str:
    """A note to the user, who may want other columns."""
    parts = [f"text in {table.column_name(text)}"]
    if second is not None:
        parts.append(f"second text in {table.column_name(second)}")
    parts.append("no labels" if label is None else f"label in {table.column_name(label)}")
    lowered = [column.lower() for column in table.columns]
    for one, two in PAIRS:
        if second is None and one == lowered[text] and two in lowered:
            parts.append(f"{two!r} is ignored (--task pair uses both)")
    return f"{table.source}: {', '.join(parts)}"


Guess = tuple[int | None, int | None, int | None]


def _by_name(table: Table, pair: bool, chosen: list[int | None]) -> Guess:
    free = [number for number in range(len(table.columns)) if number not in chosen]
    index_of = {table.columns[number].strip().lower(): number for number in free}
    label = next((index_of[name] for name in LABELS if name in index_of), None)
    if pair:
        found = [(index_of[one], index_of[two]) for one, two in PAIRS if one in index_of and two in index_of]
        return (*found[0], label) if found else (None, None, label)
    # A single remaining column can only be the text or, if its values repeat, the label.
    rest = [number for name, number in index_of.items() if number != label and not NUMBERING.fullmatch(name)]
    text = next((index_of[name] for name in TEXTS if name in index_of), rest[0] if len(rest) == 1 else None)
    rest = [number for number in rest if number != (text if chosen[0] is None else None)]
    if label is None and len(rest) == 1 and len(set(map(str, table.cells[rest[0]]))) * 2 <= len(table):
        label = rest[0]
    return text, None, label


def _by_shape(table: Table, pair: bool) -> Guess:
    width, texts = len(table.columns), 2 if pair else 1
    # CoLA: source, label, the author's annotation (*, ?), sentence
    if not pair and width == 4 and max(map(len, table.cells[2])) < 5:
        return 3, None, 1
    if width == texts:
        return 0, 1 if pair else None, None
    if width != texts + 1:
        return None, None, None
    different = [len({*column}) for column in table.cells]
    label = different.index(min(different))
    if different[label] == max(different):  # ambiguous
        return None, None, None
    first, second = [column for column in range(width) if column != label] + [None] * (2 - texts)
    return first, second, label
