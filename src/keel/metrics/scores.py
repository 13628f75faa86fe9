"""Scores of a model on a set of examples: values with intervals, the confusion matrix, the most confident errors."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from keel.data.examples import Examples
from keel.data.notebook_html import html_table
from keel.errors import KeelError
from keel.events import pluralize
from keel.metrics.bootstrap import Score

ERRORS = 20
MIN_COLLAPSED = 10
"""Examples from which on it is no accident that all are predicted as one class."""


def format_score(name: str, score: Mapping[str, float]) -> str:
    """A `Score` as plain data, formatted: "accuracy 0.527 (0.469 to 0.585)"."""
    return f"{name} {Score(**score):.3f}"


def format_main_score(scores: Mapping[str, Any]) -> str:
    """The main score, formatted, from `Scores.brief()` or from the mean over several runs."""
    main, values = scores["main"], scores["values"]
    if "mean" in scores:
        return f"{main} {scores['mean']:.3f} (mean of {len(values)} runs)"
    return format_score(main, values[main])


@dataclass(frozen=True, kw_only=True)
class PredictionError:
    """A wrong prediction with its confidence (for regression: the absolute error)."""

    where: str
    text: str
    second: str | None = None
    label: Any
    predicted: Any
    confidence: float


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
    """The positive class of a binary F1; None for macro F1."""
    confusion: list[list[int]] | None = None
    """Confusion matrix in the order of `names` (of all words, for tags): rows are true, columns predicted labels."""
    types: dict[str, dict[str, Score]] = field(default_factory=dict)
    """Precision, recall and F1 of each entity type."""
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
        what = f"the model predicts {name!r} for all {total:,} {unit}"
        if self.main == "f1" and unit == "words" and name != "O":  # a type stands for its tags, B-LOC and I-LOC
            what = f"the model predicts that all {total:,} words are part of {name!r}"
        return f"{what}: try more --epochs, another --lr, or a model pre-trained on more text"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def brief(self) -> dict[str, Any]:
        """Scores for a model card, without texts of the examples."""
        included = ("main", "values", "count", *(["types"] if self.types else []))
        return {name: value for name, value in self.to_dict().items() if name in included}

    def write(self, folder: Path) -> None:
        """Write scores.json, errors.tsv and, for classes, confusion.tsv into a folder."""
        columns = [each.name for each in fields(PredictionError)]
        tables = {"errors.tsv": [columns, *([getattr(error, name) for name in columns] for error in self.errors)]}
        if self.confusion is not None:
            rows = zip(self.names, self.confusion, strict=True)
            tables["confusion.tsv"] = [["true \\ predicted", *self.names], *([name, *row] for name, row in rows)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
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
            (name, f"{score.value:.3f}", "" if score.low is None else f"{score.low:.3f} to {score.high:.3f}")
            for name, score in self.values.items()
        ]
        title = f"Scores on {pluralize(self.count, 'example')}{self.note and f'; {self.note}'}"
        return html_table(title, ("score", "value", "95% interval"), rows)

    def __str__(self) -> str:
        positive = f" (f1 is for class {self.positive!r})" if self.positive is not None else ""
        values = ", ".join(f"{name} {score:.3f}" for name, score in self.values.items())
        return f"{values} on {pluralize(self.count, 'example')}{positive}{self.note and f'; {self.note}'}"


def most_confident(
    examples: Examples, wrong: np.ndarray, confidence: np.ndarray, predicted: Sequence[Any]
) -> list[PredictionError]:
    """The most confident errors among the `wrong` examples; `predicted` are the predictions of all examples."""
    return [
        PredictionError(
            where=examples[number].location,
            text=examples[number].text,
            second=examples[number].second,
            label=examples[number].gold,
            predicted=predicted[number],
            confidence=value,
        )
        for number, value in by_confidence(wrong, confidence)
    ]


def by_confidence(wrong: np.ndarray, confidence: np.ndarray) -> list[tuple[int, float]]:
    """The indices of the most confident errors with their confidence, both [wrong], in descending order."""
    order = np.argsort(-confidence, kind="stable")[:ERRORS]
    return [*zip(wrong[order].tolist(), confidence[order].tolist(), strict=True)]
