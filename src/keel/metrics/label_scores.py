"""Scores of predicted classes and numbers."""

import numpy as np

from keel.data.examples import Examples, Labels
from keel.data.label_kinds import MultiLabel, Regression, SingleLabel
from keel.data.predictions import Predictions
from keel.metrics.bootstrap import RESAMPLES, Values, bootstrap, intervals, safe_ratio
from keel.metrics.scores import Scores, most_confident

POSITIVE = {"1", "true", "yes", "y", "positive", "pos", "good", "entailment", "duplicate", "paraphrase", "spam"}


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
