"""Nearest neighbours, analogies, similarity and odd one out by word vectors.

Mikolov, Yih & Zweig 2013: differences of vectors carry relations (king - man + woman is near queen). Levy & Goldberg
2014: 3CosAdd for the fourth word of an analogy, and 3CosMul, which is often better.
"""

import heapq
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from keel.errors import KeelError, UsageError

By = Literal["add", "multiply"]

EPSILON = 0.001
"""Keeps 3CosMul from dividing by zero."""
BLOCK = 1 << 22
"""Matrix elements per block of a search (16 MB)."""
MIN_SIMILARITY = 0.5
"""String similarity above which a word is suggested for an unknown one."""
SIGN = re.compile("([+＋])|([-−－–])")  # variants of plus and minus


class Neighbor(NamedTuple):
    """A word or text with its score: cosine, or 3CosMul's quotient."""

    word: str
    score: float


ApproximateSearch = Callable[[np.ndarray, int], np.ndarray]
"""(unit vector, count) -> row numbers [count] near it."""


@dataclass(frozen=True, eq=False)
class VectorSpace:
    """Words and their vectors, most frequent first; an unknown word is looked up in lower case, then normalized.

    The matrix is never copied: a search reads it in blocks, so that millions of words need no extra memory.
    """

    words: list[str]
    matrix: np.ndarray  # [words, width]
    subword_encoder: Callable[[list[str]], np.ndarray] | None = None
    """Subword vectors for words outside the vocabulary; zeros where there are none."""
    normalize: Callable[[str], str] = str.lower
    """A word as the tokenizer of the vectors writes it, perhaps without accents."""

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or len(self.words) != len(self.matrix):
            shape = " x ".join(map(str, self.matrix.shape))
            raise UsageError(f"{len(self.words)} words need as many vectors, not an array of {shape}")

    @cached_property
    def index(self) -> dict[str, int]:
        """Row of each word; the first of duplicates."""
        last = len(self.words) - 1
        return {word: last - back for back, word in enumerate(reversed(self.words))}

    @cached_property
    def scales(self) -> np.ndarray:
        """Inverse norms [words]; 1 for zero vectors."""
        scales = np.empty(len(self.words), np.float32)
        for part in self._parts():
            lengths = _lengths(self.matrix[part])
            if not np.isfinite(lengths).all():
                what = f"the vector of {self.words[part.start + int(np.isfinite(lengths).argmin())]!r:.60}"
                raise KeelError(f"{what} contains NaN or infinity: train or download the vectors again")
            scales[part] = 1 / np.where(lengths > 0, lengths, 1)
        return scales

    def units(self, rows: slice | list[int] | np.ndarray) -> np.ndarray:
        """Unit vectors [rows, width] of some words."""
        return self.matrix[rows].astype(np.float32, copy=False) * self.scales[rows][:, None]

    def _parts(self) -> Iterator[slice]:
        step = max(1, BLOCK // max(1, self.matrix.shape[1]))
        return (slice(start, start + step) for start in range(0, len(self.words), step))

    def find(self, word: str) -> int | None:
        """Row of a word, or None."""
        row = self.index.get(word)
        if row is None:
            row = self.index.get(word.lower())
        return self.index.get(self.normalize(word)) if row is None else row

    def _rows(self, words: Iterable[str]) -> set[int]:
        return {row for word in words if (row := self.find(word)) is not None}

    def row(self, word: str) -> int:
        """Row of a word; the error for an unknown word suggests similar ones."""
        row = self.find(word)
        if row is not None:
            return row
        if len(word.split()) > 1:
            phrase = "_".join(word.split())
            similar, remedy = [phrase] if self.find(phrase) is not None else [], "give a single word"
        else:
            similar, remedy = self._similar_words(word), "try another"
        *others, last = [f"{offered!r:.60}" for offered in similar] or [""]
        offer = f"did you mean {', '.join(others) + ' or ' if others else ''}{last}?" if last else remedy
        raise KeelError(f"{word!r:.60} is not in the vocabulary of {len(self.words):,} words: {offer}")

    def directions(self, words: Sequence[str]) -> np.ndarray:
        """Unit vectors [words, width], from subwords for unknown words; a word without a vector raises."""
        found = self.known_directions(words)
        for word, direction in zip(words, found, strict=True):
            if not direction.any():
                self.row(word)  # raises, unless its own vector is zero
        return found

    def known_directions(self, words: Sequence[str]) -> np.ndarray:
        """Unit vectors [words, width], zero for words without one."""
        rows = np.array([-1 if (row := self.find(word)) is None else row for word in words], np.int64)
        found = np.zeros((len(words), self.matrix.shape[1]), np.float32)
        found[rows >= 0] = self.units(rows[rows >= 0])
        unknown = np.flatnonzero(rows < 0).tolist()
        if unknown and self.subword_encoder is not None:
            found[unknown] = unit_vectors(self.subword_encoder([words[index] for index in unknown]))[0]
        return found

    def _similar_words(self, word: str) -> list[str]:
        """Up to 3 similar words, of equally similar ones the most frequent; a cheap filter comes first."""
        word = word.lower()
        matcher = SequenceMatcher(b=word, autojunk=False)

        def similar() -> Iterator[tuple[float, int]]:
            for row, other in enumerate(self.words):
                if abs(len(other) - len(word)) <= 2 and (other[:1].lower() == word[:1] or other[1:] == word[1:]):
                    matcher.set_seq1(other.lower())
                    if matcher.quick_ratio() >= MIN_SIMILARITY and (ratio := matcher.ratio()) >= MIN_SIMILARITY:
                        yield -ratio, row

        return [self.words[row] for _, row in heapq.nsmallest(3, similar())]

    def nearest(
        self,
        query: str | np.ndarray,
        *,
        top: int = 10,
        without: Iterable[str] = (),
        search: ApproximateSearch | None = None,
    ) -> list[Neighbor]:
        """Words with the largest cosine to a word (itself excluded) or to a vector [width].

        The search is exact without an approximate `search`.
        """
        vector = self.directions([query])[0] if isinstance(query, str) else query
        excluded = self._rows([*without, query] if isinstance(query, str) else without)
        if vector.shape != self.matrix.shape[1:]:
            shape = " x ".join(map(str, vector.shape))
            raise UsageError(f"the vector has {shape} dimensions, those of the words have {self.matrix.shape[1]}")
        (direction,), (length,) = unit_vectors(vector[None])
        if not 1e-6 < length < math.inf:
            raise KeelError(f"the query vector is zero or not finite (norm {length:.2g}): use another query")
        if search is not None:
            rows = search(direction, min(top + len(excluded), len(self.words)))
            found = VectorSpace([self.words[row] for row in rows], self.matrix[rows])
            inside = {index for index, row in enumerate(rows.tolist()) if row in excluded}
            return found._best(lambda part: found.units(part) @ direction, top, inside)

        def cosines(part: slice) -> np.ndarray:
            return self.matrix[part].astype(np.float32, copy=False) @ direction * self.scales[part]

        return self._best(cosines, top, excluded)

    def similarity(self, first: str, second: str) -> float:
        """Cosine similarity of two words."""
        one, other = self.directions([first, second])
        return float(one @ other)

    def odd_one_out(self, words: Sequence[str]) -> list[Neighbor]:
        """Three or more words with their mean cosine to the others, the odd one first."""
        units = self.directions(words)
        different = len({word if (row := self.find(word)) is None else row for word in words})
        if different < 3:
            raise UsageError(f"{different} different words: odd one out needs three or more")
        # For unit vectors u_i . sum_j u_j is u_i . u_i + sum_{j != i} u_i . u_j.
        means = (units @ units.sum(0) - (units * units).sum(1)) / (len(words) - 1)
        found = [Neighbor(word, float(mean)) for word, mean in zip(words, means, strict=True)]
        return sorted(found, key=lambda one: one.score)

    def analogy(
        self, expression: str | tuple[Sequence[str], Sequence[str]], *, top: int = 5, by: By = "add"
    ) -> list[Neighbor]:
        """Words x that solve "king - man + woman", or (positive words p, negative words n), excluding these words.

        "add", 3CosAdd: sum_p cos(x, p) - sum_n cos(x, n), computed as cos(x, sum_p p - sum_n n), which gives the same
        order. "multiply", 3CosMul: prod_p cos'(x, p) / prod_n (cos'(x, n) + 0.001) where cos' is
        (1 + cos) / 2, so that no single term dominates.
        """
        positive, negative = self.signed_words(expression) if isinstance(expression, str) else expression
        if not (positive or negative):
            raise UsageError("the expression is empty: give one such as 'king - man + woman'")
        plus, minus = self.directions(positive), self.directions(negative)
        if by == "add":
            return self.nearest(plus.sum(0) - minus.sum(0), top=top, without=[*positive, *negative])
        excluded = self._rows([*positive, *negative])
        return self._best(lambda part: answer_scores(self.units(part), plus[None], minus[None], by)[0], top, excluded)

    def signed_words(self, expression: str) -> tuple[list[str], list[str]]:
        """Positive and negative words of an expression.

        Signs are surrounded by spaces, since well-known is a word; 皇帝-男+女 without spaces is accepted too.
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
                raise UsageError(f"{expression!r:.80} {what}: put + or - there, with spaces")
            else:
                signed[sign].append(part)
            before = part
        if not any(signed):
            raise UsageError(f"{expression!r:.80} contains no word: give an expression such as 'king - man + woman'")
        if SIGN.fullmatch(before):
            raise UsageError(f"{expression!r:.80} ends with a sign: put a word after it")
        return signed

    def _best(self, scores_of: Callable[[slice], np.ndarray], top: int, excluded: set[int]) -> list[Neighbor]:
        """Top words by score; of equal ones the most frequent."""
        if top < 1:
            raise UsageError(f"top must be 1 or more, not {top}")
        count = len(self.words)
        if count <= len(excluded):
            raise KeelError(f"no word is left: all {count} words are part of the query")
        best, worth = np.empty(0, np.int64), np.empty(0, np.float32)
        for part in self._parts():
            with np.errstate(invalid="ignore"):  # BLAS may read beyond a short row and warn
                scores = scores_of(part)
            scores[[row - part.start for row in excluded if 0 <= row - part.start < len(scores)]] = -np.inf
            keep = np.argpartition(scores, -top)[-top:] if top < len(scores) else np.arange(len(scores))
            best, worth = np.append(best, keep + part.start), np.append(worth, scores[keep])
            order = np.lexsort((best, -worth))[:top]
            best, worth = best[order], worth[order]
        return [
            Neighbor(self.words[row], float(score))
            for row, score in zip(best.tolist(), worth, strict=True)
            if score > -np.inf
        ]


def unit_vectors(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors [rows, width] and norms [rows]; zero vectors stay zero."""
    lengths = _lengths(vectors)
    divisors = np.where((lengths > 0) & (lengths < np.inf), lengths, 1).astype(np.float32)
    return vectors.astype(np.float32, copy=False) / divisors[:, None], lengths


def _lengths(vectors: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("rw,rw->r", vectors, vectors, dtype=np.float64))


def answer_scores(units: np.ndarray, plus: np.ndarray, minus: np.ndarray, by: By) -> np.ndarray:
    """Scores [questions, words] for positive and negative unit vectors [questions, n, width]."""
    if by == "add":
        return unit_vectors(plus.sum(1) - minus.sum(1))[0] @ units.T
    scores = np.ones((len(plus), len(units)), np.float32)
    for index in range(plus.shape[1]):
        scores *= plus[:, index] / 2 @ units.T + np.float32(1 / 2)
    for index in range(minus.shape[1]):
        scores /= minus[:, index] / 2 @ units.T + np.float32(1 / 2 + EPSILON)
    return scores
