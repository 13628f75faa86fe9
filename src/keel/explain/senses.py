"""Which uses of a word mean the same: its vectors in several sentences, compared and grouped."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keel.errors import UsageError
from keel.explain.neighbours import unit_vectors
from keel.model import WordVectors
from keel.text.sentences import CJK

EQUAL = 0.999
"""Vectors of a cosine above this are taken for the same."""
UNSPACED = re.compile(f"[{CJK}\u0e00-\u0eff\u3040-\u30ff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]")
"""Letters of Chinese, Japanese, Korean, Thai and Lao, where a word may touch what is no part of it."""


class Use(NamedTuple):
    """A word where it stands in a text."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Senses:
    """Uses of a word, how alike its vectors are there, and in groups which of them seem to mean the same."""

    word: str
    model: str
    uses: list[Use]
    cosines: np.ndarray  # [uses, uses]
    groups: list[int]
    """Of each use, numbered from 0 in the order of the text."""

    def lines(self) -> list[str]:
        """A row for each use: cosines to all, its group, the text."""
        names = [str(number) for number in range(1, len(self.uses) + 1)]
        width = max(6, *(len(name) + 1 for name in names))
        lines = [f"{self.word!r} by {self.model}", " " * width + "".join(name.rjust(width) for name in names)]
        for name, row, group, use in zip(names, self.cosines, self.groups, self.uses, strict=True):
            cells = "".join(f"{cosine:.2f}".rjust(width) for cosine in row)
            lines.append(f"{name.rjust(width)}{cells}  {_letter(group)}  {use.text}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        uses = [{**use._asdict(), "group": _letter(group)} for use, group in zip(self.uses, self.groups, strict=True)]
        return {"word": self.word, "model": self.model, "uses": uses, "cosines": self.cosines.tolist()}


def find_uses(word: str, texts: Sequence[str]) -> list[Use]:
    """Every place where the word stands by itself, capitals or not."""
    if not word.strip():
        raise UsageError("name a word to look for in the sentences")
    edges = ("", "") if UNSPACED.search(word) else (r"(?<!\w)", r"(?!\w)")
    pattern = re.compile(edges[0] + re.escape(word.strip()) + edges[1], re.IGNORECASE)
    found = [Use(text, *match.span()) for text in texts for match in pattern.finditer(text)]
    if len(found) < 2:
        what = "is nowhere" if not found else "stands in one place alone"
        raise UsageError(f"{word!r} {what} in the {len(texts)} sentences: give two uses or more")
    return found


def vectors_of(uses: Sequence[Use], encoded: Sequence[WordVectors]) -> np.ndarray:
    """[uses, width]: the mean over the pieces that the word is cut into, of each use in its encoded text."""
    found = []
    for use, words in zip(uses, encoded, strict=True):
        inside = [number for number, (a, b) in enumerate(words.offsets) if a < use.end and b > use.start]
        found.append(words.vectors[inside].mean(0) if inside else np.zeros(words.vectors.shape[1], np.float32))
    return np.stack(found)


def compare(word: str, model: str, uses: list[Use], vectors: np.ndarray, groups: int = 0) -> Senses:
    """The uses compared by these vectors, in so many groups, or 0 for as many as set them apart best."""
    units, lengths = unit_vectors(vectors)
    if not lengths.all():
        raise UsageError(f"{model} has no vector for {word!r}: ask for another word, or another model")
    if not 0 <= groups <= len(uses):
        raise UsageError(
            f"{len(uses)} uses cannot make {groups} groups: choose 1 to {len(uses)}, or 0 to leave it open"
        )
    cosines = np.clip(units @ units.T, -1, 1)
    return Senses(word, model, uses, cosines, _grouped(cosines, groups))


def _grouped(cosines: np.ndarray, count: int) -> list[int]:
    """The two groups that are most alike on average become one, again and again; of the stages, the one of `count`
    groups or the one whose groups hold together best."""
    members = [[number] for number in range(len(cosines))]
    stages = {}
    while True:
        stages[len(members)] = [list(group) for group in members]
        if len(members) == 1:
            break
        pairs = [(a, b) for b in range(len(members)) for a in range(b)]
        one, other = max(pairs, key=lambda pair: cosines[np.ix_(members[pair[0]], members[pair[1]])].mean())
        members[one] += members.pop(other)
    if not count:
        apart = cosines.min() < EQUAL and len(cosines) > 2
        open_to = range(2, len(cosines)) if apart else [1]
        count = max(open_to, key=lambda number: _silhouette(cosines, stages[number]))
    ordered = sorted(stages[count], key=min)
    return [next(n for n, group in enumerate(ordered) if use in group) for use in range(len(cosines))]


def _silhouette(cosines: np.ndarray, groups: list[list[int]]) -> float:
    """How much nearer uses are to their own group than to the next one, on average (Rousseeuw 1987); alone counts 0."""
    if len(groups) < 2:
        return 0.0
    distances, values = 1 - cosines, []
    for group in groups:
        for use in group:
            others = [each for each in group if each != use]
            near = min(distances[use, other].mean() for other in groups if other is not group)
            own = distances[use, others].mean() if others else near
            values.append((near - own) / max(near, own, 1e-12))
    return float(np.mean(values))


def _letter(group: int) -> str:
    return chr(ord("A") + group) if group < 26 else str(group + 1)
