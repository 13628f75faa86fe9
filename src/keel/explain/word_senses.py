"""Word senses: the contextual vectors of a word in several sentences, compared and clustered."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keel.errors import KeelError, UsageError
from keel.events import pluralize
from keel.explain.nearest_neighbors import unit_vectors
from keel.explain.text_tokens import word_pattern
from keel.text_table import TextLines
from keel.text_vectors import TokenVectors

EQUAL = 0.995
"""Vectors with a cosine above this count as equal (shown as 1.00)."""
MAX_SHOWN = 20
WHOLE = 100
"""Characters of a text that is printed whole; of a longer one, an excerpt."""
BESIDE = 24
"""Characters on both sides of a word in an excerpt."""


class WordUse(NamedTuple):
    """An occurrence of a word in a text."""

    text: str
    start: int
    end: int

    def excerpt(self) -> str:
        """The word with some text on both sides."""
        left, right = self.text[: self.start], self.text[self.end :]
        before = left if len(left) <= BESIDE else f"…{left[-BESIDE:]}"
        after = right if len(right) <= BESIDE else f"{right[:BESIDE]}…"
        return f"{before}[{self.text[self.start : self.end]}]{after}"


@dataclass(frozen=True)
class Senses(TextLines):
    """Occurrences of a word, the cosines of their vectors, and their clusters."""

    word: str
    model: str
    uses: list[WordUse]
    cosines: np.ndarray  # [uses, uses]
    groups: list[int]
    """Cluster of each occurrence, numbered from 0 in order of appearance."""

    def __repr__(self) -> str:
        counts = f"{pluralize(len(self.uses), 'use')} in {pluralize(len(set(self.groups)), 'group')}"
        return f"Senses({self.word!r} by {self.model!r}, {counts})"

    def group_name(self, use: int) -> str:
        """The cluster of a use: A, B, C."""
        return _group_name(self.groups[use])

    @property
    def note(self) -> str:
        """Note that all vectors are equal; empty otherwise."""
        equal = "all cosines are 1.00 to two digits, so clusters would be meaningless"
        return f"{self.model} does not distinguish these uses: {equal}" if self.cosines.min() >= EQUAL else ""

    def lines(self) -> list[str]:
        """One line per use: cosines to all uses, cluster, text."""
        names = [str(number) for number in range(1, min(MAX_SHOWN, len(self.uses)) + 1)]
        width = max(6, *(len(name) + 1 for name in names))
        lines = [f"{self.word!r} by {self.model}", " " * width + "".join(name.rjust(width) for name in names)]
        for name, row, group, use in zip(names, self.cosines, self.groups, self.uses, strict=False):
            cells = "".join(f"{cosine:.2f}".rjust(width) for cosine in row[:MAX_SHOWN])
            text = use.text if len(use.text) <= WHOLE else use.excerpt()
            lines.append(f"{name.rjust(width)}{cells}  {_group_name(group)}  {' '.join(text.split())}")
        if len(self.uses) > MAX_SHOWN:
            lines.append(f"showing {MAX_SHOWN} of {len(self.uses):,} uses: --json prints all")
        return [*lines, self.note] if self.note else lines

    def to_dict(self) -> dict[str, Any]:
        uses = [
            {**use._asdict(), "group": _group_name(group)} for use, group in zip(self.uses, self.groups, strict=True)
        ]
        notes = {"note": self.note} if self.note else {}
        return {"word": self.word, "model": self.model, "uses": uses, "cosines": self.cosines.tolist(), **notes}


def find_uses(word: str, texts: Sequence[str]) -> list[WordUse]:
    """All occurrences of the word, ignoring case."""
    if not word.strip():
        raise UsageError("the word is empty: name a word to look for")
    pattern = word_pattern(word)
    found = [WordUse(text, *match.span()) for text in texts for match in pattern.finditer(text)]
    if len(found) < 2:
        sentences = f"the {pluralize(len(texts), 'sentence')}"
        what = "does not occur" if not found else "occurs only once"
        raise KeelError(f"{word!r} {what} in {sentences}: give two uses or more")
    return found


def use_vectors(uses: Sequence[WordUse], encoded: Sequence[TokenVectors]) -> np.ndarray:
    """Vectors [uses, width]: the mean over the subwords of each use in its encoded text."""
    found = []
    for use, words in zip(uses, encoded, strict=True):
        inside = [number for number, (a, b) in enumerate(words.offsets) if a < use.end and b > use.start]
        found.append(words.vectors[inside].mean(0) if inside else np.zeros(words.vectors.shape[1], np.float32))
    return np.stack(found)


def compare_senses(word: str, model: str, uses: list[WordUse], vectors: np.ndarray, groups: int = 0) -> Senses:
    """Compare and cluster uses by their vectors; `groups` 0 chooses the number of clusters by silhouette."""
    units, lengths = unit_vectors(vectors)
    if not lengths.all():
        raise KeelError(f"{model} has no vector for {word!r}: use another word or another model")
    if not 0 <= groups <= len(uses):
        raise UsageError(f"{len(uses)} uses cannot form {groups} groups: choose 1 to {len(uses)}, or 0 for automatic")
    cosines = np.clip(units @ units.T, -1, 1)
    return Senses(word, model, uses, cosines, _cluster(cosines, groups))


def _cluster(cosines: np.ndarray, count: int) -> list[int]:
    """Clusters of each use: the stage with `count` clusters, or the one with the best silhouette."""
    uses = len(cosines)
    if count == 1 or (not count and (uses < 3 or cosines.min() >= EQUAL)):
        return [0] * uses
    found, best = np.arange(uses), -np.inf
    for left, (groups, silhouette) in zip(range(uses - 1, 1, -1), _merge_stages(cosines), strict=True):
        if left < count:
            break
        if count in (0, left) and silhouette >= best:
            found, best = groups.copy(), silhouette
    return np.unique(found, return_inverse=True)[1].tolist()


def _merge_stages(cosines: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    """Average-linkage clustering down to two clusters: the cluster of each use, named by its first member, and the mean
    silhouette (Rousseeuw 1987; singletons count 0). Linkages are updated by Lance and Williams 1967.
    """
    uses = len(cosines)
    groups, sizes = np.arange(uses), np.ones(uses)
    linkage = np.where(np.tri(uses, k=-1, dtype=bool), cosines.astype(float), -np.inf)  # [groups, earlier groups]
    distances = np.where(np.eye(uses, dtype=bool), np.inf, 1 - cosines.astype(float))  # [uses, other groups]
    within = np.zeros(uses)  # sum of distances to the own group
    for _ in range(uses - 2):
        other, one = divmod(int(linkage.argmax()), uses)
        share = sizes[other] / (sizes[one] + sizes[other])
        first, second = (np.maximum(linkage[group], linkage[:, group]) for group in (one, other))
        mean = (1 - share) * first + share * second
        linkage[one, :one], linkage[one + 1 :, one] = mean[:one], mean[one + 1 :]
        linkage[other], linkage[:, other] = -np.inf, -np.inf
        first, second = groups == one, groups == other
        within[first] += sizes[other] * distances[first, other]
        within[second] += sizes[one] * distances[second, one]
        distances[:, one] = (1 - share) * distances[:, one] + share * distances[:, other]
        distances[:, other] = np.inf
        groups[second] = one
        sizes[one] += sizes[other]
        near, beside = distances.min(1), sizes[groups] - 1
        own = np.where(beside > 0, within / np.maximum(beside, 1), near)
        yield groups, float(((near - own) / np.maximum(np.maximum(near, own), 1e-12)).mean())


def _group_name(group: int) -> str:
    return chr(ord("A") + group) if group < 26 else str(group + 1)
