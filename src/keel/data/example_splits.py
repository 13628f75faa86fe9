"""Splits of labelled examples: validation and cross-validation, stratified by label, duplicates on one side."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from keel.data.examples import Examples
from keel.errors import KeelError
from keel.events import pluralize
from keel.training.counter_rng import derive_seed


@dataclass(frozen=True)
class _Units:
    """What a split does not divide: all examples of one group or, without groups, with the same text."""

    members: list[list[int]]
    """Example indices."""
    names: list[tuple[str, ...]]
    """Class names of each."""

    @classmethod
    def of(cls, examples: Examples, *, divide_duplicates: bool = False) -> Self:
        by_key: dict[str | int, list[int]] = {}
        keys = range(len(examples)) if divide_duplicates else examples.groups or examples.text_keys()
        for index, key in enumerate(keys):
            by_key.setdefault(key, []).append(index)
        members, values = list(by_key.values()), examples.values
        names: list[tuple[str, ...]] = []
        for indices in members:
            names.append(examples.names_in(values[indices[0]]))
            if len(indices) > 1 and any(values[index] != values[indices[0]] for index in indices):
                names[-1] = tuple(sorted({name for index in indices for name in examples.names_in(values[index])}))
        return cls(members, names)

    def __len__(self) -> int:
        return len(self.members)

    def grouped_by_label(self, seed: int) -> np.ndarray:
        """Indices of the units in random order, those with equal classes adjacent."""
        order = np.random.default_rng(derive_seed(seed, "split")).permutation(len(self))
        keys = {names: "\0".join(names) for names in set(self.names)}
        ranks = {key: rank for rank, key in enumerate(sorted(set(keys.values())))}
        groups = {names: ranks[key] for names, key in keys.items()}
        group = np.fromiter(map(groups.__getitem__, self.names), np.int64, len(self))
        return order[np.argsort(group[order], kind="stable")]

    def validation(self, share: float, most: int, seed: int) -> list[int]:
        """A stratified share of the units, none of more than `most` examples; their classes occur in others too."""
        held = round(share * len(self))
        # Every 1/share-th unit is held out, in an order in which equal labels are adjacent.
        position = np.arange(1, len(self) + 1)
        held_out = position * held // len(self) > (position - 1) * held // len(self)
        order = self.grouped_by_label(seed)
        training, validation = order[~held_out].tolist(), []
        known = {name for unit in training for name in self.names[unit]}
        for unit in order[held_out].tolist():
            allowed = known.issuperset(self.names[unit]) and len(self.members[unit]) <= most
            (validation if allowed else training).append(unit)
            known.update(self.names[unit])
        return validation + self._further(training, held - len(validation), most, seed)

    def _further(self, training: list[int], count: int, most: int, seed: int) -> list[int]:
        """Up to `count` random training units all of whose classes remain in training without them."""
        moved: list[int] = []
        if count:
            left = Counter(name for unit in training for name in {*self.names[unit]})
            for unit in np.random.default_rng(derive_seed(seed, "spared")).permutation(training).tolist():
                names = {*self.names[unit]}
                spared = all(left[name] > 1 for name in names) and len(self.members[unit]) <= most
                if len(moved) < count and spared:
                    left.subtract(names)
                    moved.append(unit)
        return moved


def split_validation(examples: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """Stratified split into training examples and a validation `share`; every validation class is also in training.

    Duplicates are on one side, unless there are too few different texts.
    """
    most = round(share * len(examples))
    if not 0 < most < len(examples):
        what = f"{share:.0%} of {pluralize(len(examples), 'example')} cannot be held out"
        raise KeelError(f"{what}: give more examples, or a --dev file")
    units = _Units.of(examples)
    validation = units.validation(share, most, seed)
    if not validation and len(units) < len(examples):
        units = _Units.of(examples, divide_duplicates=True)
        validation = units.validation(share, most, seed)
    held_out = sorted(index for unit in validation for index in units.members[unit])
    return examples.take(sorted({*range(len(examples))}.difference(held_out))), examples.take(held_out)


def cross_validation_folds(examples: Examples, count: int, seed: int) -> Iterator[tuple[Examples, Examples]]:
    """Stratified k-fold cross-validation: `count` pairs of training and test examples.

    Duplicates are in one fold, unless there are too few different texts.
    """
    if not 2 <= count <= len(examples):
        raise KeelError(f"{len(examples)} examples cannot be split into {count} folds: give 2 to {len(examples)}")
    units = _Units.of(examples)
    units = units if count <= len(units) else _Units.of(examples, divide_duplicates=True)
    fold = np.empty(len(examples), dtype=np.int64)
    for position, unit in enumerate(units.grouped_by_label(seed).tolist()):
        fold[units.members[unit]] = position % count
    for number in range(count):
        yield examples.take(np.flatnonzero(fold != number)), examples.take(np.flatnonzero(fold == number))
