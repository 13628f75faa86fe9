"""What word vectors know: the nearest words, analogies, similarity, the odd one out; and published tests of all that.

Mikolov, Yih & Zweig 2013 found that differences of vectors carry relations (king - man + woman is near queen);
Levy & Goldberg 2014 wrote the search for the fourth word as 3CosAdd, and gave 3CosMul, which is often better.
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.tasks.examples import Example, Examples
from keel.tasks.metrics import Score, score, score_text
from keel.tasks.predictions import Predictions
from keel.text.files import open_text

By = Literal["add", "multiply"]

EPSILON = 0.001
"""Keeps 3CosMul from dividing by zero."""
CELLS = 1 << 24
"""Scores held at a time, of a block of questions against all words: 64 MB."""
CLOSE = 0.5
"""How much of an unknown word must recur in another to be offered instead of it."""
SIGN = re.compile("([+＋])|([-−－–])")  # plus and minus, as keyboards and documents have them
SEPARATORS: dict[str, Callable[[str], list[str]]] = {
    "tabs": lambda line: line.split("\t"),
    "semicolons": lambda line: line.split(";"),
    "commas": lambda line: line.split(","),
    "spaces": str.split,
}
WORD_CLASS = re.compile("-[njv]$")  # MEN's lemmas: sun-n
SYNTACTIC = re.compile("gram[0-9]|(A|AB|prefix|suffix)$")
"""Sections about forms of words, by their published names: in Google's set, and in the morphological half of CA8."""


class Neighbour(NamedTuple):
    """A word, or a text, and how well it answers: its cosine, or 3CosMul's quotient."""

    word: str
    score: float


@dataclass(frozen=True, eq=False)
class Space:
    """Words and their vectors, the most frequent first; a word that is unknown as written is sought in lower case."""

    words: list[str]
    matrix: np.ndarray  # [words, width]

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
    def units(self) -> np.ndarray:
        """[words, width] the vectors at length one; a vector of zeros stays one, and is like nothing."""
        units, lengths = _units(self.matrix)
        if not np.isfinite(lengths).all():
            word = self.words[int(np.isfinite(lengths).argmin())]
            raise KeelError(f"the vector of {word!r:.60} holds NaN or infinity: train or fetch the vectors again")
        return units

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

    def nearest(self, query: str | np.ndarray, *, top: int = 10, without: Iterable[str] = ()) -> list[Neighbour]:
        """The words with the largest cosine to a word (itself left out) or to a vector [width]."""
        left_out = {row for word in without if (row := self.find(word)) is not None}
        if isinstance(query, str):
            left_out.add(self.row(query))
        vector = self.units[self.row(query)] if isinstance(query, str) else query
        if vector.shape != self.matrix.shape[1:]:
            shape = " x ".join(map(str, vector.shape))
            raise UsageError(f"a vector of {shape} numbers was given where the words have {self.matrix.shape[1]}")
        (direction,), (length,) = _units(vector[None])
        if not 1e-6 < length < math.inf:
            raise KeelError(f"the vector asked for has no direction (its length is {length:.2g}): ask for another")
        return self._best(self.units @ direction, top, left_out)

    def similarity(self, first: str, second: str) -> float:
        """The cosine of the angle between two words, -1 to 1."""
        return float(self.units[self.row(first)] @ self.units[self.row(second)])

    def odd_one_out(self, words: Sequence[str]) -> str:
        """Of three or more words, the one with the smallest sum of cosines to the others.

        That is the one furthest from the mean of all: for unit vectors u_i . sum_j u_j = 1 + sum_{j != i} u_i . u_j.
        """
        rows = [self.row(word) for word in words]
        if len(set(rows)) < 3:
            raise UsageError(f"{len(set(rows))} different words were given: to be the odd one out takes three or more")
        units = self.units[rows]
        return words[int((units @ units.sum(0)).argmin())]

    def analogy(
        self, expression: str | tuple[Sequence[str], Sequence[str]], *, top: int = 5, by: By = "add"
    ) -> list[Neighbour]:
        """The words x that answer "king - man + woman", or (positive words p, negative words n); none of these is x.

        "add", 3CosAdd: sum_p cos(x, p) - sum_n cos(x, n), given here as the cosine of x and sum_p p - sum_n n, which
        orders words equally. "multiply", 3CosMul: prod_p cos'(x, p) / prod_n (cos'(x, n) + 0.001) where cos' is
        (1 + cos) / 2, so that no single term outweighs the others.
        """
        positive, negative = self._signs(expression) if isinstance(expression, str) else expression
        plus, minus = [self.row(word) for word in positive], [self.row(word) for word in negative]
        if not plus + minus:
            raise UsageError("there is no word to start from: give an expression such as 'king - man + woman'")
        if by == "add":
            sum_of_all = self.units[plus].sum(0) - self.units[minus].sum(0)
            return self.nearest(sum_of_all, top=top, without=[*positive, *negative])
        scores = _answer_scores(self.units, np.array([plus], np.int64), np.array([minus], np.int64), by)
        return self._best(scores[0], top, {*plus, *minus})

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

    def _best(self, scores: np.ndarray, top: int, left_out: set[int]) -> list[Neighbour]:
        if top < 1:
            raise UsageError(f"top is {top}: ask for one answer or more")
        scores[list(left_out)] = -np.inf
        top = min(top, len(scores) - len(left_out))
        if top < 1:
            raise KeelError(f"no word is left to answer with: there are {len(scores)}, and the question needs them all")
        best = np.argpartition(scores, -top)[-top:]
        best = best[np.lexsort((best, -scores[best]))]
        return [Neighbour(self.words[row], float(scores[row])) for row in best]


