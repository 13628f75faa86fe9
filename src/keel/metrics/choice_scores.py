"""Scores of multiple choice: ties count 1/n, so that the order of the choices does not matter."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keel.data.examples import Examples
from keel.data.predictions import ChoicePredictions
from keel.metrics.bootstrap import bootstrap
from keel.metrics.scores import Scores, most_confident

TOLERANCE = 1e-6
"""Relative difference below which log-likelihoods are equal: float32 sums of other batches differ by less."""
ROUNDING = 2.0**-24
"""Difference below which probabilities are equal: the rounding of float32 below 1."""


@dataclass(frozen=True)
class ChoiceResults:
    """The highest-scoring choice of each example; where several are tied, 1/n for each of them."""

    best: np.ndarray
    """[examples] index of the first of the highest-scoring choices."""
    credit: np.ndarray
    """[examples] 1 for the right choice, 1/n if it is one of n tied ones, else 0."""
    tied: int
    """Examples whose highest score is that of several choices."""

    @classmethod
    def of(
        cls, scores: np.ndarray, counts: Sequence[int], truth: np.ndarray, tolerance: float | np.ndarray
    ) -> "ChoiceResults":
        """Results from the scores [choices of all examples], the choices per example and the right ones."""
        starts = np.cumsum([0, *counts])[:-1]
        near = scores + tolerance >= np.repeat(np.maximum.reduceat(scores, starts), counts)
        size = np.add.reduceat(near, starts, dtype=np.int64)
        best = np.array([int(part.argmax()) for part in np.split(near, starts[1:])])
        return cls(best, near[starts + truth] / size, int(np.count_nonzero(size > 1)))


def ties_note(tied: int, count: int) -> str:
    """How ties are counted; empty if there are none."""
    return f"{tied:,} of {count:,} are ties, and count 1/n if the right choice is one of n tied ones" if tied else ""


def score_choices(examples: Examples, predictions: ChoicePredictions, *, seed: int = 0) -> Scores:
    """Accuracy of the most probable choices; a note gives the accuracy of guessing."""
    truth, predicted = predictions.labels.targets(examples).numpy(), predictions.predicted
    results = ChoiceResults.of(predictions.estimates, [*map(len, predictions.choices)], truth, ROUNDING)
    wrong = np.flatnonzero(results.credit == 0)
    confidence = np.array([predicted[number].probability for number in wrong])
    guess = np.mean([1 / len(choices) for choices in predictions.choices])
    values = bootstrap(
        lambda weights: {"accuracy": weights @ results.credit / len(truth)}, len(truth), np.random.default_rng(seed)
    )
    return Scores(
        main="accuracy",
        values=values,
        count=len(truth),
        errors=most_confident(examples, wrong, confidence, [each.text for each in predicted]),
        ties=results.tied,
        note="; ".join(filter(None, [f"random guessing: {guess:.1%}", ties_note(results.tied, len(truth))])),
    )
