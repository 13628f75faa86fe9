"""What word vectors know: the nearest words, analogies, similarity, the odd one out.

Mikolov, Yih & Zweig 2013 found that differences of vectors carry relations (king - man + woman is near queen);
Levy & Goldberg 2014 wrote the search for the fourth word as 3CosAdd, and gave 3CosMul, which is often better.
"""

import heapq
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np

from keel.errors import KeelError, UsageError

By = Literal["add", "multiply"]

EPSILON = 0.001
"""Keeps 3CosMul from dividing by zero."""
BLOCK = 1 << 22
"""Numbers of the matrix that are looked at together: 16 MB, however many words there are."""
CLOSE = 0.5
"""How much of an unknown word must recur in another to be offered instead of it."""
SIGN = re.compile("([+＋])|([-−－–])")  # plus and minus, as keyboards and documents have them


class Neighbor(NamedTuple):
    """A word, or a text, and how well it answers: its cosine, or 3CosMul's quotient."""

    word: str
    score: float


class Index(Protocol):
    """Finds rows that are likely to be the nearest, without a look at all of them."""

    def near(self, direction: np.ndarray, count: int) -> np.ndarray:
        """[count] rows near a vector of length one."""
        ...


@dataclass(frozen=True, eq=False)
class VectorSpace:
    """Words and their vectors, the most frequent first; a word that is unknown as written is sought in lower case.

    The matrix is never copied: a search goes over it block by block, so that millions of words need no more memory.
    """

    words: list[str]
    matrix: np.ndarray  # [words, width]
    speller: Callable[[list[str]], np.ndarray] | None = None
    """Gives words that are not here their vectors by how they are spelled; zeros for what it cannot spell."""

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or len(self.words) != len(self.matrix):
            shape = " x ".join(map(str, self.matrix.shape))
            raise UsageError(f"{len(self.words)} words need as many vectors, not an array of {shape}")

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of each word; of words that occur twice, the first."""
        last = len(self.words) - 1
        return {word: last - back for back, word in enumerate(reversed(self.words))}

    @cached_property
    def scales(self) -> np.ndarray:
        """[words] what to multiply each vector by to make it of length one; a vector of zeros is like nothing."""
        scales = np.empty(len(self.words), np.float32)
        for part in self._parts():
            lengths = _lengths(self.matrix[part])
            if not np.isfinite(lengths).all():
                word = self.words[part.start + int(np.isfinite(lengths).argmin())]
                raise KeelError(f"the vector of {word!r:.60} holds NaN or infinity: train or fetch the vectors again")
            scales[part] = 1 / np.where(lengths > 0, lengths, 1)
        return scales

    def units(self, rows: slice | list[int] | np.ndarray) -> np.ndarray:
        """[rows, width] the vectors of some words, at length one."""
        return self.matrix[rows].astype(np.float32, copy=False) * self.scales[rows][:, None]

    def _parts(self) -> Iterator[slice]:
        step = max(1, BLOCK // max(1, self.matrix.shape[1]))
        return (slice(start, start + step) for start in range(0, len(self.words), step))

    def find(self, word: str) -> int | None:
        """The row of a word, None where there is none."""
        row = self.index.get(word)
        return self.index.get(word.lower()) if row is None else row

    def row(self, word: str) -> int:
        """The row of a word; where there is none, the error offers the nearest spellings."""
        row = self.find(word)
        if row is not None:
            return row
        *others, last = [f"{offered!r:.60}" for offered in self._spelled_like(word)] or [""]
        offer = f"did you mean {', '.join(others) + ' or ' if others else ''}{last}?" if last else "try another"
        raise KeelError(f"{word!r:.60} is not among the {len(self.words):,} words that have vectors: {offer}")

    def directions(self, words: Sequence[str]) -> np.ndarray:
        """[words, width] vectors at length one, spelled for words that are not here; those without any are refused."""
        found = self.known_directions(words)
        for word, direction in zip(words, found, strict=True):
            if not direction.any():
                self.row(word)  # raises, unless its own vector is zero
        return found

    def known_directions(self, words: Sequence[str]) -> np.ndarray:
        """[words, width] the same, with zeros for words that have none."""
        rows = np.array([-1 if (row := self.find(word)) is None else row for word in words], np.int64)
        found = np.zeros((len(words), self.matrix.shape[1]), np.float32)
        found[rows >= 0] = self.units(rows[rows >= 0])
        unseen = np.flatnonzero(rows < 0).tolist()
        if unseen and self.speller is not None:
            found[unseen] = unit_vectors(self.speller([words[place] for place in unseen]))[0]
        return found

    def _spelled_like(self, word: str) -> list[str]:
        """Up to 3 words, of equally close ones the most frequent; only likely ones among a million are compared."""
        word = word.lower()
        matcher = SequenceMatcher(b=word, autojunk=False)

        def close() -> Iterator[tuple[float, int]]:
            for row, other in enumerate(self.words):
                if abs(len(other) - len(word)) <= 2 and (other[:1].lower() == word[:1] or other[1:] == word[1:]):
                    matcher.set_seq1(other.lower())
                    if matcher.quick_ratio() >= CLOSE and (ratio := matcher.ratio()) >= CLOSE:
                        yield -ratio, row

        return [self.words[row] for _, row in heapq.nsmallest(3, close())]

    def nearest(
        self, query: str | np.ndarray, *, top: int = 10, without: Iterable[str] = (), index: Index | None = None
    ) -> list[Neighbor]:
        """The words with the largest cosine to a word (itself left out) or to a vector [width].

        All words are compared, or with an `index` those that it finds.
        """
        left_out = {row for word in without if (row := self.find(word)) is not None}
        if isinstance(query, str):
            (vector,) = self.directions([query])
            left_out |= {row for row in [self.find(query)] if row is not None}
        else:
            vector = query
        if vector.shape != self.matrix.shape[1:]:
            shape = " x ".join(map(str, vector.shape))
            raise UsageError(f"a vector of {shape} numbers was given where the words have {self.matrix.shape[1]}")
        (direction,), (length,) = unit_vectors(vector[None])
        if not 1e-6 < length < math.inf:
            raise KeelError(f"the vector asked for has no direction (its length is {length:.2g}): ask for another")
        if index is not None:
            rows = index.near(direction, min(top + len(left_out), len(self.words)))
            found = VectorSpace([self.words[row] for row in rows], self.matrix[rows])
            inside = {place for place, row in enumerate(rows.tolist()) if row in left_out}
            return found._best(lambda part: found.units(part) @ direction, top, inside)
        scales = self.scales
        return self._best(
            lambda part: self.matrix[part].astype(np.float32, copy=False) @ direction * scales[part], top, left_out
        )

    def similarity(self, first: str, second: str) -> float:
        """The cosine of the angle between two words, -1 to 1."""
        one, other = self.directions([first, second])
        return float(one @ other)

    def odd_one_out(self, words: Sequence[str]) -> list[Neighbor]:
        """Three or more words, the odd one first: each with the mean of its cosines to the others."""
        units = self.directions(words)
        different = len({word if (row := self.find(word)) is None else row for word in words})
        if different < 3:
            raise UsageError(f"{different} different words were given: to be the odd one out takes three or more")
        # For unit vectors u_i . sum_j u_j is u_i . u_i + sum_{j != i} u_i . u_j.
        means = (units @ units.sum(0) - (units * units).sum(1)) / (len(words) - 1)
        found = [Neighbor(word, float(mean)) for word, mean in zip(words, means, strict=True)]
        return sorted(found, key=lambda one: one.score)

    def analogy(
        self, expression: str | tuple[Sequence[str], Sequence[str]], *, top: int = 5, by: By = "add"
    ) -> list[Neighbor]:
        """The words x that answer "king - man + woman", or (positive words p, negative words n); none of these is x.

        "add", 3CosAdd: sum_p cos(x, p) - sum_n cos(x, n), given here as the cosine of x and sum_p p - sum_n n, which
        orders words equally. "multiply", 3CosMul: prod_p cos'(x, p) / prod_n (cos'(x, n) + 0.001) where cos' is
        (1 + cos) / 2, so that no single term outweighs the others.
        """
        positive, negative = self._signs(expression) if isinstance(expression, str) else expression
        if not (positive or negative):
            raise UsageError("there is no word to start from: give an expression such as 'king - man + woman'")
        plus, minus = self.directions(positive), self.directions(negative)
        if by == "add":
            return self.nearest(plus.sum(0) - minus.sum(0), top=top, without=[*positive, *negative])
        left_out = {row for word in (*positive, *negative) if (row := self.find(word)) is not None}
        return self._best(lambda part: answer_scores(self.units(part), plus[None], minus[None], by)[0], top, left_out)

    def _signs(self, expression: str) -> tuple[list[str], list[str]]:
        """The words of an expression that are added and those that are taken away.

        Signs stand between spaces, for well-known is a word; 皇帝-男+女 without any space is understood too.
        """
        parts = expression.split()
        if len(parts) == 1 and self.find(parts[0]) is None:
            parts = [part for part in SIGN.split(parts[0]) if part]
        signed: tuple[list[str], list[str]] = ([], [])
        sign, before = 0, ""
        for part in parts:
            if match := SIGN.fullmatch(part):
                if SIGN.fullmatch(before):
                    raise UsageError(f"{expression!r:.80} has two signs in a row: put a word between them")
                sign = 0 if match[1] else 1
            elif before and not SIGN.fullmatch(before):
                what = f"has no sign between {before!r:.60} and {part!r:.60}"
                raise UsageError(f"{expression!r:.80} {what}: put + or - there, in spaces")
            else:
                signed[sign].append(part)
            before = part
        if not any(signed):
            raise UsageError(f"{expression!r:.80} holds no word: give an expression such as 'king - man + woman'")
        if SIGN.fullmatch(before):
            raise UsageError(f"{expression!r:.80} ends with a sign: put a word after it")
        return signed

    def _best(self, scores_of: Callable[[slice], np.ndarray], top: int, left_out: set[int]) -> list[Neighbor]:
        """The best words by the scores of each part; of equal ones the most frequent."""
        if top < 1:
            raise UsageError(f"top is {top}: ask for one answer or more")
        count = len(self.words)
        if count <= len(left_out):
            raise KeelError(f"no word is left to answer with: there are {count}, and the question needs them all")
        best, worth = np.empty(0, np.int64), np.empty(0, np.float32)
        for part in self._parts():
            with np.errstate(invalid="ignore"):  # BLAS may compute with what lies beyond a short row, and says so
                scores = scores_of(part)
            scores[[row - part.start for row in left_out if 0 <= row - part.start < len(scores)]] = -np.inf
            keep = np.argpartition(scores, -top)[-top:] if top < len(scores) else np.arange(len(scores))
            best, worth = np.append(best, keep + part.start), np.append(worth, scores[keep])
            order = np.lexsort((best, -worth))[:top]
            best, worth = best[order], worth[order]
        return [
            Neighbor(self.words[row], float(score))
            for row, score in zip(best.tolist(), worth, strict=True)
            if score > -np.inf
        ]


def nearest_texts(vectors: np.ndarray, query: np.ndarray, texts: Sequence[str], *, top: int = 10) -> list[Neighbor]:
    """The texts whose vectors [texts, width] have the largest cosine to a query's [width]."""
    return VectorSpace(list(texts), vectors).nearest(query, top=top)


def unit_vectors(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[rows, width] vectors at length one, and their lengths [rows]; zeros stay zeros."""
    lengths = _lengths(vectors)
    divisors = np.where((lengths > 0) & (lengths < np.inf), lengths, 1).astype(np.float32)
    return vectors.astype(np.float32, copy=False) / divisors[:, None], lengths


def _lengths(vectors: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("rw,rw->r", vectors, vectors, dtype=np.float64))


def answer_scores(units: np.ndarray, plus: np.ndarray, minus: np.ndarray, by: By) -> np.ndarray:
    """[questions, words] how well each word answers, for [questions, n, width] unit vectors added and taken away."""
    if by == "add":
        return unit_vectors(plus.sum(1) - minus.sum(1))[0] @ units.T
    scores = np.ones((len(plus), len(units)), np.float32)
    for place in range(plus.shape[1]):
        scores *= plus[:, place] / 2 @ units.T + np.float32(1 / 2)
    for place in range(minus.shape[1]):
        scores /= minus[:, place] / 2 @ units.T + np.float32(1 / 2 + EPSILON)
    return scores
