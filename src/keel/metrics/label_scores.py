"""Scores of predicted classes and numbers."""

from collections.abc import Sequence

import numpy as np

from keel.data.examples import Examples
from keel.data.label_kinds import MultiLabel, Regression, SingleLabel, positive_class
from keel.data.predictions import Predictions
from keel.metrics.bootstrap import RESAMPLES, Score, Values, bootstrap, intervals, resample, safe_ratio
from keel.metrics.calibration import expected_calibration_error
from keel.metrics.scores import LabelScore, Scores, most_confident

COUNTS = ("hits", "true", "guess")
"""Counts of each label: correct predictions, true labels and predictions."""


def score_labels(examples: Examples, predictions: Predictions, *, seed: int = 0) -> Scores:
    """Scores of predicted classes or numbers against the labels of the examples."""
    targets = predictions.labels.targets(examples).numpy()
    return SCORERS[type(predictions.labels.kind)](examples, predictions, targets, np.random.default_rng(seed))


def _score_single_label(
    examples: Examples, predictions: Predictions, targets: np.ndarray, rng: np.random.Generator
) -> Scores:
    labels, estimates = predictions.labels, predictions.estimates
    count, classes = estimates.shape
    predicted = predictions.decide()
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (targets, predicted), 1)
    positive = positive_class(labels.names[: classes - predictions.unseen])
    # These scores depend only on the confusion matrix; resampling examples is a multinomial sample of its cells.
    true, guess = confusion.nonzero()
    cells = np.vstack([confusion[true, guess], rng.multinomial(count, confusion[true, guess] / count, RESAMPLES)])
    one_hot = np.eye(classes)
    counts = cells @ (one_hot[true] * (true == guess)[:, None]), cells @ one_hot[true], cells @ one_hot[guess]
    values = _from_counts(*counts, positive)
    wrong = np.flatnonzero(predicted != targets)
    names = [labels.names[number] for number in predicted]
    return Scores(
        main="accuracy",
        values=intervals(values, count),
        count=count,
        names=labels.names,
        positive=None if positive is None else labels.names[positive],
        confusion=confusion.tolist(),
        by_label=scores_by_label(labels.names, *counts),
        errors=most_confident(examples, wrong, estimates[wrong, predicted[wrong]], names),
        calibration_error=expected_calibration_error(estimates.max(1), estimates.argmax(1) == targets),
    )


def _from_counts(hits: np.ndarray, true: np.ndarray, guess: np.ndarray, positive: int | None) -> Values:
    """Scores from [samples, classes] counts of correct predictions, true labels and predictions."""
    total = true.sum(1)
    present = true + guess > 0
    f1 = safe_ratio(2 * hits, true + guess)
    # Matthews correlation for any number of classes (Gorodkin 2004).
    spread = np.sqrt((total**2 - (guess**2).sum(1)) * (total**2 - (true**2).sum(1)))
    return {
        "accuracy": hits.sum(1) / total,
        **({"macro_f1": f1.sum(1) / present.sum(1)} if positive is None else {"binary_f1": f1[:, positive]}),
        "matthews": safe_ratio(hits.sum(1) * total - (true * guess).sum(1), spread),
    }


def scores_by_label(
    names: Sequence[str], hits: np.ndarray, true: np.ndarray, guess: np.ndarray
) -> dict[str, LabelScore]:
    """Scores of each label from [samples, labels] counts of correct predictions, true labels and predictions, those of
    all examples first; labels that neither occur nor are predicted are left out."""
    figures = np.stack([safe_ratio(hits, guess), safe_ratio(hits, true), safe_ratio(2 * hits, true + guess)])
    several = figures.shape[1] > 1 and true[0].sum() > 1
    bounds = np.quantile(figures[:, 1:], (0.025, 0.975), axis=1) if several else None  # [2, figures, labels]
    found: dict[str, LabelScore] = {}
    for column in np.flatnonzero(true[0] + guess[0]).tolist():
        precision, recall, f1 = (
            Score(
                value=float(figures[row, 0, column]),
                low=None if bounds is None else float(bounds[0, row, column]),
                high=None if bounds is None else float(bounds[1, row, column]),
            )
            for row in range(3)
        )
        found[names[column]] = LabelScore(precision=precision, recall=recall, f1=f1, support=int(true[0, column]))
    return found


def _score_multi_label(
    examples: Examples, predictions: Predictions, targets: np.ndarray, rng: np.random.Generator
) -> Scores:
    labels, estimates = predictions.labels, predictions.estimates
    truth, guess = targets > 0, predictions.decide()
    of_guess = np.where(guess, estimates, 1 - estimates)

    def statistics(weights: np.ndarray) -> Values:
        hits, true, guessed = weights @ (guess & truth), weights @ truth, weights @ guess
        f1 = safe_ratio(2 * hits, true + guessed)
        return {
            "micro_f1": safe_ratio(2 * hits.sum(1), true.sum(1) + guessed.sum(1)),
            "macro_f1": safe_ratio(f1.sum(1), (true + guessed > 0).sum(1)),
            "accuracy": weights @ (guess == truth).all(1) / len(truth),
            **dict(zip(COUNTS, (hits, true, guessed), strict=True)),
        }

    values = resample(statistics, len(truth), rng)
    counts = [values.pop(name) for name in COUNTS]

    wrong = np.flatnonzero((guess != truth).any(1))
    confidence = (of_guess * (guess != truth)).max(1)[wrong]
    predicted = [tuple(name for name, yes in zip(labels.names, row, strict=True) if yes) for row in guess]
    return Scores(
        main="micro_f1",
        values=intervals(values, len(truth)),
        count=len(truth),
        names=labels.names,
        by_label=scores_by_label(labels.names, *counts),
        errors=most_confident(examples, wrong, confidence, predicted),
        calibration_error=expected_calibration_error(of_guess.ravel(), (guess == truth).ravel()),
    )


def _score_regression(
    examples: Examples, predictions: Predictions, targets: np.ndarray, rng: np.random.Generator
) -> Scores:
    truth, guess = targets.astype(np.float64), predictions.estimates.astype(np.float64)

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
