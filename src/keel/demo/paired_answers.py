"""Which sentences of a test each system got right, and what that proves."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What one system got right."""

    system: str
    right: np.ndarray  # [seeds, sentences] bool

    @property
    def seeds(self) -> list[float]:
        """Percent right, seed by seed."""
        return (100 * self.right.mean(1)).tolist()

    def percent(self, less: "Answers | None" = None) -> tuple[float, float, float]:
        """Percent right, or points gained over another system, and the interval of 95 in 100 resamples of the test."""
        each = 100 * (self.right.mean(0) - (less.right.mean(0) if less else 0.0))  # [sentences]
        drawn = np.random.default_rng(0).integers(len(each), size=(1000, len(each)))
        low, high = np.quantile(each[drawn].mean(1), [0.025, 0.975])
        return float(each.mean()), float(low), float(high)


def verdict(counts: Answers, scratch: Answers, pretrained: Answers) -> str:
    """What the test says about pre-training, whichever way it went; and what it was worth beside plain word counts."""
    gain, low, high = pretrained.percent(less=scratch)
    figures = (
        f"{gain:+.1f} points over the same network from scratch (95% interval over sentences {low:+.1f} to {high:+.1f})"
    )
    ahead = counts.percent(less=pretrained)[0]
    figures += (
        f". Plain word counts are {abs(ahead):.1f} points {'above' if ahead > 0 else 'below'} the pre-trained one"
    )
    if low > 0:
        return f"Pre-training pays: {figures}."
    if high < 0:
        return f"Pre-training did harm here: {figures}."
    return f"Pre-training made no sure difference here: {figures}."
