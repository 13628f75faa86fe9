"""Intrinsic evaluation of word vectors on published files: word similarity and analogies."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from keel.data.examples import Example, Examples
from keel.data.label_kinds import Regression
from keel.data.predictions import Predictions
from keel.data.text_files import open_text
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.explain.nearest_neighbors import By, VectorSpace, answer_scores
from keel.metrics.bootstrap import accuracy_score
from keel.metrics.label_scores import score_labels
from keel.metrics.scores import Scores

LONG_LINE = 10_000
"""Characters that no line of a benchmark has."""
MAX_SCORES = 1 << 24
"""Scores per block of questions (64 MB)."""
SEPARATORS: dict[str, Callable[[str], list[str]]] = {
    "tabs": lambda line: line.split("\t"),
    "semicolons": lambda line: line.split(";"),
    "commas": lambda line: line.split(","),
    "spaces": str.split,
}
COMMENTS = ("//", "#")
WORD_CLASS = re.compile("-[njv]$")  # MEN's lemmas: sun-n
COLUMN_NAME = re.compile("(word|term|w|[a-d])[ _]?[0-9a-d]?|query|target|answer")
"""Names of the columns of words in a table of analogies."""
SYNTACTIC = re.compile("gram[0-9]|(A|AB|prefix|suffix)$")
"""Names of syntactic sections in Google's set and in the morphological half of CA8."""


def published_form(path: str | Path, encoding: str = "auto") -> Literal["pairs", "questions", ""]:
    """Format of a file by its first lines: scored word pairs, analogy questions, or neither."""
    start = islice(open_text(path, encoding).line_chunks(LONG_LINE), 200)
    lines = [line for _, line in start if line.strip() and not line.startswith(COMMENTS)]
    if any(line.startswith(":") for line in lines):
        return "questions"
    if lines and all(len(line.split()) == 4 and not any(map(_is_number, line.split())) for line in lines):
        return "questions"
    if _question_columns(lines):
        return "questions"
    tables = {name: [_cells(line, name) for line in lines] for name in SEPARATORS}
    # Prose has spaces too: there a line must be exactly two words and a score.
    tables["spaces"] = [cells if len(cells) == 3 else [] for cells in tables["spaces"]]
    return "pairs" if any(2 * sum(map(_is_pair, rows)) > len(rows) for rows in tables.values()) else ""


def _is_pair(cells: list[str]) -> bool:
    """Whether a row could hold two words and a score."""
    numbers = sum(map(_is_number, cells))
    return numbers > 0 and sum(len(cell.split()) == 1 for cell in cells) - numbers >= 2


def _cells(line: str, separator: str) -> list[str]:
    return [cell.strip().strip('"') for cell in SEPARATORS[separator](line)]


class _QuestionColumns(NamedTuple):
    """Where a table has the sections and the four words of its questions."""

    separator: str
    words: list[int]
    section: int | None
    header: bool


def _question_columns(lines: list[str]) -> _QuestionColumns | None:
    """The columns of a table of analogies, which may also count its rows; None for other files."""
    for separator in ("tabs", "semicolons", "commas"):
        rows = [_cells(line, separator) for line in lines]
        columns = list(zip(*rows, strict=False))
        if len(columns) < 4 or len({len(row) for row in rows}) > 1:
            continue
        body = [column[len(rows) > 1 :] for column in columns]
        numeric = [all(map(_is_number, column)) for column in body]
        words = [number for number in range(len(columns)) if not numeric[number]]
        scored = any(not _counts_rows(columns[number]) for number in range(len(columns)) if numeric[number])
        if scored or len(words) < 4 or any(len(cell.split()) != 1 for word in words[-4:] for cell in body[word]):
            continue
        first = [rows[0][word].lower() for word in words[-4:]]
        counted = any(is_number and not _is_number(rows[0][column]) for column, is_number in enumerate(numeric))
        header = counted or all(map(COLUMN_NAME.fullmatch, first))
        return _QuestionColumns(separator, words[-4:], words[-5] if len(words) > 4 else None, header)
    return None


def _counts_rows(cells: Sequence[str]) -> bool:
    """Whether a column of numbers, perhaps with a header, only counts the rows."""
    numbers = list(map(float, cells if _is_number(cells[0]) else cells[1:]))
    return len(numbers) > 1 and all(number == numbers[0] + index for index, number in enumerate(numbers))


