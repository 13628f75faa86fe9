"""Bootstrap confidence intervals of scores."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import nan

import numpy as np

RESAMPLES = 1000

Values = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score with its 95% bootstrap confidence interval."""

    value: float
    low: float | None
    """None, like `high`, with fewer than two examples."""
    high: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Low and high bound; None without an interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def __format__(self, form: str) -> str:
        value, *bounds = (format(each, form or ".3f") for each in (self.value, self.low, self.high) if each is not None)
        return f"{value} ({' to '.join(bounds)})" if bounds else value

    def differs_from(self, other: "Score") -> bool:
        """Whether the confidence intervals do not overlap."""
        bounds = self.low, self.high, other.low, other.high
        low, high, other_low, other_high = (nan if each is None else each for each in bounds)
        return high < other_low or other_high < low


def accuracy_score(correct: int, total: int, seed: int = 0) -> Score:
    """The share of correct predictions; resampling them is a binomial sample."""
    resampled = np.random.default_rng(seed).binomial(total, correct / total, RESAMPLES) / total
    return intervals({"accuracy": np.append(correct / total, resampled)}, total)["accuracy"]


def bootstrap(
    statistics: Callable[[np.ndarray], Values], count: int, rng: np.random.Generator | None = None
) -> dict[str, Score]:
    """Scores of `count` examples: `statistics` computes [samples] values of each from weights [samples, examples]."""
    return intervals(resample(statistics, count, rng), count)


def resample(statistics: Callable[[np.ndarray], Values], count: int, rng: np.random.Generator | None = None) -> Values:
    """[1 + resamples, ...]: what `statistics` computes from weights [samples, examples], first of all examples."""
    parts = [statistics(weights) for weights in _resamples(count, rng or np.random.default_rng(0))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _resamples(count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """[samples, examples] bootstrap weights, in chunks: how often each resample has each example; first, ones."""
    yield np.ones((1, count))
    chunk = max(1, min(RESAMPLES, 5_000_000 // count))
    for start in range(0, RESAMPLES, chunk):
        samples = min(chunk, RESAMPLES - start)
        chosen = rng.integers(0, count, (samples, count)) + np.arange(samples)[:, None] * count
        yield np.bincount(chosen.ravel(), minlength=samples * count).reshape(samples, count).astype(np.float64)


def safe_ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below, 0 where below is 0."""
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=below > 0)


def intervals(values: Values, count: int) -> dict[str, Score]:
    """Scores of `count` examples from their values: the first is the score, the others its bootstrap resamples."""
    if count < 2:
        return {name: Score(value=float(samples[0]), low=None, high=None) for name, samples in values.items()}
    bounds = {name: np.quantile(samples[1:], (0.025, 0.975)).tolist() for name, samples in values.items()}
    return {name: Score(value=float(values[name][0]), low=low, high=high) for name, (low, high) in bounds.items()}
