"""Examples: texts with what they are, read from anything, as numbers to learn from, split fairly."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from keel.config import Validated
from keel.data.label_parsing import Value, infer_label_kind, label_names, parse_labels
from keel.data.tables import Kind, Locations, Table, choose_columns, load_table
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import OnEvent, counted, ignore, note
from keel.training.counter_rng import derive_seed


@dataclass(frozen=True, kw_only=True)
class Columns(Validated):
    """Where labelled data keeps what; empty names are found by header or shape, and said."""

    text_column: str = ""
    """The column of the text."""
    second_column: str = ""
    """The column of the second text of a pair."""
    label_column: str = ""
    """The column of the label."""
    labels: Literal["auto", "one", "several", "number"] = "auto"
    """What a label is: one of some names, several of them, or a number."""
    format: Literal["auto", "columns", "conllu", "slashes", "segmented", "text"] = "auto"
    """Of a file of tagged words: a word in each line, word/tag, words apart by blanks, or text without tags."""
    scheme: Literal["auto", "BIO", "BIOES", "BMES"] = "auto"
    """The kind of tags by which entities are learned; auto leaves them as they are, but BIO1 becomes BIO."""
    encoding: str = "auto"
    """Of the file; auto tries UTF-8, then GB18030."""


DEFAULT_COLUMNS = Columns()
NAMELESS = ("number", "choice", "text")
"""Kinds of labels that are no names."""


@dataclass(frozen=True, slots=True)
class Example:
    """One text, or a pair of them, and what it is."""

    text: str
    second: str | None
    label: Value | None
    location: str
    """Where it was read, as in dev.tsv:17."""
    words: tuple[str, ...] = ()
    """Of a text whose words are told apart, and have a tag each in its label."""
    choices: tuple[str, ...] = ()
    """Of a text that is to be completed or answered by one of these, whose number is its label."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names among its label: one, several or none."""
        return label_names(self.label)

    @property
    def gold(self) -> Any:
        """Its label as people read it: of choices the text of the right one."""
        return self.choices[self.label] if self.choices and isinstance(self.label, int) else self.label


@dataclass(frozen=True)
class ExampleColumns(Sequence[Example]):
    """Examples as columns: each is made when it is asked for, since a million of them would slow everything down."""

    texts: list[str]
    seconds: list[str] | None
    values: list[Any] | None
    """The labels."""
    locations: Sequence[str]
    words: list[tuple[str, ...]] | None = None
    """Of texts whose words are told apart."""
    choices: list[tuple[str, ...]] | None = None
    """Of texts that come with choices."""

    @classmethod
    def from_examples(cls, items: Sequence[Example]) -> "ExampleColumns":
        """Any examples as columns."""
        if isinstance(items, ExampleColumns):
            return items
        pairs, labelled = any(item.second is not None for item in items), any(item.label is not None for item in items)
        return cls(
            [item.text for item in items],
            [item.second or "" for item in items] if pairs else None,
            [item.label for item in items] if labelled else None,
            [item.location for item in items],
            [item.words for item in items] if any(item.words for item in items) else None,
            [item.choices for item in items] if any(item.choices for item in items) else None,
        )

    def take(self, indices: Sequence[int]) -> "ExampleColumns":
        """Some of them, in this order."""
        places = self.locations
        return ExampleColumns(
            [self.texts[index] for index in indices],
            None if self.seconds is None else [self.seconds[index] for index in indices],
            None if self.values is None else [self.values[index] for index in indices],
            places.take(indices) if isinstance(places, Locations) else [places[index] for index in indices],
            None if self.words is None else [self.words[index] for index in indices],
            None if self.choices is None else [self.choices[index] for index in indices],
        )

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> "ExampleColumns": ...
    def __getitem__(self, index: int | slice) -> "Example | ExampleColumns":
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        second = None if self.seconds is None else self.seconds[index]
        label = None if self.values is None else self.values[index]
        words = () if self.words is None else self.words[index]
        choices = () if self.choices is None else self.choices[index]
        return Example(self.texts[index], second, label, self.locations[index], words, choices)


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The kind of the labels and, unless they are numbers or texts, their names as given, in order."""

    kind: Kind
    names: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = field(default=None, repr=False)
    """What texts are written in as labels, if not in the pieces of those that are read."""

    @property
    def outputs(self) -> int:
        """How many numbers a head gives for one example."""
        return len(self.names) or 1

    def targets(self, examples: "Examples") -> Tensor:
        """[examples] class numbers, [examples, names] zeros and ones, [examples] numbers, or the choices' numbers,
        or [words] of all examples the tags' numbers, -1 for unknown ones."""
        if examples.kind is None:
            raise KeelError(f"{examples.source} has no labels to compare with: name their column with --label-column")
        if self.kind == "choice":
            return torch.tensor(examples.values)
        if self.kind == "number":
            return torch.tensor(parse_labels(examples.values, "number", examples.locations))
        number_of = {name: number for number, name in enumerate(self.names)}
        if self.kind == "tags":
            return torch.tensor([number_of.get(name, -1) for value in examples.values for name in label_names(value)])
        found = {
            value: [number_of.get(name, -1) for name in label_names(value)] for value in dict.fromkeys(examples.values)
        }
        for value, numbers in found.items():
            if -1 in numbers:
                known = ", ".join(map(repr, self.names[:10])) + (", ..." if len(self.names) > 10 else "")
                what = (
                    f"the label {label_names(value)[numbers.index(-1)]!r} did not occur in training, which knew {known}"
                )
                raise KeelError(f"{examples.location_of(value)}: {what}: correct it, or train with it")
        if self.kind == "several":
            return torch.from_numpy(_ones(found, len(self.names))[_numbered(examples.values, found)])
        for value, numbers in found.items():
            if len(numbers) != 1:
                what = f"the label {value!r} is not one name, as the model was taught"
                remedy = "correct it, or choose another --label-column"
                raise KeelError(f"{examples.location_of(value)}: {what}: {remedy}")
        classes = np.array([number for (number,) in found.values()], np.int64)
        return torch.from_numpy(classes[_numbered(examples.values, found)])