def evaluate_vectors(
    space: VectorSpace, path: str | Path, *, encoding: str = "auto", on_event: OnEvent = ignore
) -> "BenchmarkResult | Analogies":
    """Evaluate vectors on a published file of either format."""
    evaluate = evaluate_analogies if published_form(path, encoding) == "questions" else evaluate_similarity
    return evaluate(space, path, encoding=encoding, on_event=on_event)


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult(Scores):
    """Correlation of cosines with human ratings of word pairs; `count` is the number of pairs compared."""

    unknown: int
    """Pairs with a word that has no vector."""
    columns: str
    """Columns of the words and scores."""

    def brief(self) -> dict[str, Any]:
        return {**super().brief(), "unknown": self.unknown}

    def __str__(self) -> str:
        return f"{self.main} {self.values[self.main]:.3f} on {self.count:,} pairs, {self.unknown:,} more unknown"


def evaluate_similarity(
    space: VectorSpace, path: str | Path, *, encoding: str = "auto", on_event: OnEvent = ignore
) -> BenchmarkResult:
    """Correlate cosines with a file of rated word pairs: WordSim-353, SimLex-999, MEN, RG-65, SCWS, wordsim-240, ..."""
    columns, pairs = read_pairs(path, on_event, encoding)
    first, second = space.known_directions(pairs.texts), space.known_directions(pairs.seconds or [])
    known = np.flatnonzero(first.any(1) & second.any(1)).tolist()
    if len(known) < 2:
        found = f"{len(known)} of {len(pairs):,} pairs have vectors"
        raise KeelError(f"{path}: {found}: use a file in the language of the vectors")
    cosines = (first[known] * second[known]).sum(1)
    found = score_labels(pairs.take(known), Predictions(pairs.labels, cosines))
    return BenchmarkResult(
        main="spearman",
        values=found.values,
        count=len(known),
        errors=[],  # cosines and ratings have different scales
        unknown=len(pairs) - len(known),
        columns=columns,
    )


def read_pairs(path: str | Path, on_event: OnEvent = ignore, encoding: str = "auto") -> tuple[str, Examples]:
    """Detect the columns of words and scores by their content, and read pairs of words and their ratings."""
    text = open_text(path, encoding, on_event)
    lines = [(number, line) for number, line in text if line.strip() and line[0] != "#"]
    if not lines:
        raise KeelError(f"{path} is empty: give a file with two words and a score in every line")
    fitting = [
        name for name, cut in SEPARATORS.items() if 2 * sum(len(cut(line)) > 2 for _, line in lines) >= len(lines)
    ]
    if not fitting:
        raise KeelError(f"{path}:{lines[0][0]}: this line is not two words and a score: separate them with tabs")
    separator = fitting[0]
    rows = [_cells(line, separator) for _, line in lines]
    width = Counter(map(len, rows)).most_common(1)[0][0]
    for (number, _), row in zip(lines, rows, strict=True):
        if len(row) != width:
            what = f"this line has {pluralize(len(row), 'column')}, the others have {width}"
            raise KeelError(f"{path}:{number}: {what}: fix or drop it")
    numeric = [2 * sum(_is_number(row[column]) for row in rows) >= len(rows) for column in range(width)]
    # Columns such as part of speech have fewer distinct values than the words; contexts (SCWS) are longer.
    single = [2 * sum(" " not in row[column] for row in rows) >= len(rows) for column in range(width)]
    free = [column for column in range(width) if not numeric[column] and single[column]]
    variety = {column: len({row[column] for row in rows}) for column in free}
    if len(variety) < 2 or not any(numeric):
        raise KeelError(f"{path}: two columns of words and one of numbers are needed, separated by {separator}")
    first, second = sorted(sorted(variety, key=lambda column: -variety[column])[:2])
    value = next(column for column in [*range(second, width), *range(second)] if numeric[column])
    header = not _is_number(rows[0][value])
    ratings = [row[value] for row in rows[header:]]
    if value < second and all(map(_is_number, ratings)) and _counts_rows(ratings):
        what = f"column {value + 1} only counts the rows, and no other has numbers"
        raise KeelError(f"{path}: {what}: add a column of scores (analogies: give four words in each row)")
    pairs: list[Example] = []
    for (number, _), row in [*zip(lines, rows, strict=True)][header:]:
        if not _is_number(row[value]):
            raise KeelError(f"{path}:{number}: the score {row[value]!r:.60} is not a number: fix or drop this line")
        pairs.append(Example(row[first], row[second], float(row[value]), f"{path}:{number}"))
    if all(WORD_CLASS.search(word) for pair in pairs for word in (pair.text, pair.second or "")):
        pairs = [Example(pair.text[:-2], (pair.second or "")[:-2], pair.label, pair.location) for pair in pairs]
    names = [f"{column + 1} ({rows[0][column]!r})" if header else str(column + 1) for column in (first, second, value)]
    columns = f"words in columns {names[0]} and {names[1]}, score in column {names[2]}, separated by {separator}"
    note(on_event, f"{path}: {columns}")
    return columns, Examples.of(pairs, Regression(), str(path))


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class Section:
    """Results of one section of analogies."""

    name: str
    correct: int
    total: int
    unknown: int
    """Questions skipped because a word has no vector or is too rare."""

    @property
    def accuracy(self) -> float:
        """Share of correct answers; 0 if no question could be answered."""
        return self.correct / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"{self.name} {self.accuracy:.1%} of {self.total:,}, {self.unknown:,} more unknown"


