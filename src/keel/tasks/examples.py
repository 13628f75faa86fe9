"""Examples: texts with what they are, read from anything, as numbers to learn from, split fairly."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from keel.errors import KeelError
from keel.events import OnEvent, ignore, note
from keel.tasks.tables import Kind, Table, choose_columns, load_table
from keel.train.draw import seed_of

Value = str | tuple[str, ...] | float
"""A label as it was given."""
SCORES = ("score", "similarity")
"""Columns whose fractions are numbers, not names."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where labelled data keeps what; empty names are found by header or shape, and said."""

    text_column: str = ""
    """The column of the text."""
    second_column: str = ""
    """The column of the second text of a pair."""
    label_column: str = ""
    """The column of the label."""
    labels: Literal["auto", "one", "several", "number"] = "auto"
    """What a label is: one of some names, several of them, or a number."""
    form: Literal["auto", "columns", "conllu", "slashes", "segmented", "text"] = "auto"
    """Of a file of tagged words: a word in each line, word/tag, words apart by blanks, or text without tags."""
    scheme: Literal["auto", "BIO", "BIOES", "BMES"] = "auto"
    """The kind of tags by which entities are learned; auto leaves them as they are, but BIO1 becomes BIO."""
    encoding: str = "auto"
    """Of the file; auto tries UTF-8, then GB18030."""


ANY = Columns()


@dataclass(frozen=True, slots=True)
class Example:
    """One text, or a pair of them, and what it is."""

    text: str
    second: str | None
    label: Value | None
    where: str
    """Where it was read, as in dev.tsv:17."""
    words: tuple[str, ...] = ()
    """Of a text whose words are told apart, and have a tag each in its label."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names among its label: one, several or none."""
        return self.label if isinstance(self.label, tuple) else (self.label,) if isinstance(self.label, str) else ()


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The kind of the labels and, unless they are numbers, their names as given, in order."""

    kind: Kind
    names: tuple[str, ...] = ()

    @property
    def outputs(self) -> int:
        """How many numbers a head gives for one example."""
        return len(self.names) or 1

    def targets(self, examples: "Examples") -> Tensor:
        """[examples] class numbers, [examples, names] zeros and ones, [examples] numbers, or [words] of all examples
        the tags' numbers, -1 for unknown ones."""
        if examples.kind is None:
            raise KeelError(f"{examples.source} has no labels to compare with: name their column with --label-column")
        if self.kind == "number":
            return torch.tensor([_label(example.label, "number", example.where) for example in examples])
        number_of = {name: number for number, name in enumerate(self.names)}
        if self.kind == "tags":
            return torch.tensor([number_of.get(name, -1) for example in examples for name in example.names])
        numbers = [[number_of.get(name, -1) for name in example.names] for example in examples]
        for example, found in zip(examples, numbers, strict=True):
            if -1 in found:
                known = ", ".join(map(repr, self.names[:10])) + (", ..." if len(self.names) > 10 else "")
                what = f"the label {example.names[found.index(-1)]!r} did not occur in training, which knew {known}"
                raise KeelError(f"{example.where}: {what}: correct it, or train with it")
        if self.kind == "several":
            targets = torch.zeros(len(examples), len(self.names))
            for row, present in zip(targets, numbers, strict=True):
                row[present] = 1
            return targets
        for example, found in zip(examples, numbers, strict=True):
            if len(found) != 1:
                what = f"the label {example.label!r} is not one name, as the model was taught"
                raise KeelError(f"{example.where}: {what}: correct it, or choose another --label-column")
        return torch.tensor(numbers)[:, 0]


@dataclass(frozen=True)
class Examples(Sequence[Example]):
    """Examples from one source, whose labels are all of one kind."""

    items: list[Example]
    kind: Kind | None
    """Of the labels; None where there are none."""
    source: str
    columns: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """All labels of the source, also in a part of it."""

    @property
    def labels(self) -> Labels:
        """What a model can learn here; fewer than two classes are refused."""
        if self.kind is None:
            if self.items and self.items[0].words:
                raise KeelError(f"{self.source} has words without tags: put each word's tag after it, in a column")
            columns = f" (it has the columns {', '.join(map(repr, self.columns))})" if self.columns else ""
            raise KeelError(f"{self.source} has no labels{columns}: name their column with --label-column")
        if self.kind != "number" and len(self.names) < 2:
            found = f"one class only, {self.names[0]!r}" if self.names else "no class"
            raise KeelError(f"{self.source} has {found}: to tell classes apart takes examples of two or more")
        return Labels(kind=self.kind, names=self.names)

    @property
    def label_counts(self) -> tuple[int, ...]:
        """How many of these examples have each of the names."""
        counts = Counter(name for example in self.items for name in example.names)
        return tuple(counts[name] for name in self.names)

    def take(self, indices: Iterable[int]) -> "Examples":
        """Some of these examples, in this order."""
        return Examples([self.items[index] for index in indices], self.kind, self.source, self.columns, self.names)

    def fingerprint(self) -> str:
        """Another one for any other texts or labels."""
        content = repr([(example.text, example.second, example.label) for example in self.items])
        return hashlib.blake2b(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.items)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> "Examples": ...
    def __getitem__(self, index: int | slice) -> "Example | Examples":
        return self.take(range(len(self))[index]) if isinstance(index, slice) else self.items[index]


