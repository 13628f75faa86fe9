"""Word vectors judged by published files: pairs of words that people scored, and analogies with their answers."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from keel.data.examples import Example, Examples
from keel.data.predictions import Predictions
from keel.data.text_files import open_text
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, counted, ignore, note
from keel.explain.nearest_neighbors import By, VectorSpace, answer_scores
from keel.metrics.scores import RESAMPLES, Score, Scores, format_score, intervals, score_labels

CELLS = 1 << 24
"""Scores held at a time, of a block of questions against all words: 64 MB."""
SEPARATORS: dict[str, Callable[[str], list[str]]] = {
    "tabs": lambda line: line.split("\t"),
    "semicolons": lambda line: line.split(";"),
    "commas": lambda line: line.split(","),
    "spaces": str.split,
}
COMMENTS = ("//", "#")
WORD_CLASS = re.compile("-[njv]$")  # MEN's lemmas: sun-n
SYNTACTIC = re.compile("gram[0-9]|(A|AB|prefix|suffix)$")
"""Sections about forms of words, by their published names: in Google's set, and in the morphological half of CA8."""


def published_form(path: str | Path) -> Literal["pairs", "questions", ""]:
    """What a file holds by its first lines: scored pairs of words, analogy questions, or neither."""
    lines = [line for _, line in islice(open_text(path), 200) if line.strip() and not line.startswith(COMMENTS)]
    if any(line.startswith(":") for line in lines):
        return "questions"
    if lines and all(len(line.split()) == 4 and not any(map(_is_number, line.split())) for line in lines):
        return "questions"
    tables = {name: [cut(line) for line in lines] for name, cut in SEPARATORS.items()}
    # Prose has spaces too, so that there all of a line must be two words and a score.
    tables["spaces"] = [cells if len(cells) == 3 else [] for cells in tables["spaces"]]
    return "pairs" if any(2 * sum(map(_is_pair, rows)) > len(rows) for rows in tables.values()) else ""


def _is_pair(cells: list[str]) -> bool:
    """Whether two words and a score may stand here."""
    numbers = sum(map(_is_number, cells))
    return numbers > 0 and sum(len(cell.split()) == 1 for cell in cells) - numbers >= 2


def evaluate_vectors(
    space: VectorSpace, path: str | Path, *, by: By = "add", on_event: OnEvent = ignore
) -> "BenchmarkResult | Analogies":
    """How far vectors agree with a published file of either form."""
    if published_form(path) == "questions":
        return evaluate_analogies(space, path, by=by, on_event=on_event)
    return evaluate_similarity(space, path, on_event=on_event)


class Pair(NamedTuple):
    """Two words and what people said of them."""

    first: str
    second: str
    score: float
    where: str


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult(Scores):
    """How far cosines agree with what people said of pairs of words; `count` is of those that were compared."""

    unknown: int
    """Pairs left out because a word of theirs has no vector."""
    columns: str
    """Where the words and their scores were found."""

    def brief(self) -> dict[str, Any]:
        return {**super().brief(), "unknown": self.unknown}

    def __str__(self) -> str:
        figure = format_score(self.main, vars(self.values[self.main]))
        return f"{figure} on {self.count:,} pairs, {self.unknown:,} more unknown"


