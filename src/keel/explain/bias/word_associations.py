"""Word Embedding Association Test (Caliskan, Bryson & Narayanan 2017): do two sets of words differ in their nearness to
two others?"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from keel.errors import KeelError
from keel.events import OnEvent, ignore, note
from keel.explain.bias.bias_templates import BiasTemplates
from keel.explain.nearest_neighbors import VectorSpace

MOST_EXACT = 50_000
"""Partitions up to which all are counted; else as many random ones are."""
SAMPLES = 20_000


@dataclass(frozen=True, kw_only=True)
class AssociationTest:
    """A test of target sets X and Y against attribute sets A and B, here words of the first and second pronoun."""

    name: str
    x: list[str]
    y: list[str]
    a: list[str]
    b: list[str]
    effect: float
    """Difference of the mean association of X and of Y, in standard deviations: from -2 to 2."""
    p: float
    """One-sided: the share of partitions of all target words whose difference is as large."""
    partitions: int
    exact: bool
    """Whether all partitions were counted."""

    def line(self) -> str:
        count = f"{'all' if self.exact else 'random'} {self.partitions:,} partitions"
        return f"{self.name}: effect size {self.effect:+.2f}, p {self.p:.4f} ({count})"

    def to_dict(self) -> dict[str, Any]:
        sets = {"x": self.x, "y": self.y, "a": self.a, "b": self.b}
        counted = {"partitions": self.partitions, "exact": self.exact}
        return {"name": self.name, **sets, "effect": round(self.effect, 6), "p": round(self.p, 6), **counted}


def association_tests(
    space: VectorSpace, templates: BiasTemplates, on_event: OnEvent = ignore, *, seed: int = 0
) -> list[AssociationTest]:
    """A test of each of the `word_sets` against the words of `gender_pairs`; unknown words are left out."""
    attributes = [[pair[side] for pair in templates.gender_pairs] for side in (0, 1)]
    a, b = (_known(space, words) for words in attributes)
    found: list[AssociationTest] = []
    for name, (x, y) in templates.word_sets.items():
        known = _known(space, x), _known(space, y)
        if min(map(len, (*known, a, b))) < 2:
            note(on_event, f"{name}: left out, as the vectors know fewer than two words of a set")
            continue
        found.append(association_test(space, name, *known, a, b, seed=seed))
    return found


def association_test(
    space: VectorSpace,
    name: str,
    x: Sequence[str],
    y: Sequence[str],
    a: Sequence[str],
    b: Sequence[str],
    *,
    seed: int = 0,
) -> AssociationTest:
    """s(w, A, B) = mean cos(w, a) - mean cos(w, b) for each w of X and Y. The effect size is (mean s over X - mean s
    over Y) / standard deviation of s over both, p the share of partitions of both into sets of the same sizes for which
    sum s over X - sum s over Y is as large or larger."""
    targets, first, second = (space.directions(words).astype(np.float64) for words in ([*x, *y], a, b))
    values = (targets @ first.T).mean(1) - (targets @ second.T).mean(1)
    if not (spread := float(values.std(ddof=1))) > 0:
        raise KeelError(f"{name}: all words have the same association, so there is nothing to test")
    size = len(x)
    effect = float(values[:size].mean() - values[size:].mean()) / spread
    count = comb(len(values), size)
    if count <= MOST_EXACT:
        sums = values[_partitions(len(values), size)].sum(1)
    else:
        rng = np.random.default_rng(seed)
        orders = rng.permuted(np.tile(np.arange(len(values)), (SAMPLES, 1)), axis=1)
        # The observed partition is one of those that are counted.
        sums = np.append(values[orders[:, :size]].sum(1), values[:size].sum())
    p = float((sums >= values[:size].sum() - 1e-12).mean())
    return AssociationTest(
        name=name,
        x=[*x],
        y=[*y],
        a=[*a],
        b=[*b],
        effect=effect,
        p=p,
        partitions=len(sums),
        exact=count <= MOST_EXACT,
    )


@cache
def _partitions(count: int, size: int) -> np.ndarray:
    """[partitions, size] indices of the first set in all partitions of `count` words."""
    return np.array([*combinations(range(count), size)])


def _known(space: VectorSpace, words: Sequence[str]) -> list[str]:
    lengths = np.abs(space.known_directions(words)).sum(1)
    return [word for word, length in zip(words, lengths.tolist(), strict=True) if length > 0]
