"""Scores of single items (texts, sentences), from which the score of any resample of a test set is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from keel.data.examples import Examples
from keel.data.label_kinds import MultiLabel, Regression, SingleLabel
from keel.data.predictions import AnswerPredictions, ChoicePredictions, Predictions, TagPredictions
from keel.data.tag_schemes import detect_scheme, extract_entities
from keel.errors import UsageError
from keel.metrics.answer_scores import AnswerScores
from keel.metrics.bootstrap import safe_ratio
from keel.metrics.choice_scores import ROUNDING, ChoiceResults
from keel.metrics.tagging_scores import tags_in_scheme

MOMENTS = 5
"""Columns of a correlation: x, y, their squares and their product."""


@dataclass(frozen=True, eq=False)
class ItemScores:
    """The main score of a task as a function of sums over items.

    With two columns [items, 2] it is sum of the first / sum of the second: accuracy (correct, 1), micro and entity F1
    (2 hits, true + predicted), accuracy per word (correct words, words). With five it is Pearson's r of the ranks x, y.
    """

    name: str
    counts: np.ndarray

    @classmethod
    def ratio(cls, name: str, above: Sequence[float] | np.ndarray, below: Sequence[float] | np.ndarray | None) -> Self:
        """The ratio of two sums; without `below` the mean."""
        numerator = np.asarray(above, np.float64)
        return cls(name, np.stack([numerator, np.ones(len(numerator)) if below is None else np.asarray(below)], 1))

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def is_mean(self) -> bool:
        """Whether the score is the mean of one number per item, such as 1 for a correct prediction."""
        return self.counts.shape[1] == 2 and bool((self.counts[:, 1] == 1).all())

    @property
    def by_item(self) -> np.ndarray:
        """[items]: the score of each item between 0 (wrong) and 1; of a correlation the negative squared distance."""
        if self.counts.shape[1] == MOMENTS:
            return -((self.counts[:, 0] - self.counts[:, 1]) ** 2)
        return np.where(self.counts[:, 1] > 0, safe_ratio(self.counts[:, 0], self.counts[:, 1]), 1.0)

    def values(self, weights: np.ndarray) -> np.ndarray:
        """[samples]: the score of each resample; `weights` [samples, items] is how often it has each item."""
        sums = weights @ self.counts
        if self.counts.shape[1] == 2:
            return safe_ratio(sums[:, 0], sums[:, 1])
        total = weights.sum(1)
        x, y, xx, yy, xy = sums.T / total
        return safe_ratio(xy - x * y, np.sqrt(np.maximum(xx - x * x, 0) * np.maximum(yy - y * y, 0)))

    @property
    def value(self) -> float:
        """The score of all items."""
        return float(self.values(np.ones((1, len(self))))[0])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; a column of ones is left out."""
        columns = [column.tolist() for column in self.counts.T]
        return {"name": self.name, "counts": columns[:1] if self.is_mean else columns}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        columns = plain["counts"]
        return (
            cls.ratio(plain["name"], columns[0], None) if len(columns) == 1 else cls(plain["name"], np.array(columns).T)
        )


def item_scores(examples: Examples, predictions: Predictions) -> ItemScores:
    """The main score of these predictions by items: the same as that of `Task.score`."""
    if isinstance(predictions, TagPredictions):
        return _of_tags(examples, predictions)
    if isinstance(predictions, AnswerPredictions):
        return ItemScores.ratio("answer_f1", AnswerScores.of(examples, predictions).f1, None)
    if isinstance(predictions, ChoicePredictions):
        truth, counts = predictions.labels.targets(examples).numpy(), [*map(len, predictions.choices)]
        return ItemScores.ratio(
            "accuracy", ChoiceResults.of(predictions.estimates, counts, truth, ROUNDING).credit, None
        )
    kind = predictions.labels.kind
    predictions = predictions.with_labels(predictions.labels.including(examples))
    targets = predictions.labels.targets(examples).numpy()
    if isinstance(kind, Regression):
        x, y = (_ranks(np.asarray(each, np.float64)) for each in (targets, predictions.estimates))
        return ItemScores("spearman", np.stack([x, y, x * x, y * y, x * y], 1))
    if not isinstance(kind, SingleLabel | MultiLabel):
        raise UsageError(f"keel compare has no score by items for {type(kind).__name__} yet: use keel evaluate")
    decided = predictions.decide()
    if isinstance(kind, MultiLabel):
        truth = targets > 0
        return ItemScores.ratio("micro_f1", 2.0 * (decided & truth).sum(1), truth.sum(1) + decided.sum(1))
    return ItemScores.ratio("accuracy", decided == targets, None)


def _of_tags(examples: Examples, predictions: TagPredictions) -> ItemScores:
    """Entities of each sentence or, of tags without a scheme, words."""
    names = predictions.labels.names
    guess = [predictions.item(number).tags for number in range(len(predictions))]
    pairs = [*zip(tags_in_scheme(examples, names), guess, strict=True)]
    if detect_scheme([name] for name in names) == "none":
        correct = [sum(map(str.__eq__, *pair)) for pair in pairs]
        return ItemScores.ratio("accuracy", correct, [len(one) for one, _ in pairs])
    spans = [(extract_entities(one), extract_entities(two)) for one, two in pairs]
    main = "word_f1" if predictions.segmentation else "entity_f1"
    hits = [2 * len({*one} & {*two}) for one, two in spans]
    return ItemScores.ratio(main, hits, [len(one) + len(two) for one, two in spans])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks between 0 and 1; equal values have their mean rank. A resample keeps the ranks of all items."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return ((np.cumsum(sizes) - (sizes + 1) / 2) / max(1, len(values) - 1))[group]
