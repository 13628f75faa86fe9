"""Labelled examples: texts with their labels, read from files, lists or tables, and split for validation."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from keel.data.label_kinds import LabelKind, Value, infer_label_kind, label_names
from keel.data.table_sources import load_table
from keel.data.tables import (
    DEFAULT_COLUMNS,
    Columns,
    LazySequence,
    Locations,
    choose_columns,
    describe_columns,
)
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note, pluralize
from keel.training.counter_rng import derive_seed


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


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Label schema of a task: the label kind and, where labels are classes, their names in order."""

    kind: LabelKind
    names: tuple[str, ...] = ()
    counts: tuple[int, ...] = field(default=(), repr=False, compare=False)
    """Training examples of each class; empty if unknown. Not part of the schema that parts of a dataset share."""
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


@dataclass(frozen=True, kw_only=True)
class Examples(LazySequence[Example]):
    """Examples from one source, stored as columns: a million objects would be slow."""

    texts: list[str]
    """The texts; of pairs the first ones."""
    seconds: list[str] | None = None
    """The second texts of pairs."""
    values: list[Any]
    """The labels; None for an unlabelled example."""
    locations: Sequence[str]
    """Where each example was read."""
    words: list[tuple[str, ...]] = field(default_factory=list)
    """The words of each text, if texts are pre-tokenized."""
    choices: list[tuple[str, ...]] = field(default_factory=list)
    """The choices of each example, if it has any."""
    kind: LabelKind | None
    """None for unlabelled examples."""
    source: str
    columns: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """All classes of the source, also in a subset."""

    @classmethod
    def of(
        cls, items: Sequence[Example], kind: LabelKind | None, source: str, names: tuple[str, ...] = ()
    ) -> "Examples":
        """Examples from a list of them."""
        return cls(
            texts=[item.text for item in items],
            seconds=[item.second or "" for item in items] if any(item.second is not None for item in items) else None,
            values=[item.label for item in items],
            locations=[item.location for item in items],
            words=[item.words for item in items] if any(item.words for item in items) else [],
            choices=[item.choices for item in items] if any(item.choices for item in items) else [],
            kind=kind,
            source=source,
            names=names,
        )

    def __len__(self) -> int:
        return len(self.texts)

    def item(self, index: int) -> Example:
        return Example(
            self.texts[index],
            None if self.seconds is None else self.seconds[index],
            self.values[index],
            self.locations[index],
            self.words[index] if self.words else (),
            self.choices[index] if self.choices else (),
        )

    def take(self, indices: Iterable[int]) -> "Examples":
        chosen = list(indices)

        def part(column: list[Any]) -> list[Any]:
            return [column[index] for index in chosen] if column else []

        return replace(
            self,
            texts=part(self.texts),
            seconds=None if self.seconds is None else part(self.seconds),
            values=part(self.values),
            locations=self.locations.take(chosen) if isinstance(self.locations, Locations) else part([*self.locations]),
            words=part(self.words),
            choices=part(self.choices),
        )

    @property
    def labels(self) -> Labels:
        """Label schema of these examples; fewer than two classes are refused."""
        if self.kind is None:
            if self.words and self.words[0]:
                raise KeelError(f"{self.source} has words without tags: put the tag of each word in a column after it")
            columns = f" (its columns are {', '.join(map(repr, self.columns))})" if self.columns else ""
            raise KeelError(f"{self.source} has no labels{columns}: name their column with --label-column")
        if self.kind.has_classes and len(self.names) < 2:
            found = f"only one class, {self.names[0]!r}" if self.names else "no class"
            raise KeelError(f"{self.source} has {found}: give examples of two or more")
        return Labels(kind=self.kind, names=self.names, counts=self.label_counts)

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

    def location_of(self, value: Any) -> str:
        """Where the first example with this label was read."""
        return self.locations[self.values.index(value)]

    def fingerprint(self) -> str:
        """Hash of all texts and labels."""
        annotations = (self.values, self.words or None, *([self.choices] if self.choices else []))
        digest = hashlib.blake2b(repr(annotations).encode("utf-8", "surrogatepass"))
        for column in (self.texts, self.seconds or []):
            digest.update(np.fromiter(map(len, column), np.int64, len(column)).tobytes())
            digest.update("".join(column).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:32]


def read_examples(
    source: Any, *, pair: bool, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore
) -> Examples:
    """Read a file, `-`, a list of texts or of (text, label), dicts or a DataFrame.

    What `columns` leaves open is inferred, and reported.
    """
    if isinstance(source, Examples):
        return source
    table = load_table(source, columns, on_event, pair=pair)
    if not len(table):
        raise KeelError(f"{table.source} has no examples: give one text per line or item")
    text, second, label = choose_columns(table, columns, pair=pair)
    if isinstance(source, str | Path):
        note(on_event, describe_columns(table, text, second, label))
    kind, values = None, [None] * len(table)
    if label is not None and (kind := infer_label_kind(table, label, columns.labels, on_event)):
        values = kind.parse_all(table.cells[label], table.locations)
    return Examples(
        texts=table.texts(text, "text"),
        seconds=None if second is None else table.texts(second, "second"),
        values=values,
        locations=table.locations,
        kind=kind,
        source=table.source,
        columns=tuple(table.columns) if table.header else (),
        names=tuple(sorted({name for value in set(values) for name in label_names(value)})),
    )


def split_validation(examples: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """Stratified split into training examples and a validation `share`; every validation class is also in training."""
    held = round(share * len(examples))
    if not 0 < held < len(examples):
        what = f"{share:.0%} of {pluralize(len(examples), 'example')} cannot be held out"
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