@dataclass(frozen=True)
class Examples(Sequence[Example]):
    """Examples from one source, whose labels are all of one kind."""

    items: Sequence[Example]
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
        if self.kind not in NAMELESS and len(self.names) < 2:
            found = f"one class only, {self.names[0]!r}" if self.names else "no class"
            raise KeelError(f"{self.source} has {found}: to tell classes apart takes examples of two or more")
        return Labels(kind=self.kind, names=self.names)

    @cached_property
    def _listed(self) -> ExampleColumns:
        return ExampleColumns.from_examples(self.items)

    @property
    def texts(self) -> list[str]:
        """The text of each; of a pair the first."""
        return self._listed.texts

    @property
    def seconds(self) -> list[str] | None:
        """The second texts, where examples are pairs."""
        return self._listed.seconds

    @property
    def values(self) -> list[Any]:
        """The label of each."""
        return [None] * len(self) if self._listed.values is None else self._listed.values

    @property
    def locations(self) -> Sequence[str]:
        """Where each was read."""
        return self._listed.locations

    @property
    def choices(self) -> list[tuple[str, ...]]:
        """The choices of each, where there are any."""
        return self._listed.choices or [()] * len(self)

    def location_of(self, value: Any) -> str:
        """Where the first with this label was read."""
        return self.locations[self.values.index(value)]

    @property
    def label_counts(self) -> tuple[int, ...]:
        """How many of these examples have each of the names."""
        counts: Counter[str] = Counter()
        for value, count in Counter(self.values).items():
            for name in self.names_in(value):
                counts[name] += count
        return tuple(counts[name] for name in self.names)

    def names_in(self, value: Any) -> tuple[str, ...]:
        """The names that a label of these examples has: none where labels are texts."""
        return () if self.kind == "text" else label_names(value)

    def take(self, indices: Iterable[int]) -> "Examples":
        """Some of these examples, in this order."""
        return replace(self, items=self._listed.take(list(indices)))

    def fingerprint(self) -> str:
        """Another one for any other texts or labels."""
        told = (self.values, self._listed.words, *([self._listed.choices] if self._listed.choices else []))
        digest = hashlib.blake2b(repr(told).encode("utf-8", "surrogatepass"))
        for column in (self.texts, self.seconds or []):
            digest.update(np.fromiter(map(len, column), np.int64, len(column)).tobytes())
            digest.update("".join(column).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:32]

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


