"""Labelled examples: texts with their labels, read from files, lists or tables, and split for validation."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from torch import Tensor

from keel.config import Validated
from keel.data.label_kinds import LabelKind, Value, label_names
from keel.data.label_parsing import infer_label_kind, parse_labels
from keel.data.tables import Locations, Table, choose_columns, load_table
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import OnEvent, counted, ignore, note
from keel.training.counter_rng import derive_seed


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


DEFAULT_COLUMNS = Columns()


@dataclass(frozen=True, slots=True)
class Example:
    """One text, or a pair, with its label."""

    text: str
    second: str | None
    label: Value | None
    location: str
    """Where it was read, such as dev.tsv:17."""
    words: tuple[str, ...] = ()
    """Words of a pre-tokenized text; its label has one tag for each."""
    choices: tuple[str, ...] = ()
    """Choices of a multiple-choice example; its label is the index of the right one."""

    @property
    def names(self) -> tuple[str, ...]:
        """The class names in its label."""
        return label_names(self.label)

    @property
    def gold(self) -> Any:
        """The label for display: the text of the right choice, where there are choices."""
        return self.choices[self.label] if self.choices and isinstance(self.label, int) else self.label


@dataclass(frozen=True)
class ExampleColumns(Sequence[Example]):
    """Examples stored as columns; an `Example` is made on access, since a million objects would be slow."""

    texts: list[str]
    seconds: list[str] | None
    values: list[Any] | None
    """The labels."""
    locations: Sequence[str]
    words: list[tuple[str, ...]] | None = None
    choices: list[tuple[str, ...]] | None = None

    @classmethod
    def from_examples(cls, items: Sequence[Example]) -> "ExampleColumns":
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
        """Examples at these indices, in this order."""
        locations = self.locations
        return ExampleColumns(
            [self.texts[index] for index in indices],
            None if self.seconds is None else [self.seconds[index] for index in indices],
            None if self.values is None else [self.values[index] for index in indices],
            locations.take(indices) if isinstance(locations, Locations) else [locations[index] for index in indices],
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
    """Label schema of a task: the label kind and, where labels are classes, their names in order."""

    kind: LabelKind
    names: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = field(default=None, repr=False)
    """Target tokenizer of a sequence-to-sequence task, where it differs from that of the source."""

    @property
    def outputs(self) -> int:
        """Output size of the head."""
        return len(self.names) or 1

    def targets(self, examples: "Examples") -> Tensor:
        """Targets of these examples, as the label kind encodes them."""
        if examples.kind is None:
            raise KeelError(f"{examples.source} has no labels to compare with: name their column with --label-column")
        return self.kind.encode_targets(examples, self.names)


@dataclass(frozen=True)
class Examples(Sequence[Example]):
    """Examples from one source, with labels of one kind."""

    items: Sequence[Example]
    kind: LabelKind | None
    """None for unlabelled examples."""
    source: str
    columns: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """All classes of the source, also in a subset."""

    @property
    def labels(self) -> Labels:
        """Label schema of these examples; fewer than two classes are refused."""
        if self.kind is None:
            if self.items and self.items[0].words:
                raise KeelError(f"{self.source} has words without tags: put the tag of each word in a column after it")
            columns = f" (its columns are {', '.join(map(repr, self.columns))})" if self.columns else ""
            raise KeelError(f"{self.source} has no labels{columns}: name their column with --label-column")
        if self.kind.has_classes and len(self.names) < 2:
            found = f"only one class, {self.names[0]!r}" if self.names else "no class"
            raise KeelError(f"{self.source} has {found}: give examples of two or more")
        return Labels(kind=self.kind, names=self.names)

    @cached_property
    def _listed(self) -> ExampleColumns:
        return ExampleColumns.from_examples(self.items)

    @property
    def texts(self) -> list[str]:
        """The texts; of pairs the first ones."""
        return self._listed.texts

    @property
    def seconds(self) -> list[str] | None:
        """The second texts of pairs."""
        return self._listed.seconds

    @property
    def values(self) -> list[Any]:
        """The labels."""
        return [None] * len(self) if self._listed.values is None else self._listed.values

    @property
    def locations(self) -> Sequence[str]:
        """Where each example was read."""
        return self._listed.locations

    @property
    def choices(self) -> list[tuple[str, ...]]:
        """The choices of each example; empty tuples without any."""
        return self._listed.choices or [()] * len(self)

    def location_of(self, value: Any) -> str:
        """Where the first example with this label was read."""
        return self.locations[self.values.index(value)]

    @property
    def label_counts(self) -> tuple[int, ...]:
        """How many examples have each class, in the order of `names`."""
        counts: Counter[str] = Counter()
        for value, count in Counter(self.values).items():
            for name in self.names_in(value):
                counts[name] += count
        return tuple(counts[name] for name in self.names)

    def names_in(self, value: Any) -> tuple[str, ...]:
        """The class names in a label of these examples."""
        return label_names(value) if self.kind is None else self.kind.names_in(value)

    def take(self, indices: Iterable[int]) -> "Examples":
        """Examples at these indices, in this order."""
        return replace(self, items=self._listed.take(list(indices)))

    def fingerprint(self) -> str:
        """Hash of all texts and labels."""
        annotations = (self.values, self._listed.words, *([self._listed.choices] if self._listed.choices else []))
        digest = hashlib.blake2b(repr(annotations).encode("utf-8", "surrogatepass"))
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

    What `columns` leaves open is inferred, and reported.
    """
    if isinstance(source, Examples):
        return source
    text, second, label = columns.text_column, columns.second_column, columns.label_column
    named = [name for name in (text, second, label) if name]
    table = load_table(source, pair=pair, named=named, encoding=columns.encoding, on_event=on_event)
    if not len(table):
        raise KeelError(f"{table.source} has no examples: give one text per line or item")
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
    """Stratified split into training examples and a validation `share`; every validation class is also in training."""
    held = round(share * len(examples))
    if not 0 < held < len(examples):
        what = f"{share:.0%} of {counted(len(examples), 'example')} cannot be held out"
        raise KeelError(f"{what}: give more examples, or a --dev file")
    # Every 1/share-th example is held out, in an order in which equal labels are adjacent.
    position = np.arange(1, len(examples) + 1)
    held_out = position * held // len(examples) > (position - 1) * held // len(examples)
    order = _grouped_by_label(examples, seed)
    training, validation = order[~held_out].tolist(), []
    values = examples.values
    known = {name for value in {values[index] for index in training} for name in examples.names_in(value)}
    for index in order[held_out].tolist():
        names = examples.names_in(values[index])
        (validation if known.issuperset(names) else training).append(index)
        known.update(names)
    validation += _further_validation(examples, training, held - len(validation), seed)
    training = {*training}.difference(validation)
    return examples.take(sorted(training)), examples.take(sorted(validation))


