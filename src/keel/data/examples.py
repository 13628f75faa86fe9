"""Labelled examples: texts with their labels, read from files, lists or tables."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from keel.data.answer_spans import GoldAnswers
from keel.data.label_columns import parse_labels
from keel.data.label_kinds import LabelKind, MultiLabel, SingleLabel, Value, label_names
from keel.data.table_sources import load_table
from keel.data.tables import (
    DEFAULT_COLUMNS,
    Columns,
    LazySequence,
    Locations,
    Table,
    choose_columns,
    describe_columns,
)
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note, pluralize


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
    id: str = ""
    """The dataset's own identifier."""
    group: str = ""
    """Examples of one group, such as the questions on one article, are on one side of a split."""

    @property
    def names(self) -> tuple[str, ...]:
        """The class names in its label."""
        return label_names(self.label)

    @property
    def gold(self) -> Any:
        """The label for display: the text of the right choice, where there are choices; the texts of answers."""
        if isinstance(self.label, GoldAnswers):
            return str(self.label)
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
        return len(self.names) or self.kind.outputs

    def unseen_in(self, examples: "Examples") -> tuple[str, ...]:
        """Class names of these examples that did not occur in training; none if no name did."""
        if not isinstance(self.kind, SingleLabel | MultiLabel) or {*self.names}.isdisjoint(examples.names):
            return ()
        found = {name for value in {*examples.values} for name in examples.names_in(value)}
        return tuple(sorted(found.difference(self.names)))

    def describe_unseen(self, examples: "Examples") -> str:
        """A message about examples with classes that did not occur in training; empty if there are none."""
        if not (unseen := {*self.unseen_in(examples)}):
            return ""
        indices = [index for index, value in enumerate(examples.values) if unseen & {*examples.names_in(value)}]
        shown = ", ".join(map(repr, sorted(unseen)[:3])) + (", ..." if len(unseen) > 3 else "")
        what = f"{len(indices):,} of {len(examples):,} examples have labels that did not occur in training ({shown})"
        return f"{examples.locations[indices[0]]}: {what}, first here: they count as errors"

    def seen_part(self, examples: "Examples") -> "Examples":
        """The examples all of whose classes occurred in training."""
        unseen = {*self.unseen_in(examples)}
        seen = (index for index, value in enumerate(examples.values) if unseen.isdisjoint(examples.names_in(value)))
        return examples.take(seen) if unseen else examples

    def including(self, examples: "Examples") -> "Labels":
        """These labels and the unseen ones of the examples, to score predictions that cannot have them."""
        unseen = self.unseen_in(examples)
        return replace(self, names=(*self.names, *unseen), counts=()) if unseen else self

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
    ids: list[str] = field(default_factory=list)
    """The dataset's own identifiers, if it has any."""
    groups: list[str] = field(default_factory=list)
    """The group of each example, if there are groups."""
    kind: LabelKind | None
    """None for unlabelled examples."""
    source: str
    columns: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """All classes of the source, also in a subset."""
    languages: list[str] = field(default_factory=list)
    """The language of each example, where sources are named by language."""

    @classmethod
    def join(cls, parts: Mapping[str, "Examples"]) -> "Examples":
        """The examples of several languages one after the other; all have labels of one kind, or none has."""
        first, *others = parts.values()

        def joined(name: str) -> list[Any]:
            columns = [getattr(part, name) or [] for part in parts.values()]
            return list(chain.from_iterable(columns)) if all(columns) else []

        for part in others:
            if type(part.kind) is not type(first.kind) or (part.seconds is None) != (first.seconds is None):
                what = f"{part.source} has other labels or texts than {first.source}"
                raise KeelError(f"{what}: give files of one form, with --labels if labels are read in different ways")
        return replace(
            first,
            texts=joined("texts"),
            seconds=None if first.seconds is None else joined("seconds"),
            values=joined("values"),
            locations=[location for part in parts.values() for location in part.locations],
            words=joined("words"),
            choices=joined("choices"),
            ids=joined("ids"),
            groups=joined("groups"),
            source=first.source if not others else f"{first.source} and {pluralize(len(others), 'more language')}",
            names=tuple(sorted({name for part in parts.values() for name in part.names})),
            languages=[language for language, part in parts.items() for _ in part.texts],
        )

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
            ids=[item.id for item in items] if any(item.id for item in items) else [],
            groups=[item.group for item in items] if any(item.group for item in items) else [],
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
            self.ids[index] if self.ids else "",
            self.groups[index] if self.groups else "",
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
            ids=part(self.ids),
            groups=part(self.groups),
            languages=part(self.languages),
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

    def text_keys(self) -> list[str]:
        """The texts of each example without differences in whitespace: equal for duplicates."""
        keys = [" ".join(text.split()) for text in self.texts]
        rest = [" | ".join(choices) for choices in self.choices] if self.choices else self.seconds
        return keys if rest is None else [f"{a}\0{' '.join(b.split())}" for a, b in zip(keys, rest, strict=True)]

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
    roles = choose_columns(table, columns, pair=pair) if len(table) else (0, None, None)
    if len(table) and isinstance(source, str | Path):
        note(on_event, describe_columns(table, *roles))
    return table_examples(table, roles, columns, on_event)


def table_examples(
    table: Table, roles: tuple[int, int | None, int | None], columns: Columns, on_event: OnEvent = ignore
) -> Examples:
    """An example for every row; `roles` are the columns of text, second text and label."""
    if not len(table):
        raise KeelError(f"{table.source} has no examples: give one text per line or item")
    text, second, label = roles
    kind, values = None, [None] * len(table)
    if label is not None:
        kind, values = parse_labels(table, label, columns.labels, on_event)
    return Examples(
        texts=table.texts(text, "text", on_event),
        seconds=None if second is None else table.texts(second, "second", on_event),
        values=values,
        locations=table.locations,
        kind=kind,
        source=table.source,
        columns=tuple(table.columns) if table.header else (),
        names=tuple(sorted({name for value in set(values) for name in label_names(value)})),
    )


def skip_unlabelled(examples: Examples, on_event: OnEvent = ignore) -> Examples:
    """The examples that have a label, if any has one; the others are counted in a note."""
    if examples.kind is None or None not in examples.values:
        return examples
    labelled = [index for index, value in enumerate(examples.values) if value is not None]
    skipped = pluralize(len(examples) - len(labelled), "row has no label and is", "rows have no label and are")
    first = examples.location_of(None)
    note(on_event, f"{first}: {skipped} skipped, the first here; {len(labelled):,} of {len(examples):,} are left")
    return examples.take(labelled)
