"""Scores of a model on a set of examples: values with intervals, the confusion matrix, the most confident errors."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from keel.data.examples import Examples
from keel.data.notebook_html import html_table
from keel.errors import KeelError
from keel.events import pluralize
from keel.localization import gettext_noop
from keel.metrics.bootstrap import Score

ERRORS = 20
CONFUSED = 20
LABEL_COLUMNS = ("label", "precision", "recall", "f1", "support")
CARD_LABELS = 20
"""Labels up to which a model card has the scores of each."""
MIN_COLLAPSED = 10
"""Examples from which on it is no accident that all are predicted as one class."""


def score_name(name: str) -> str:
    """The name of a score in words: "macro F1" for "macro_f1"."""
    return name.replace("_f1", " F1").replace("_", " ")


def format_score(name: str, score: Mapping[str, float]) -> str:
    """A `Score` as plain data, formatted: "accuracy 0.527 (0.469 to 0.585)"."""
    return f"{score_name(name)} {Score(**score):.3f}"


def format_main_score(scores: Mapping[str, Any]) -> str:
    """The main score, formatted, from `Scores.brief()` or from the mean over several runs."""
    main, values = scores["main"], scores["values"]
    if "mean" in scores:
        spread = f" ± {scores['std']:.3f}" if "std" in scores else ""
        listed = ", ".join(f"{value:.3f}" for value in values)
        what = "mean ± standard deviation" if spread else "mean"
        return f"{score_name(main)} {scores['mean']:.3f}{spread} ({what} of {len(values)} runs: {listed})"
    return format_score(main, values[main])


@dataclass(frozen=True, kw_only=True)
class PredictionError:
    """An example, or a word, whose prediction differs from its label."""

    where: str
    text: str
    second: str | None = None
    label: Any
    predicted: Any
    confidence: float
    """Probability of the prediction; for regression, the absolute error."""


@dataclass(frozen=True, kw_only=True)
class LabelScore:
    """Precision, recall and F1 of one label (for entities: of one type)."""

    precision: Score
    recall: Score
    f1: Score
    support: int
    """How often it is the true label."""


@dataclass(frozen=True)
class ConfusedPair:
    """How many examples, or words, of one label are predicted as another."""

    label: str
    predicted: str
    count: int
    support: int
    """How often `label` is the true label."""


@dataclass(frozen=True, kw_only=True)
class SliceScores:
    """The scores of one slice: examples of similar length, of one label, or with one value of a column."""

    name: str
    count: int
    values: dict[str, Score]


@dataclass(frozen=True, kw_only=True)
class LabelSuspects:
    """The most likely label errors, in descending order, and how many there are."""

    found: list[PredictionError]
    total: int
    """Suspects among all examples; `found` has the first of them."""
    count: int
    """Labels that were looked at: those of examples or, for tags, of words."""

    def write(self, path: Path) -> None:
        """Write the found ones as csv."""
        columns = [each.name for each in fields(PredictionError)]
        with open(path, "w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(columns)
            table.writerows([getattr(each, name) for name in columns] for each in self.found)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The scores of one model on one set of examples."""

    main: str
    """Name of the main score."""
    values: dict[str, Score]
    count: int
    errors: list[PredictionError]
    """The most confident ones, at most 20."""
    names: tuple[str, ...] = ()
    positive: str | None = None
    """The positive class of a binary F1."""
    confusion: list[list[int]] | None = None
    """Confusion matrix in the order of `names` (of all words, for tags): rows are true, columns predicted labels."""
    by_label: dict[str, LabelScore] = field(default_factory=dict)
    """Precision, recall, F1 and support of each label that occurs or is predicted; of entities, by type."""
    calibration_error: float | None = None
    """Expected calibration error of the probabilities (15 bins): the mean difference of confidence and accuracy."""
    suspects: LabelSuspects | None = None
    """Likely label errors, if `suspects` was given."""
    slices: list[SliceScores] = field(default_factory=list)
    """Scores of each slice, if `slice` was given, or of each language."""
    sliced_by: str = "slice"
    """What the slices are."""
    ties: int = 0
    """Multiple-choice examples whose highest score several choices have; each of n counts 1/n."""
    note: str = ""
    """Note on these scores."""

    @property
    def main_value(self) -> float:
        """Value of the main score."""
        return self.values[self.main].value

    @property
    def warning(self) -> str:
        """A warning if the model predicts one class for every example, or word, though there are several."""
        table = np.array(self.confusion or [[0]])
        true, predicted = np.flatnonzero(table.any(1)), np.flatnonzero(table.any(0))
        if (total := int(table.sum())) < MIN_COLLAPSED or len(predicted) > 1 or len(true) < 2:
            return ""
        unit, name = "examples" if total == self.count else "words", self.names[predicted[0]]
        what = f"the model predicts {name!r} for all {total:,} {gettext_noop(unit)}"
        if self.main == "entity_f1" and unit == "words" and name != "O":  # a type stands for its tags, B-LOC and I-LOC
            what = f"the model predicts that all {total:,} words are part of {name!r}"
        return f"{what}: try more --epochs, another --lr, or a model pre-trained on more text"

    @property
    def confused(self) -> list[ConfusedPair]:
        """The label pairs that are confused most often, at most 20."""
        table = np.array(self.confusion or np.zeros((0, 0)), dtype=np.int64)
        support = table.sum(1)
        wrong = table * (1 - np.eye(len(table), dtype=np.int64))
        worst = np.argsort(-wrong, axis=None, kind="stable")[:CONFUSED].tolist()
        cells = [divmod(cell, len(table)) for cell in worst if wrong.flat[cell]]
        return [
            ConfusedPair(self.names[true], self.names[guess], int(wrong[true, guess]), int(support[true]))
            for true, guess in cells
        ]

    def label_rows(self, form: str = ".3f") -> list[list[str]]:
        """Label, precision, recall, F1 and support (`LABEL_COLUMNS`) as text, a row for each label."""
        return [
            [name, *(format(score.value, form) for score in (each.precision, each.recall, each.f1)), f"{each.support}"]
            for name, each in self.by_label.items()
        ]

    def slice_rows(self) -> tuple[list[str], list[list[str]]]:
        """Column names and a row for each slice: its name, its number of examples and its scores, as text; - where a
        score is not defined."""
        names = list(self.values)
        rows = [
            [
                each.name,
                f"{each.count:,}",
                *(f"{each.values[name]:.3f}" if name in each.values else "-" for name in names),
            ]
            for each in self.slices
        ]
        return [self.sliced_by, "examples", *map(score_name, names)], rows

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        confused = {} if self.confusion is None else {"confused": [asdict(pair) for pair in self.confused]}
        return asdict(self) | confused

    def brief(self) -> dict[str, Any]:
        """Scores for a model card, without texts of the examples."""
        by_label = ["by_label"] if 1 < len(self.by_label) <= CARD_LABELS else []
        kept = ("main", "values", "count", *by_label, *(["slices"] if self.slices else []))
        return {name: value for name, value in self.to_dict().items() if name in kept}

    def write(self, folder: Path) -> None:
        """Write scores.json, errors.tsv and, for classes, labels.tsv and confusion.tsv into a folder; slices.tsv where
        there are slices."""
        columns = [each.name for each in fields(PredictionError)]
        tables = {"errors.tsv": [columns, *([getattr(error, name) for name in columns] for error in self.errors)]}
        if self.by_label:
            tables["labels.tsv"] = [list(LABEL_COLUMNS), *self.label_rows(".4f")]
        if self.slices:
            head, rows = self.slice_rows()
            tables["slices.tsv"] = [head, *rows]
        if self.confusion is not None:
            rows = zip(self.names, self.confusion, strict=True)
            tables["confusion.tsv"] = [["true \\ predicted", *self.names], *([name, *row] for name, row in rows)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self.suspects:
                self.suspects.write(folder / "suspects.csv")
            (folder / "scores.json").write_text(json.dumps(self.brief(), indent=1), encoding="utf-8")
            for name, rows in tables.items():
                lines = ["\t".join(" ".join(str(cell).split()) for cell in row) + "\n" for row in rows]
                (folder / name).write_text("".join(lines), encoding="utf-8")
        except OSError as error:
            raise KeelError(f"{folder} cannot be written to ({error.strerror}): choose another --out") from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def _repr_html_(self) -> str:
        """The scores in a notebook."""
        rows = [
            (
                score_name(name),
                f"{score.value:.3f}",
                "" if score.low is None else f"{score.low:.3f} to {score.high:.3f}",
            )
            for name, score in self.values.items()
        ]
        title = f"Scores on {pluralize(self.count, 'example')}{self.note and f'; {self.note}'}"
        table = html_table(title, ("score", "value", "95% interval"), rows)
        labels = html_table("By label", LABEL_COLUMNS, self.label_rows(), total=len(self.by_label))
        slices = html_table(f"By {self.sliced_by}", *self.slice_rows()) if self.slices else ""
        return table + slices + (labels if len(self.by_label) > 1 else "")

    def __str__(self) -> str:
        positive = f" (binary F1 is for class {self.positive!r})" if self.positive is not None else ""
        values = ", ".join(f"{score_name(name)} {score:.3f}" for name, score in self.values.items())
        return f"{values} on {pluralize(self.count, 'example')}{positive}{self.note and f'; {self.note}'}"


def most_confident(
    examples: Examples, wrong: np.ndarray, confidence: np.ndarray, predicted: Sequence[Any]
) -> list[PredictionError]:
    """The most confident errors among the `wrong` examples; `predicted` are the predictions of all examples."""
    return prediction_errors(examples, by_confidence(wrong, confidence), predicted)


def prediction_errors(
    examples: Examples, ranked: Iterable[tuple[int, float]], predicted: Sequence[Any]
) -> list[PredictionError]:
    """Errors by index and confidence; `predicted` are the predictions of all examples."""
    return [
        PredictionError(
            where=examples[number].location,
            text=examples[number].text,
            second=examples[number].second,
            label=examples[number].gold,
            predicted=predicted[number],
            confidence=value,
        )
        for number, value in ranked
    ]


def by_confidence(wrong: np.ndarray, confidence: np.ndarray) -> list[tuple[int, float]]:
    """The indices of the most confident errors with their confidence, both [wrong], in descending order."""
    order = np.argsort(-confidence, kind="stable")[:ERRORS]
    return [*zip(wrong[order].tolist(), confidence[order].tolist(), strict=True)]