def read_examples(
    source: Any, *, pair: bool, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore
) -> Examples:
    """Read a file, `-`, a list of texts or of (text, label), dicts or a DataFrame.

    What `columns` leaves open is found out, and said.
    """
    if isinstance(source, Examples):
        return source
    text, second, label = columns.text_column, columns.second_column, columns.label_column
    named = [name for name in (text, second, label) if name]
    table = load_table(source, pair=pair, named=named, encoding=columns.encoding, on_event=on_event)
    if not len(table):
        raise KeelError(f"{table.source} holds no examples: give one text in every line or item")
    roles = choose_columns(table, pair=pair, text=text, second=second, label=label)
    if isinstance(source, str | Path):
        note(on_event, roles.describe(table))
    raw = [None] * len(table) if roles.label is None else table.cells[roles.label]
    kind = infer_label_kind(table, roles.label, raw, columns.labels, on_event)
    items = ExampleColumns(
        _texts(table, roles.text),
        None if roles.second is None else _texts(table, roles.second),
        None if kind is None else parse_labels(raw, kind, table.locations),
        table.locations,
    )
    names = {name for value in set(items.values or []) for name in label_names(value)}
    header = tuple(table.columns) if table.header else ()
    return Examples(items, kind, table.source, header, tuple(sorted(names)))


def split_validation(examples: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """What to learn from and a seeded `share` to test on: every label in the same proportion, none only tested."""
    held = round(share * len(examples))
    if not 0 < held < len(examples):
        raise KeelError(
            f"{share:.0%} of {counted(len(examples), 'example')} cannot be held out: give more of them, or a --dev file"
        )
    # Along an order in which equal labels stand together, every 1/share-th example is taken.
    place = np.arange(1, len(examples) + 1)
    taken = place * held // len(examples) > (place - 1) * held // len(examples)
    order = _by_label(examples, seed)
    learned, tested = order[~taken].tolist(), []
    values = examples.values
    known = {name for value in {values[number] for number in learned} for name in examples.names_in(value)}
    for number in order[taken].tolist():
        names = examples.names_in(values[number])
        (tested if known.issuperset(names) else learned).append(number)
        known.update(names)
    tested += _spared(examples, learned, held - len(tested), seed)
    learned = {*learned}.difference(tested)
    return examples.take(sorted(learned)), examples.take(sorted(tested))


def _spared(examples: Examples, learned: list[int], wanted: int, seed: int) -> list[int]:
    """Up to so many at random of those that are learned from, all of whose names others of them have too."""
    spared: list[int] = []
    if wanted:
        left = Counter(name for number in learned for name in {*examples.names_in(examples.values[number])})
        for number in np.random.default_rng(derive_seed(seed, "spared")).permutation(learned).tolist():
            names = {*examples.names_in(examples.values[number])}
            if len(spared) < wanted and all(left[name] > 1 for name in names):
                left.subtract(names)
                spared.append(number)
    return spared


def cross_validation_folds(examples: Examples, count: int, seed: int) -> Iterator[tuple[Examples, Examples]]:
    """`count` pairs of what to learn from and what to test on: each example tested once, labels spread evenly."""
    if not 2 <= count <= len(examples):
        raise KeelError(f"{len(examples)} examples cannot be cut into {count} folds: give 2 to {len(examples)}")
    fold = np.empty(len(examples), dtype=np.int64)
    fold[_by_label(examples, seed)] = np.arange(len(examples)) % count
    for number in range(count):
        yield examples.take(np.flatnonzero(fold != number)), examples.take(np.flatnonzero(fold == number))


def _by_label(examples: Examples, seed: int) -> np.ndarray:
    """The numbers of the examples in random order, those with equal names side by side."""
    order = np.random.default_rng(derive_seed(seed, "split")).permutation(len(examples))
    keys = {value: "\0".join(examples.names_in(value)) for value in set(examples.values)}
    places = {key: place for place, key in enumerate(sorted(set(keys.values())))}
    groups = {value: places[key] for value, key in keys.items()}
    group = np.fromiter(map(groups.__getitem__, examples.values), np.int64, len(examples))
    return order[np.argsort(group[order], kind="stable")]


def _numbered(values: list[Any], distinct: Iterable[Any]) -> np.ndarray:
    """[values] the place of each among the distinct ones."""
    places = {value: place for place, value in enumerate(distinct)}
    return np.fromiter(map(places.__getitem__, values), np.int64, len(values))


def _ones(found: dict[Any, list[int]], width: int) -> np.ndarray:
    """[labels, names] a one for each name of a label."""
    ones = np.zeros((len(found), width), np.float32)
    for row, numbers in zip(ones, found.values(), strict=True):
        row[numbers] = 1
    return ones


def _texts(table: Table, column: int) -> list[str]:
    texts = table.cells[column]
    if set(map(type, texts)) != {str}:
        for value, place in zip(texts, table.locations, strict=True):
            if not isinstance(value, str):
                remedy = "mend or drop it, or choose another text column"
                raise KeelError(f"{place}: the text is {value!r}, not a string: {remedy}")
    return texts
