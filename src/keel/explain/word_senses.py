"""Which uses of a word mean the same: its vectors in several sentences, compared and grouped."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keel.data.sentence_splitting import CJK
from keel.errors import KeelError, UsageError
from keel.events import counted
from keel.explain.nearest_neighbors import unit_vectors
from keel.text_vectors import TokenVectors

EQUAL = 0.995
"""Vectors of a cosine above this are taken for the same: it is shown as 1.00."""
SHOWN = 20
"""Uses that fit on a screen with all their cosines."""
UNSPACED = re.compile(f"[{CJK}\u0e00-\u0eff\u3040-\u30ff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]")
"""Letters of Chinese, Japanese, Korean, Thai and Lao, where a word may touch what is no part of it."""


class WordUse(NamedTuple):
    """A word where it stands in a text."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Senses:
    """Uses of a word, how alike its vectors are there, and in groups which of them seem to mean the same."""

    word: str
    model: str
    uses: list[WordUse]
    cosines: np.ndarray  # [uses, uses]
    groups: list[int]
    """Of each use, numbered from 0 in the order of the text."""

    @property
    def remark(self) -> str:
        """What to know of vectors that are all alike; of others nothing."""
        alike = "all cosines are 1.00 to two digits, and groups would mean nothing"
        return f"{self.model} does not tell these uses apart: {alike}" if self.cosines.min() >= EQUAL else ""

    def lines(self) -> list[str]:
        """A row for each use: cosines to all, its group, the text; of many uses the first."""
        names = [str(number) for number in range(1, min(SHOWN, len(self.uses)) + 1)]
        width = max(6, *(len(name) + 1 for name in names))
        lines = [f"{self.word!r} by {self.model}", " " * width + "".join(name.rjust(width) for name in names)]
        for name, row, group, use in zip(names, self.cosines, self.groups, self.uses, strict=False):
            cells = "".join(f"{cosine:.2f}".rjust(width) for cosine in row[:SHOWN])
            lines.append(f"{name.rjust(width)}{cells}  {_letter(group)}  {use.text}")
        if len(self.uses) > SHOWN:
            lines.append(f"these are the first {SHOWN} of {len(self.uses):,} uses: --json gives all of them")
        return [*lines, self.remark] if self.remark else lines

    def to_dict(self) -> dict[str, Any]:
        uses = [{**use._asdict(), "group": _letter(group)} for use, group in zip(self.uses, self.groups, strict=True)]
        told = {"remark": self.remark} if self.remark else {}
        return {"word": self.word, "model": self.model, "uses": uses, "cosines": self.cosines.tolist(), **told}


def find_uses(word: str, texts: Sequence[str]) -> list[WordUse]:
    """Every place where the word stands by itself, capitals or not."""
    if not word.strip():
        raise UsageError("name a word to look for in the sentences")
    edges = ("", "") if UNSPACED.search(word) else (r"(?<!\w)", r"(?!\w)")
    pattern = re.compile(edges[0] + re.escape(word.strip()) + edges[1], re.IGNORECASE)
    found = [WordUse(text, *match.span()) for text in texts for match in pattern.finditer(text)]
    if len(found) < 2:
        sentences = f"the {counted(len(texts), 'sentence')}"
        what = "is nowhere" if not found else "stands in one place alone"
        raise KeelError(f"{word!r} {what} in {sentences}: give two uses or more")
    return found


def vectors_of(uses: Sequence[WordUse], encoded: Sequence[TokenVectors]) -> np.ndarray:
    """[uses, width]: the mean over the pieces that the word is cut into, of each use in its encoded text."""
    found = []
    for use, words in zip(uses, encoded, strict=True):
        inside = [number for number, (a, b) in enumerate(words.offsets) if a < use.end and b > use.start]
        found.append(words.vectors[inside].mean(0) if inside else np.zeros(words.vectors.shape[1], np.float32))
    return np.stack(found)


def compare(word: str, model: str, uses: list[WordUse], vectors: np.ndarray, groups: int = 0) -> Senses:
    """The uses compared by these vectors, in so many groups, or 0 for as many as set them apart best."""
    units, lengths = unit_vectors(vectors)
    if not lengths.all():
        raise KeelError(f"{model} has no vector for {word!r}: ask for another word, or another model")
    if not 0 <= groups <= len(uses):
        raise UsageError(
            f"{len(uses)} uses cannot make {groups} groups: choose 1 to {len(uses)}, or 0 to leave it open"
        )
    cosines = np.clip(units @ units.T, -1, 1)
    return Senses(word, model, uses, cosines, _grouped(cosines, groups))


def _grouped(cosines: np.ndarray, count: int) -> list[int]:
    """The stage of `count` groups, or the one whose groups hold together best."""
    uses = len(cosines)
    if count == 1 or (not count and (uses < 3 or cosines.min() >= EQUAL)):
        return [0] * uses
    found, best = np.arange(uses), -np.inf
    for left, (groups, silhouette) in zip(range(uses - 1, 1, -1), _stages(cosines), strict=True):
        if left < count:
            break
        if count in (0, left) and silhouette >= best:
            found, best = groups.copy(), silhouette
    return np.unique(found, return_inverse=True)[1].tolist()


def _stages(cosines: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    """The two groups that are most alike on average become one, again and again down to two: of each use the first one
    of its group, and how well the groups hold together.

    That is the mean silhouette (Rousseeuw 1987): how much nearer uses are to their own group than to the next one;
    alone counts 0. The means of a new group follow from those of its parts (Lance and Williams 1967).
    """
    uses = len(cosines)
    groups, sizes = np.arange(uses), np.ones(uses)
    alike = np.where(np.tri(uses, k=-1, dtype=bool), cosines.astype(float), -np.inf)  # [groups, groups before]
    apart = np.where(np.eye(uses, dtype=bool), np.inf, 1 - cosines.astype(float))  # [uses, groups but its own]
    within = np.zeros(uses)  # of each use, all distances to its own group
    for _ in range(uses - 2):
        other, one = divmod(int(alike.argmax()), uses)
        share = sizes[other] / (sizes[one] + sizes[other])
        first, second = (np.maximum(alike[group], alike[:, group]) for group in (one, other))
        mean = (1 - share) * first + share * second
        alike[one, :one], alike[one + 1 :, one] = mean[:one], mean[one + 1 :]
        alike[other], alike[:, other] = -np.inf, -np.inf
        first, second = groups == one, groups == other
        within[first] += sizes[other] * apart[first, other]
        within[second] += sizes[one] * apart[second, one]
        apart[:, one] = (1 - share) * apart[:, one] + share * apart[:, other]
        apart[:, other] = np.inf
        groups[second] = one
        sizes[one] += sizes[other]
        near, beside = apart.min(1), sizes[groups] - 1
        own = np.where(beside > 0, within / np.maximum(beside, 1), near)
        yield groups, float(((near - own) / np.maximum(np.maximum(near, own), 1e-12)).mean())


def _letter(group: int) -> str:
    return chr(ord("A") + group) if group < 26 else str(group + 1)