def read_examples(source: Any, *, pair: bool, columns: Columns = ANY, on_event: OnEvent = ignore) -> Examples:
    """Read a file, `-`, a list of texts or of (text, label), dicts or a DataFrame.

    What `columns` leaves open is found out, and said.
    """
    if isinstance(source, Examples):
        return source
    text, second, label = columns.text_column, columns.second_column, columns.label_column
    named = [name for name in (text, second, label) if name]
    table = load_table(source, pair=pair, named=named, encoding=columns.encoding, on_event=on_event)
    if not table.rows:
        raise KeelError(f"{table.source} holds no examples: give one text in every line or item")
    roles = choose_columns(table, pair=pair, text=text, second=second, label=label)
    if isinstance(source, str | Path):
        note(on_event, roles.describe(table))
    raw = [None] * len(table.rows) if roles.label is None else table.values(roles.label)
    kind = _kind(table, roles.label, raw, columns.labels, on_event)
    items = [
        Example(
            _text(row[roles.text], place),
            None if roles.second is None else _text(row[roles.second], place),
            None if kind is None else _label(value, kind, place),
            place,
        )
        for row, value, place in zip(table.rows, raw, table.places, strict=True)
    ]
    names = tuple(sorted({name for example in items for name in example.names}))
    return Examples(items, kind, table.source, tuple(table.columns) if table.header else (), names)


def hold_out(examples: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """What to learn from and a seeded `share` to test on: every label in the same proportion, none only tested."""
    held = round(share * len(examples))
    if not 0 < held < len(examples):
        raise KeelError(
            f"{share:.0%} of {len(examples)} examples cannot be held out: give more of them, or a --dev file"
        )
    # Along an order in which equal labels stand together, every 1/share-th example is taken.
    place = np.arange(1, len(examples) + 1)
    taken = place * held // len(examples) > (place - 1) * held // len(examples)
    order = _by_label(examples, seed)
    learned, tested = order[~taken].tolist(), []
    known = {name for number in learned for name in examples[number].names}
    for number in order[taken].tolist():
        (tested if known.issuperset(examples[number].names) else learned).append(number)
        known.update(examples[number].names)
    return examples.take(sorted(learned)), examples.take(sorted(tested))


def folds(examples: Examples, count: int, seed: int) -> Iterator[tuple[Examples, Examples]]:
    """`count` pairs of what to learn from and what to test on: each example tested once, labels spread evenly."""
    if not 2 <= count <= len(examples):
        raise KeelError(f"{len(examples)} examples cannot be cut into {count} folds: give 2 to {len(examples)}")
    fold = np.empty(len(examples), dtype=np.int64)
    fold[_by_label(examples, seed)] = np.arange(len(examples)) % count
    for number in range(count):
        yield examples.take(np.flatnonzero(fold != number)), examples.take(np.flatnonzero(fold == number))


def _by_label(examples: Examples, seed: int) -> np.ndarray:
    """The numbers of the examples in random order, those with equal names side by side."""
    order = np.random.default_rng(seed_of(seed, "split")).permutation(len(examples))
    _, group = np.unique(["\0".join(example.names) for example in examples], return_inverse=True)
    return order[np.argsort(group[order], kind="stable")]


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise KeelError(f"{place}: the text is {value!r}, not a string: mend it, or choose another --text-column")
    return value


def _kind(table: Table, column: int | None, raw: list[Any], asked: str, on_event: OnEvent) -> Kind | None:
    """What these labels are; numbers are names, such as stars, unless they have fractions and look like scores."""
    missing = [value is None or value == "" or (isinstance(value, float) and value != value) for value in raw]
    if column is None or all(missing):
        return None
    if any(missing):
        place = table.places[missing.index(True)]
        raise KeelError(f"{place}: the label is empty, though other rows have one: fill it in or drop the row")
    if asked in ("one", "several", "number"):
        return asked
    if table.kind is not None:
        return table.kind
    if any(isinstance(value, list | tuple | set) for value in raw):
        return "several"
    numbers = [_number(value) for value in raw]
    fractions = sum(number is not None and "." in str(value) for number, value in zip(numbers, raw, strict=True))
    # Decimals that hardly ever recur are measurements; few that recur are names, such as versions or stars.
    measured = len(set(map(str, raw))) > max(20, len(raw) // 2) and 2 * fractions > len(raw)
    if None in numbers and measured:
        odd = numbers.index(None)
        raise KeelError(
            f"{table.places[odd]}: the label {raw[odd]!r} is no number, though most are: mend it, or say --labels one"
        )
    if None in numbers or not fractions:
        return "one"
    scores = measured or table.columns[column].lower() in SCORES or not isinstance(raw[0], str)
    if scores and any(number % 1 for number in numbers if number):
        note(on_event, f"{table.source}: the labels are read as numbers; --labels one makes each of them a class")
        return "number"
    classes = sorted(set(map(str, raw)))
    shown = ", ".join(classes[:4]) + (", ..." if len(classes) > 4 else "")
    what = f"the labels look like numbers and are read as {len(classes)} classes ({shown})"
    note(on_event, f"{table.source}: {what}; --labels number makes them numbers")
    return "one"


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if number - number == 0 else None  # neither infinite nor NaN


def _label(value: Any, kind: Kind, place: str) -> Value:
    if kind == "number":
        number = _number(value)
        if number is None:
            raise KeelError(f"{place}: the label {value!r} is no number: mend it, or say --labels one for classes")
        return number
    if isinstance(value, str) and kind == "several":
        value = [name.strip() for name in re.split("[,;|]", value) if name.strip()]
    names = list(map(str, value)) if isinstance(value, list | tuple | set) else [str(value)]
    if kind == "several":
        return tuple(sorted(set(names)))
    if len(names) != 1:
        raise KeelError(f"{place}: there are {len(names)} labels where one is wanted: say --labels several")
    return names[0]