def nearest_texts(vectors: np.ndarray, query: np.ndarray, texts: Sequence[str], *, top: int = 10) -> list[Neighbour]:
    """The texts whose vectors [texts, width] have the largest cosine to a query's [width]."""
    return Space(list(texts), vectors).nearest(query, top=top)


def _units(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[rows, width] vectors at length one, and their lengths [rows]; zeros stay zeros."""
    vectors = vectors.astype(np.float32, copy=False)
    lengths = np.sqrt(np.einsum("rw,rw->r", vectors, vectors, dtype=np.float64))
    divisors = np.where((lengths > 0) & (lengths < np.inf), lengths, 1).astype(np.float32)
    return vectors / divisors[:, None], lengths


def _answer_scores(units: np.ndarray, positive: np.ndarray, negative: np.ndarray, by: By) -> np.ndarray:
    """[questions, words] how well each word answers, for [questions, n] rows that are added and taken away."""
    if by == "add":
        return _units(units[positive].sum(1) - units[negative].sum(1))[0] @ units.T
    scores = np.ones((len(positive), len(units)), np.float32)
    for rows in positive.T:
        scores *= units[rows] / 2 @ units.T + np.float32(1 / 2)
    for rows in negative.T:
        scores /= units[rows] / 2 @ units.T + np.float32(1 / 2 + EPSILON)
    return scores


class Pair(NamedTuple):
    """Two words and what people said of them."""

    first: str
    second: str
    score: float
    where: str


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How far cosines agree with what people said of pairs of words."""

    source: str
    spearman: Score
    pairs: int
    """Those that were compared."""
    unknown: int
    """Pairs left out because a word of theirs has no vector."""
    columns: str
    """Where the words and their scores were found."""

    def __str__(self) -> str:
        return f"{score_text('spearman', vars(self.spearman))} on {self.pairs:,} pairs, {self.unknown:,} more unknown"


def evaluate_similarity(space: Space, path: str | Path, *, seed: int = 0, on_event: OnEvent = ignore) -> Judged:
    """Compare cosines with a file of word pairs and scores: WordSim-353, SimLex-999, MEN, RG-65, wordsim-240, ..."""
    columns, pairs = read_pairs(path, on_event)
    rows = [(space.find(pair.first), space.find(pair.second)) for pair in pairs]
    known = [number for number, both in enumerate(rows) if None not in both]
    if len(known) < 2:
        found = f"of {len(pairs):,} pairs {len(known)} have vectors"
        raise KeelError(f"{path}: {found}: take a file in the language of the vectors")
    first, second = np.array([rows[number] for number in known], np.int64).T
    cosines = (space.units[first] * space.units[second]).sum(1)
    compared = Examples([Example(*pairs[number]) for number in known], "number", str(path))
    return Judged(
        source=str(path),
        spearman=score(compared, Predictions(compared.labels, cosines), seed=seed).values["spearman"],
        pairs=len(known),
        unknown=len(pairs) - len(known),
        columns=columns,
    )


def read_pairs(path: str | Path, on_event: OnEvent = ignore) -> tuple[str, list[Pair]]:
    """Which columns of a published file hold the words and the score, by their content; and the pairs."""
    lines = [(number, line) for number, line in open_text(path, on_event=on_event) if line.strip() and line[0] != "#"]
    if not lines:
        raise KeelError(f"{path} is empty: give a file with two words and a score in every line")
    separator = next(
        (name for name, cut in SEPARATORS.items() if 2 * sum(len(cut(line)) > 2 for _, line in lines) >= len(lines)), ""
    )
    if not separator:
        raise KeelError(f"{path}:{lines[0][0]}: this line has not two words and a score: set tabs between them")
    rows = [[cell.strip().strip('"') for cell in SEPARATORS[separator](line)] for _, line in lines]
    width = Counter(map(len, rows)).most_common(1)[0][0]
    for (number, _), row in zip(lines, rows, strict=True):
        if len(row) != width:
            raise KeelError(f"{path}:{number}: this line has {len(row)} columns, others have {width}: mend or drop it")
    numeric = [2 * sum(_is_number(row[column]) for row in rows) >= len(rows) for column in range(width)]
    # A part of speech or a kind of relation may stand beside the words, but repeats itself more than they do.
    variety = {column: len({row[column] for row in rows}) for column in range(width) if not numeric[column]}
    if len(variety) < 2 or not any(numeric):
        raise KeelError(f"{path}: two columns of words and one of numbers are needed, separated by {separator}")
    first, second = sorted(sorted(variety, key=lambda column: -variety[column])[:2])
    value = next(column for column in [*range(second, width), *range(second)] if numeric[column])
    header = not _is_number(rows[0][value])
    pairs = []
    for (number, _), row in list(zip(lines, rows, strict=True))[header:]:
        if not _is_number(row[value]):
            raise KeelError(f"{path}:{number}: the score {row[value]!r:.60} is no number: mend or drop this line")
        pairs.append(Pair(row[first], row[second], float(row[value]), f"{path}:{number}"))
    if all(WORD_CLASS.search(pair.first) and WORD_CLASS.search(pair.second) for pair in pairs):
        pairs = [pair._replace(first=pair.first[:-2], second=pair.second[:-2]) for pair in pairs]
    names = [f"{column + 1} ({rows[0][column]!r})" if header else str(column + 1) for column in (first, second, value)]
    columns = f"words in columns {names[0]} and {names[1]}, score in column {names[2]}, separated by {separator}"
    note(on_event, f"{path}: {columns}")
    return columns, pairs


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class Section:
    """Some analogies of one kind, and how many were answered rightly."""

    name: str
    right: int
    asked: int
    unknown: int
    """Questions not asked, because a word of theirs has no vector or is too rare."""

    @property
    def accuracy(self) -> float:
        """The share of right answers; 0 where nothing could be asked."""
        return self.right / self.asked if self.asked else 0.0

    def __str__(self) -> str:
        return f"{self.name} {self.accuracy:.1%} of {self.asked:,}, {self.unknown:,} more unknown"


@dataclass(frozen=True, kw_only=True)
class Analogies:
    """How many questions "a is to b as c is to?" were answered exactly, by section."""

    source: str
    by: By
    words: int
    """Answers were sought among this many, the most frequent."""
    sections: list[Section]

    @property
    def total(self) -> Section:
        """All questions."""
        return _together("total", self.sections)

    @property
    def semantic(self) -> Section:
        """Those about the world: capitals, currencies, family."""
        return _together("semantic", [section for section in self.sections if not SYNTACTIC.match(section.name)])

    @property
    def syntactic(self) -> Section:
        """Those about forms of words: plurals, tenses, affixes."""
        return _together("syntactic", [section for section in self.sections if SYNTACTIC.match(section.name)])

    def __str__(self) -> str:
        return "; ".join(map(str, [part for part in (self.semantic, self.syntactic) if part.asked] + [self.total]))


def _together(name: str, sections: list[Section]) -> Section:
    return Section(
        name=name,
        right=sum(section.right for section in sections),
        asked=sum(section.asked for section in sections),
        unknown=sum(section.unknown for section in sections),
    )


def evaluate_analogies(
    space: Space, path: str | Path, *, most: int = 30_000, by: By = "add", on_event: OnEvent = ignore
) -> Analogies:
    """Answer a file of ": section" lines and lines "a b c d" (is d found from b - a + c?): Google's set, CA8, ...

    Only the `most` frequent words count (0: all), for questions and for answers, as is the custom.
    """
    if most < 0:
        raise UsageError(f"most is {most}: give how many of the most frequent words count, or 0 for all")
    questions = list(_read_questions(path, on_event))
    units = space.units[: most or None]
    found = [[space.find(word) for word in words] for _, words in questions]
    rows = np.array([[len(units) if row is None else row for row in four] for four in found], np.int64)
    known = rows.max(1) < len(units)  # [questions]
    if not known.any():
        what = f"none of {len(rows):,} questions has all its words among the first {len(units):,} that have vectors"
        raise KeelError(f"{path}: {what}: take a file in the language of the vectors")
    right = np.zeros(len(rows), dtype=bool)
    block = max(1, CELLS // len(units))
    for start in range(0, known.sum(), block):
        asked = np.flatnonzero(known)[start : start + block]
        given = rows[asked, :3]
        scores = _answer_scores(units, given[:, 1:], given[:, :1], by)  # [questions, words]
        np.put_along_axis(scores, given, -np.inf, axis=1)
        right[asked] = scores.argmax(1) == rows[asked, 3]
    sections = []
    for name, group in groupby(range(len(rows)), key=lambda number: questions[number][0]):
        members = list(group)
        asked = int(known[members].sum())
        sections.append(Section(name=name, right=int(right[members].sum()), asked=asked, unknown=len(members) - asked))
    return Analogies(source=str(path), by=by, words=len(units), sections=sections)


def _read_questions(path: str | Path, on_event: OnEvent) -> Iterator[tuple[str, list[str]]]:
    """Each question's section and four words."""
    section = "questions"
    empty = True
    for number, line in open_text(path, on_event=on_event):
        words = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
        elif words and not line.startswith(("//", "#")):
            if len(words) != 4:
                raise KeelError(f"{path}:{number}: this line has {len(words)} words, a question has 4: mend or drop it")
            empty = False
            yield section, words
    if empty:
        raise KeelError(f"{path} holds no questions: give lines of four words, under lines such as ': capitals'")
