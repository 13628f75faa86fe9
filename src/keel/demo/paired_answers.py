"""Paired comparison of classifiers on one test set."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Correctness of one system's predictions."""

    system: str
    correct: np.ndarray  # [seeds, sentences] bool

    @property
    def seeds(self) -> list[float]:
        """Accuracy of each seed in percent."""
        return (100 * self.correct.mean(1)).tolist()

    def percent(self, less: "Answers | None" = None) -> tuple[float, float, float]:
        """Accuracy in percent, or the difference to another system, with its 95% bootstrap interval over sentences."""
        each = 100 * (self.correct.mean(0) - (less.correct.mean(0) if less else 0.0))  # [sentences]
        resampled = np.random.default_rng(0).integers(len(each), size=(1000, len(each)))
        low, high = np.quantile(each[resampled].mean(1), [0.025, 0.975])
        return float(each.mean()), float(low), float(high)


def verdict(counts: Answers, scratch: Answers, pretrained: Answers) -> str:
    """Verdict on pre-training against training from scratch, and against word counts."""
    gain, low, high = pretrained.percent(less=scratch)
    figures = (
        f"{gain:+.1f} points over the same network from scratch (95% interval over sentences {low:+.1f} to {high:+.1f})"
    )
    difference = counts.percent(less=pretrained)[0]
    side = "above" if difference > 0 else "below"
    figures += f". Plain word counts are {abs(difference):.1f} points {side} the pre-trained one"
    if low > 0:
        return f"Pre-training helps: {figures}."
    if high < 0:
        return f"Pre-training hurts here: {figures}."
    return f"No significant difference by pre-training: {figures}."
