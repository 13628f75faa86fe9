"""Scores with bootstrap confidence intervals, the confusion matrix and the most confident errors."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from keel.data.examples import Examples, Labels
from keel.data.label_kinds import MultiLabel, Regression, SingleLabel
from keel.data.predictions import ChoicePredictions, Predictions
from keel.errors import KeelError
from keel.events import pluralize

RESAMPLES = 1000
ERRORS = 20
MIN_COLLAPSED = 10
"""Examples from which on it is no accident that all are predicted as one class."""
POSITIVE = {"1", "true", "yes", "y", "positive", "pos", "good", "entailment", "duplicate", "paraphrase", "spam"}

Values = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score with its 95% bootstrap confidence interval."""

    value: float
    low: float | None
    """None, like `high`, with fewer than two examples."""
    high: float | None

    def __format__(self, form: str) -> str:
        value, *bounds = (format(each, form or ".3f") for each in (self.value, self.low, self.high) if each is not None)
        return f"{value} ({' to '.join(bounds)})" if bounds else value

    def differs_from(self, other: "Score") -> bool:
        """Whether the confidence intervals do not overlap."""
        bounds = self.low, self.high, other.low, other.high
        low, high, other_low, other_high = (nan if each is None else each for each in bounds)
        return high < other_low or other_high < low


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

    def __str__(self) -> str:
        positive = f" (f1 is for class {self.positive!r})" if self.positive is not None else ""
        values = ", ".join(f"{name} {score:.3f}" for name, score in self.values.items())
        return f"{values} on {pluralize(self.count, 'example')}{positive}{self.note and f'; {self.note}'}"


def score_labels(examples: Examples, predictions: Predictions, *, seed: int = 0) -> Scores:
    """Scores of predicted classes or numbers against the labels of the examples."""
    labels = predictions.labels
    targets = labels.targets(examples).numpy()
    return SCORERS[type(labels.kind)](examples, labels, targets, predictions.estimates, np.random.default_rng(seed))


def _score_single_label(
    examples: Examples, labels: Labels, targets: np.ndarray, estimates: np.ndarray, rng: np.random.Generator
) -> Scores:
    count, classes = estimates.shape
    predicted = estimates.argmax(1)
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (targets, predicted), 1)
    positive = positive_class(labels.names)
    # These scores depend only on the confusion matrix; resampling examples is a multinomial sample of its cells.
    true, guess = confusion.nonzero()
    cells = np.vstack([confusion[true, guess], rng.multinomial(count, confusion[true, guess] / count, RESAMPLES)])
    one_hot = np.eye(classes)
    hits = cells @ (one_hot[true] * (true == guess)[:, None])
    values = _from_counts(hits, cells @ one_hot[true], cells @ one_hot[guess], positive)
    wrong = np.flatnonzero(predicted != targets)
    names = [labels.names[number] for number in predicted]
    return Scores(
        main="accuracy",
        values=intervals(values, count),
        count=count,
        names=labels.names,
        positive=None if positive is None else labels.names[positive],
        confusion=confusion.tolist(),
        errors=most_confident(examples, wrong, estimates[wrong, predicted[wrong]], names),
    )


def positive_class(names: tuple[str, ...]) -> int | None:
    """The positive class of two, by its name, else the second one; None for more classes."""
    if len(names) != 2:
        return None
    found = [number for number, name in enumerate(names) if name.lower() in POSITIVE]
    return found[0] if len(found) == 1 else 1


def _from_counts(hits: np.ndarray, true: np.ndarray, guess: np.ndarray, positive: int | None) -> Values:
    """Scores from [samples, classes] counts of correct predictions, true labels and predictions."""
    total = true.sum(1)
    present = true + guess > 0
    f1 = safe_ratio(2 * hits, true + guess)
    # Matthews correlation for any number of classes (Gorodkin 2004).
    spread = np.sqrt((total**2 - (guess**2).sum(1)) * (total**2 - (true**2).sum(1)))
    return {
        "accuracy": hits.sum(1) / total,
        "f1": f1.sum(1) / present.sum(1) if positive is None else f1[:, positive],
        "matthews": safe_ratio(hits.sum(1) * total - (true * guess).sum(1), spread),
    }


def _score_multi_label(
    examples: Examples, labels: Labels, targets: np.ndarray, estimates: np.ndarray, rng: np.random.Generator
) -> Scores:
    truth, guess = targets > 0, estimates > 0.5

    def statistics(weights: np.ndarray) -> Values:
        hits, true, guessed = weights @ (guess & truth), weights @ truth, weights @ guess
        f1 = safe_ratio(2 * hits, true + guessed)
        return {
            "f1": safe_ratio(2 * hits.sum(1), true.sum(1) + guessed.sum(1)),
            "macro_f1": safe_ratio(f1.sum(1), (true + guessed > 0).sum(1)),
            "accuracy": weights @ (guess == truth).all(1) / len(truth),
        }

    wrong = np.flatnonzero((guess != truth).any(1))
    confidence = 0.5 + (np.abs(estimates - 0.5) * (guess != truth)).max(1)[wrong]
    predicted = [tuple(name for name, yes in zip(labels.names, row, strict=True) if yes) for row in guess]
    return Scores(
        main="f1",
        values=bootstrap(statistics, len(truth), rng),
        count=len(truth),
        names=labels.names,
        errors=most_confident(examples, wrong, confidence, predicted),
    )


