"""Intrinsic evaluation of word vectors on published files: word similarity and analogies."""

import re
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from keel.data.predictions import Predictions
from keel.data.word_benchmarks import published_form, read_pairs, read_questions
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore
from keel.explain.nearest_neighbors import By, VectorSpace, answer_scores
from keel.metrics.bootstrap import accuracy_score
from keel.metrics.label_scores import score_labels
from keel.metrics.scores import Scores

MAX_SCORES = 1 << 24
"""Scores per block of questions (64 MB)."""
SYNTACTIC = re.compile("gram[0-9]|(A|AB|prefix|suffix)$")
"""Names of syntactic sections in Google's set and in the morphological half of CA8."""


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
    questions = list(read_questions(path, encoding, on_event))
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
