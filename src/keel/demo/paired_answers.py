"""Paired comparison of classifiers on one test set."""

from dataclasses import dataclass

import numpy as np

from keel.metrics.bootstrap import Score, bootstrap


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Correctness of one system's predictions."""

    system: str
    correct: np.ndarray  # [seeds, sentences] bool

    @property
    def seeds(self) -> list[float]:
        """Accuracy of each seed in percent."""
        return (100 * self.correct.mean(1)).tolist()

    def percent(self, less: "Answers | None" = None) -> Score:
        """Accuracy in percent, or the difference to another system, with its interval over sentences."""
        return mean_score(100 * (self.correct.mean(0) - (less.correct.mean(0) if less else 0.0)))


def mean_score(values: np.ndarray) -> Score:
    """Mean with its 95% bootstrap interval."""
    return bootstrap(lambda weights: {"mean": weights @ values / len(values)}, len(values))["mean"]


def verdict(counts: Answers, scratch: Answers, pretrained: Answers) -> str:
    """Verdict on pre-training against training from scratch, and against word counts."""
    gain = pretrained.percent(less=scratch)
    low, high = gain.low or 0.0, gain.high or 0.0
    difference = counts.percent(less=pretrained).value
    figures = (
        f"{gain.value:+.1f} points over the same network from scratch (95% interval over sentences {low:+.1f} to "
        f"{high:+.1f}). Plain word counts are {abs(difference):.1f} points {'above' if difference > 0 else 'below'} "
        "the pre-trained one"
    )
    if low > 0:
        return f"Pre-training helps: {figures}."
    if high < 0:
        return f"Pre-training hurts here: {figures}."
    return f"No significant difference by pre-training: {figures}."