def evaluate_similarity(
    space: VectorSpace, path: str | Path, *, seed: int = 0, on_event: OnEvent = ignore
) -> BenchmarkResult:
    """Compare cosines with a file of word pairs and scores: WordSim-353, SimLex-999, MEN, RG-65, wordsim-240, ..."""
    columns, pairs = read_pairs(path, on_event)
    first, second = (
        space.known_directions(list(words))
        for words in zip(*((pair.first, pair.second) for pair in pairs), strict=True)
    )
    known = np.flatnonzero(first.any(1) & second.any(1)).tolist()
    if len(known) < 2:
        found = f"of {len(pairs):,} pairs {len(known)} have vectors"
        raise KeelError(f"{path}: {found}: take a file in the language of the vectors")
    cosines = (first[known] * second[known]).sum(1)
    compared = Examples([Example(*pairs[number]) for number in known], "number", str(path))
    found = score_labels(compared, Predictions(compared.labels, cosines), seed=seed)
    return BenchmarkResult(
        main="spearman",
        values=found.values,
        count=len(known),
        errors=[],  # a cosine and a score from 0 to 10 do not differ by anything
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
            what = f"this line has {counted(len(row), 'column')}, others have {width}"
            raise KeelError(f"{path}:{number}: {what}: mend or drop it")
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
class Analogies(Scores):
    """How many questions "a is to b as c is to?" were answered exactly; `count` is of those that could be asked.

    Of `values` "semantic" is about the world (capitals, currencies, family), "syntactic" about forms of words.
    """

    by: By
    words: int
    """Answers were sought among this many, the most frequent."""
    sections: list[Section]

    @property
    def unknown(self) -> int:
        """Questions that were not asked."""
        return sum(section.unknown for section in self.sections)

    def brief(self) -> dict[str, Any]:
        sections = [{**asdict(section), "accuracy": section.accuracy} for section in self.sections]
        return {**super().brief(), "unknown": self.unknown, "sections": sections}

    def __str__(self) -> str:
        figures = ", ".join(format_score(name, vars(figure)) for name, figure in self.values.items())
        return f"{figures} on {self.count:,} questions, {self.unknown:,} more unknown"


def evaluate_analogies(
    space: VectorSpace, path: str | Path, *, most: int = 30_000, by: By = "add", on_event: OnEvent = ignore
) -> Analogies:
    """Answer a file of ": section" lines and lines "a b c d" (is d found from b - a + c?): Google's set, CA8, ...

    Only the `most` frequent words count (0: all), for questions and for answers, as is the custom.
    """
    if most < 0:
        raise UsageError(f"most is {most}: give how many of the most frequent words count, or 0 for all")
    questions = list(_read_questions(path, on_event))
    units = space.units(slice(most or None))
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
        scores = answer_scores(units, units[given[:, 1:]], units[given[:, :1]], by)  # [questions, words]
        np.put_along_axis(scores, given, -np.inf, axis=1)
        right[asked] = scores.argmax(1) == rows[asked, 3]
    sections = []
    for name, group in groupby(range(len(rows)), key=lambda number: questions[number][0]):
        members = list(group)
        asked = int(known[members].sum())
        sections.append(Section(name=name, right=int(right[members].sum()), asked=asked, unknown=len(members) - asked))
    syntactic = [section for section in sections if SYNTACTIC.match(section.name)]
    semantic = [section for section in sections if section not in syntactic]
    kinds = {"accuracy": sections, "semantic": semantic, "syntactic": syntactic}
    shares = {name: _share(kind) for name, kind in kinds.items() if any(section.asked for section in kind)}
    return Analogies(
        main="accuracy",
        values=shares,
        count=int(known.sum()),
        errors=[],
        by=by,
        words=len(units),
        sections=sections,
    )


def _share(sections: list[Section]) -> Score:
    """The share of right answers, and the interval of 95 in 100 resamples of the questions."""
    right, asked = sum(section.right for section in sections), sum(section.asked for section in sections)
    resampled = np.random.default_rng(0).binomial(asked, right / asked, RESAMPLES) / asked
    return intervals({"share": np.append(right / asked, resampled)}, asked)["share"]


def _read_questions(path: str | Path, on_event: OnEvent) -> Iterator[tuple[str, list[str]]]:
    """Each question's section and four words."""
    section = "questions"
    empty = True
    for number, line in open_text(path, on_event=on_event):
        words = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
        elif words and not line.startswith(COMMENTS):
            if len(words) != 4:
                raise KeelError(f"{path}:{number}: this line has {len(words)} words, a question has 4: mend or drop it")
            empty = False
            yield section, words
    if empty:
        raise KeelError(f"{path} holds no questions: give lines of four words, under lines such as ': capitals'")