@dataclass(frozen=True, kw_only=True)
class Analogies(Scores):
    """Accuracy on analogies "a is to b as c is to?"; `count` is the number of questions with known words.

    `values` has "semantic" (capitals, currencies, family) and "syntactic" (inflection) accuracy.
    """

    by: By
    words: int
    """Size of the vocabulary of answers, the most frequent words."""
    sections: list[Section]

    @property
    def unknown(self) -> int:
        """Questions skipped."""
        return sum(section.unknown for section in self.sections)

    def brief(self) -> dict[str, Any]:
        sections = [{**asdict(section), "accuracy": section.accuracy} for section in self.sections]
        return {**super().brief(), "unknown": self.unknown, "sections": sections}

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {figure:.3f}" for name, figure in self.values.items())
        return f"{figures} on {self.count:,} questions, {self.unknown:,} more unknown"


def evaluate_analogies(
    space: VectorSpace,
    path: str | Path,
    *,
    top_words: int = 30_000,
    by: By = "add",
    encoding: str = "auto",
    on_event: OnEvent = ignore,
) -> Analogies:
    """Evaluate a file of ": section" lines and lines "a b c d" (is d the answer of b - a + c?): Google's set, CA8, ...;
    or a table with four columns of words and perhaps one of sections.

    Questions and answers are restricted to the `top_words` most frequent words (0: all), as is usual.
    """
    if top_words < 0:
        raise UsageError(f"top_words must be 0 (all words) or more, not {top_words}")
    questions = list(_read_questions(path, encoding, on_event))
    units = space.units(slice(top_words or None))
    found = [[space.find(word) for word in words] for _, words in questions]
    rows = np.array([[len(units) if row is None else row for row in four] for four in found], np.int64)
    known = rows.max(1) < len(units)  # [questions]
    if not known.any():
        what = f"no question of {len(rows):,} has all its words among the first {len(units):,} of the vocabulary"
        raise KeelError(f"{path}: {what}: use a file in the language of the vectors")
    correct = np.zeros(len(rows), dtype=bool)
    block = max(1, MAX_SCORES // len(units))
    for start in range(0, known.sum(), block):
        questions_here = np.flatnonzero(known)[start : start + block]
        given = rows[questions_here, :3]
        scores = answer_scores(units, units[given[:, 1:]], units[given[:, :1]], by)  # [questions, words]
        np.put_along_axis(scores, given, -np.inf, axis=1)
        correct[questions_here] = scores.argmax(1) == rows[questions_here, 3]
    sections = []
    for name, group in groupby(range(len(rows)), key=lambda number: questions[number][0]):
        members = list(group)
        total, right = int(known[members].sum()), int(correct[members].sum())
        sections.append(Section(name=name, correct=right, total=total, unknown=len(members) - total))
    syntactic = [section for section in sections if SYNTACTIC.match(section.name)]
    semantic = [section for section in sections if section not in syntactic]
    kinds = {"accuracy": sections, "semantic": semantic, "syntactic": syntactic}
    values = {
        name: accuracy_score(sum(section.correct for section in kind), total)
        for name, kind in kinds.items()
        if (total := sum(section.total for section in kind))
    }
    return Analogies(
        main="accuracy", values=values, count=int(known.sum()), errors=[], by=by, words=len(units), sections=sections
    )


def _read_questions(path: str | Path, encoding: str, on_event: OnEvent) -> Iterator[tuple[str, list[str]]]:
    """Section and four words of each question."""
    section, empty = "questions", True
    lines = [(number, line) for number, line in open_text(path, encoding, on_event) if line.strip()]
    lines = [(number, line) for number, line in lines if not line.startswith(COMMENTS)]
    if table := _question_columns([line for _, line in lines]):
        for _, line in lines[table.header :]:
            cells = _cells(line, table.separator)
            yield section if table.section is None else cells[table.section], [cells[word] for word in table.words]
        return
    for number, line in lines:
        words = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
            continue
        if len(words) != 4:
            raise KeelError(f"{path}:{number}: this line has {len(words)} words, a question has 4: fix or drop it")
        empty = False
        yield section, words
    if empty:
        raise KeelError(f"{path} contains no questions: give lines of four words under lines such as ': capitals'")
