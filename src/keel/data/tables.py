"""Tables of labelled texts: their rows, which columns hold text and label, and which kind the labels are of."""

import re
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, overload

from keel.config import Validated
from keel.data.column_names import KNOWN_COLUMNS, LABELS, NUMBERING, PAIRS, TEXTS
from keel.data.label_kinds import LabelKind
from keel.data.memory_sources import is_null
from keel.data.row_errors import row_error
from keel.data.separators import check_separator
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note, pluralize

Item = TypeVar("Item", covariant=True)
ONE_WORD = re.compile(r"\s*[^\W\d]\w*([._-]\w+)*\s*")
"""A column name without spaces, unlike a number, a question or a sentence."""


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
    """Format of tagged words: one word per line, CoNLL-U, word/tag, words separated by whitespace, or untagged text;
    text also reads the lines of a text file as texts where they start with what looks like a label (1 a fine film)."""
    scheme: Literal["auto", "BIO", "BIOES", "BMES"] = "auto"
    """Tagging scheme to train with; auto keeps the file's, but converts BIO1 (IOB1) to BIO."""
    separator: str = "auto"
    """Column separator of a csv or tsv file, such as ";" or tab; auto: a tab in .tsv, in .csv a comma, or the semicolon
    or tab that alone gives a table with the needed columns."""
    encoding: str = "auto"
    """Character encoding of the file; auto: byte order mark, UTF-8, else GB18030; invalid text is refused."""

    def __post_init__(self) -> None:
        check_separator(self.separator)

    def for_texts(self) -> Self:
        """These settings where labels are not needed: nothing that looks like a label is cut from a text."""
        return replace(self, format="text") if self.format == "auto" else self

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

    def texts(self, column: int, flag: str, on_event: OnEvent | None = None) -> list[str]:
        """The cells of a column, all of which must be strings; with `on_event` see `fill_missing`."""
        texts = self.cells[column]
        if on_event is not None:
            texts = fill_missing(texts, on_event, self.locations)
        if set(map(type, texts)) != {str}:
            for value, location in zip(texts, self.locations, strict=True):
                if not isinstance(value, str):
                    remedy = f"correct or drop it, or choose another --{flag}-column"
                    row_error(KeelError(f"{location}: the text is {value!r}, not a string: {remedy}"))
            return ["" if not isinstance(value, str) else value for value in texts]
        return texts


def fill_missing(texts: list[Any], on_event: OnEvent, locations: Sequence[str] | None = None) -> list[Any]:
    """Texts with an empty one for each that has no value, as in a csv file, and a note (a Python warning where
    nobody gets notes); unchanged where none has one.

    Without `locations` they are the items of a list.
    """
    missing = {number for number, text in enumerate(texts) if not isinstance(text, str) and is_null(text)}
    if not missing or len(missing) == len(texts):
        return texts
    first = min(missing)
    what = pluralize(len(missing), "text is missing and read as empty", "texts are missing and read as empty")
    message = f"{locations[first] if locations else f'item {first}'}: {what}, the first here"
    if on_event is ignore:  # data must not change silently
        warnings.warn(message, stacklevel=2)
    else:
        note(on_event, message)
    return ["" if number in missing else text for number, text in enumerate(texts)]


def is_header(table: Table, columns: Columns, pair: bool) -> bool:
    """Whether the first row is a header: it has a usual column name, its label does not occur in other rows, or its
    cells are single words above texts."""
    first = [column[0] for column in table.cells]
    if has_known_names(first, columns) or _names_above_texts(table):
        return True
    _, _, label = _by_shape(table, pair)
    return label is not None and len(table) > 3 and table.cells[label].count(first[label]) == 1


def _names_above_texts(table: Table) -> bool:
    """Whether the cells of the first row are different words that their columns do not repeat, while in some column the
    next three cells and nearly all others have several words; sentences sorted by length begin otherwise."""
    first = [column[0] for column in table.cells]
    if len(table) < 4 or len(first) < 2 or len({*first}) < len(first) or not all(map(ONE_WORD.fullmatch, first)):
        return False
    if any(column.count(name) > 1 for name, column in zip(first, table.cells, strict=True)):
        return False
    spaced = [[len(cell.split()) > 1 for cell in column[1:]] for column in table.cells]
    return any(all(several[:3]) and sum(several) * 10 >= len(several) * 9 for several in spaced)


def has_known_names(header: list[str], columns: Columns) -> bool:
    """Whether a row has a usual column name, or all that the user named."""
    named = {*filter(None, columns.roles.values())}
    return any(cell.strip().lower() in KNOWN_COLUMNS for cell in header) or bool(named and named <= {*header})


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
    if not table.header and len(table.columns) == 1 and {".csv", ".tsv"} & {*Path(table.source).suffixes}:
        first = table.cells[0][0]
        if ONE_WORD.fullmatch(first) and table.cells[0].count(first) == 1 < len(table):
            name = first.strip()
            parts.append(f"the first row {name!r} is read as a text (if it is a column name: --text-column {name})")
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