def _score_regression(
    examples: Examples, labels: Labels, targets: np.ndarray, estimates: np.ndarray, rng: np.random.Generator
) -> Scores:
    truth, guess = targets.astype(np.float64), estimates.astype(np.float64)

    def statistics(weights: np.ndarray) -> Values:
        return {
            "spearman": _correlation(weights, _ranks(weights, truth), _ranks(weights, guess)),
            "pearson": _correlation(weights, truth[None], guess[None]),
        }

    wrong = np.flatnonzero(truth != guess)
    return Scores(
        main="spearman",
        values=bootstrap(statistics, len(truth), rng),
        count=len(truth),
        errors=most_confident(examples, wrong, np.abs(truth - guess)[wrong], guess.tolist()),
    )


SCORERS = {SingleLabel: _score_single_label, MultiLabel: _score_multi_label, Regression: _score_regression}


def score_choices(examples: Examples, predictions: ChoicePredictions, *, seed: int = 0) -> Scores:
    """Accuracy of the most probable choices; a note gives the accuracy of guessing."""
    truth, predicted = predictions.labels.targets(examples).numpy(), predictions.predicted
    wrong = np.flatnonzero(np.array([each.index for each in predicted]) != truth)
    confidence = np.array([predicted[number].probability for number in wrong])
    guess = np.mean([1 / len(choices) for choices in predictions.choices])
    return Scores(
        main="accuracy",
        values={"accuracy": accuracy_score(len(truth) - len(wrong), len(truth), seed)},
        count=len(truth),
        errors=most_confident(examples, wrong, confidence, [each.text for each in predicted]),
        note=f"random guessing: {guess:.1%}",
    )


def accuracy_score(correct: int, total: int, seed: int = 0) -> Score:
    """The share of correct predictions; resampling them is a binomial sample."""
    resampled = np.random.default_rng(seed).binomial(total, correct / total, RESAMPLES) / total
    return intervals({"accuracy": np.append(correct / total, resampled)}, total)["accuracy"]


def bootstrap(
    statistics: Callable[[np.ndarray], Values], count: int, rng: np.random.Generator | None = None
) -> dict[str, Score]:
    """Scores of `count` examples: `statistics` computes [samples] values of each from weights [samples, examples]."""
    parts = [statistics(weights) for weights in _resamples(count, rng or np.random.default_rng(0))]
    return intervals({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, count)


def _resamples(count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """[samples, examples] bootstrap weights, in chunks: how often each resample has each example; first, ones."""
    yield np.ones((1, count))
    chunk = max(1, min(RESAMPLES, 5_000_000 // count))
    for start in range(0, RESAMPLES, chunk):
        samples = min(chunk, RESAMPLES - start)
        chosen = rng.integers(0, count, (samples, count)) + np.arange(samples)[:, None] * count
        yield np.bincount(chosen.ravel(), minlength=samples * count).reshape(samples, count).astype(np.float64)


def _ranks(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[samples, examples]: the rank of each example in each resample; ties have their mean rank."""
    order = np.argsort(values, kind="stable")
    group_starts = np.flatnonzero(np.r_[True, np.diff(values[order]) > 0])
    group = np.empty(len(values), dtype=np.int64)
    group[order] = np.repeat(np.arange(len(group_starts)), np.diff(np.r_[group_starts, len(values)]))
    sizes = np.add.reduceat(weights[:, order], group_starts, axis=1)
    return (sizes.cumsum(1) - sizes / 2)[:, group]


def _correlation(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[samples]: Pearson's r of each resample; 0 where x or y does not vary."""
    total = weights.sum(1, keepdims=True)
    x = x - (weights * x).sum(1, keepdims=True) / total
    y = y - (weights * y).sum(1, keepdims=True) / total
    covariance, spread_x, spread_y = ((weights * product).sum(1) for product in (x * y, x * x, y * y))
    return safe_ratio(covariance, np.sqrt(spread_x * spread_y))


def safe_ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below, 0 where below is 0."""
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=below > 0)


def intervals(values: Values, count: int) -> dict[str, Score]:
    """Scores of `count` examples from their values: the first is the score, the others its bootstrap resamples."""
    if count < 2:
        return {name: Score(value=float(samples[0]), low=None, high=None) for name, samples in values.items()}
    bounds = {name: np.quantile(samples[1:], (0.025, 0.975)).tolist() for name, samples in values.items()}
    return {name: Score(value=float(values[name][0]), low=low, high=high) for name, (low, high) in bounds.items()}


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
