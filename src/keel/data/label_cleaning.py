"""Cleaning of labelled examples: one variant of each label, no empty and no duplicate rows."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from keel.data.examples import Examples
from keel.data.label_kinds import MultiLabel, SingleLabel, label_names
from keel.events import pluralize

WHOLE_NUMBER = re.compile(r"\A([+-]?\d+)\.0+\Z")
"""A whole number with decimals: 1.0, as spreadsheets and pandas write 1 in a column with missing values."""
SHOWN = 3
"""Variants in a message."""


def normalize_label(name: str) -> str:
    """A label without differences in case and whitespace, and of a whole number without decimals."""
    return WHOLE_NUMBER.sub(r"\1", " ".join(name.split()).casefold())


def label_variants(counts: Mapping[str, int]) -> dict[str, str]:
    """Labels that differ from a more frequent one only by case, whitespace or ".0", each with that one."""
    stripped: Counter[str] = Counter()
    for name, count in counts.items():
        stripped[" ".join(name.split())] += count
    target: dict[str, str] = {}
    for name in sorted(stripped, key=lambda name: (-stripped[name], name)):
        target.setdefault(normalize_label(name), name)
    pairs = ((name, target[normalize_label(name)]) for name in counts)
    return {name: other for name, other in pairs if name != other}


def describe_variants(variants: Mapping[str, str]) -> str:
    """The first variants, with the labels that replace them: 'Good' -> 'good'."""
    shown = [f"{name!r} -> {other!r}" for name, other in list(variants.items())[:SHOWN]]
    return ", ".join([*shown, *(["..."] if len(variants) > SHOWN else [])])


def has_mergeable_labels(examples: Examples) -> bool:
    """Whether labels are names that people type, unlike tags or numbers."""
    return isinstance(examples.kind, SingleLabel | MultiLabel)


def rename_labels(examples: Examples, variants: Mapping[str, str]) -> Examples:
    """The examples with other names for some labels."""

    def renamed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(sorted({variants.get(name, name) for name in value}))
        return variants.get(value, value) if isinstance(value, str) else value

    if not variants:
        return examples
    values = {value: renamed(value) for value in set(examples.values)}
    names = tuple(sorted({variants.get(name, name) for name in examples.names}))
    return replace(examples, values=[values[value] for value in examples.values], names=names)


def match_labels(examples: Examples, names: Iterable[str]) -> Examples:
    """The examples with labels as written in `names`, those of training."""
    target = {normalize_label(name): name for name in names}
    variants = {name: target.get(normalize_label(name), name) for name in examples.names if name not in names}
    return rename_labels(examples, {name: other for name, other in variants.items() if name != other})


@dataclass(frozen=True)
class Cleaned:
    """Cleaned examples and what was changed."""

    examples: Examples
    kept: list[int]
    """Indices of the rows that are left."""
    variants: dict[str, str]
    relabelled: int
    empty: int
    duplicates: int

    def __str__(self) -> str:
        merged = "no labels were merged"
        if self.variants:
            variants = f"{pluralize(len(self.variants), 'variant')} of labels ({describe_variants(self.variants)})"
            merged = f"merged {variants} in {pluralize(self.relabelled, 'row')}"
        dropped = f"dropped {pluralize(self.empty, 'empty row')} and {pluralize(self.duplicates, 'duplicate row')}"
        return f"{merged}; {dropped}; {pluralize(len(self.kept), 'row is', 'rows are')} left"


def clean_examples(examples: Examples) -> Cleaned:
    """Merge labels that differ by case, whitespace or ".0" only; drop empty rows and copies of text and label.

    A text that occurs with two labels is kept with both: only a reader knows which one is right.
    """
    variants: dict[str, str] = {}
    if has_mergeable_labels(examples):
        counts = dict(zip(examples.names, examples.label_counts, strict=True))
        variants = label_variants(counts)
    renamed = rename_labels(examples, variants)
    kept: list[int] = []
    seen: set[tuple[str, Any]] = set()
    empty = 0
    seconds = examples.seconds or [None] * len(examples)
    for index, (key, second) in enumerate(zip(examples.text_keys(), seconds, strict=True)):
        if not examples.texts[index].strip() or (second is not None and not second.strip()):
            empty += 1
        elif (key, renamed.values[index]) not in seen:
            seen.add((key, renamed.values[index]))
            kept.append(index)
    pairs = zip(examples.values, renamed.values, strict=True)
    left = renamed.take(kept)
    if has_mergeable_labels(left):  # a class may have had empty texts only
        left = replace(left, names=tuple(sorted({name for value in set(left.values) for name in label_names(value)})))
    return Cleaned(
        examples=left,
        kept=kept,
        variants=variants,
        relabelled=sum(before != after for before, after in pairs),
        empty=empty,
        duplicates=len(examples) - empty - len(kept),
    )