def _further_validation(examples: Examples, training: list[int], count: int, seed: int) -> list[int]:
    """Up to `count` random training examples all of whose classes remain in training without them."""
    moved: list[int] = []
    if count:
        left = Counter(name for index in training for name in {*examples.names_in(examples.values[index])})
        for index in np.random.default_rng(derive_seed(seed, "spared")).permutation(training).tolist():
            names = {*examples.names_in(examples.values[index])}
            if len(moved) < count and all(left[name] > 1 for name in names):
                left.subtract(names)
                moved.append(index)
    return moved


def cross_validation_folds(examples: Examples, count: int, seed: int) -> Iterator[tuple[Examples, Examples]]:
    """Stratified k-fold cross-validation: `count` pairs of training and test examples."""
    if not 2 <= count <= len(examples):
        raise KeelError(f"{len(examples)} examples cannot be split into {count} folds: give 2 to {len(examples)}")
    fold = np.empty(len(examples), dtype=np.int64)
    fold[_grouped_by_label(examples, seed)] = np.arange(len(examples)) % count
    for number in range(count):
        yield examples.take(np.flatnonzero(fold != number)), examples.take(np.flatnonzero(fold == number))


def _grouped_by_label(examples: Examples, seed: int) -> np.ndarray:
    """Example indices in random order, those with equal classes adjacent."""
    order = np.random.default_rng(derive_seed(seed, "split")).permutation(len(examples))
    keys = {value: "\0".join(examples.names_in(value)) for value in set(examples.values)}
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys.values())))}
    groups = {value: ranks[key] for value, key in keys.items()}
    group = np.fromiter(map(groups.__getitem__, examples.values), np.int64, len(examples))
    return order[np.argsort(group[order], kind="stable")]


def _texts(table: Table, column: int) -> list[str]:
    texts = table.cells[column]
    if set(map(type, texts)) != {str}:
        for value, location in zip(texts, table.locations, strict=True):
            if not isinstance(value, str):
                remedy = "correct or drop it, or choose another --text-column"
                raise KeelError(f"{location}: the text is {value!r}, not a string: {remedy}")
    return texts
