"""Paired tests of systems on one test set: is a difference larger than the noise of test items and training seeds?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from statistics import NormalDist

import numpy as np

from keel.metrics.bootstrap import Score, resample
from keel.metrics.item_scores import ItemScores

ALPHA, POWER = 0.05, 0.8
FEW_DISCORDANT = 25
"""Discordant items below which a normal approximation is poor: McNemar's exact distribution counts there too."""
ASSUMED_SEED_STD = 0.02
"""Standard deviation over training seeds that is assumed where a single seed leaves it unknown."""


@dataclass(frozen=True, kw_only=True)
class PairwiseTest:
    """The comparison of two systems on one test set; differences are `first` minus `second`."""

    first: str
    second: str
    difference: float
    low: float
    high: float
    """95% interval of the difference, over items and seeds."""
    p: float
    """Two-sided p-value of the difference, over items and seeds."""
    p_holm: float
    """The same after Holm's correction for all pairs of the column."""
    p_items: float
    """Two-sided p-value of the paired bootstrap over items alone, for these trained models."""
    p_mcnemar: float | None
    """Mid-p of McNemar's test on items: with several seeds, or with scores between 0 and 1, the sign test of wins and
    losses. None if the score is no mean over items."""
    wins: int
    """Items on which the first is better (averaged over seeds), `losses` those on which it is worse."""
    losses: int
    detectable: float
    """The smallest difference that is decided with a power of 80%, given this test set, these seeds and, by Holm's
    correction, the p-values of the other pairs."""

    @property
    def decided(self) -> bool:
        return self.p_holm < ALPHA

    @property
    def verdict(self) -> str:
        return "decided" if self.decided else "not decided"

    @property
    def better(self) -> str:
        """The system with the higher score; empty where this is not decided."""
        return "" if not self.decided else self.first if self.difference > 0 else self.second


class SystemResult:
    """The score of one system over seeds: its mean, and resamples of items that are the same for all systems."""

    def __init__(self, seeds: Sequence[ItemScores], rng_seed: int = 0):
        self.seeds = seeds
        self.rng_seed = rng_seed

    @cached_property
    def by_seed(self) -> list[float]:
        return [each.value for each in self.seeds]

    @property
    def mean(self) -> float:
        return float(np.mean(self.by_seed))

    @cached_property
    def resampled(self) -> np.ndarray:
        """[1 + resamples]: the mean score over seeds of each resample of items, first of all items."""
        values = resample(
            lambda weights: {"mean": np.mean([each.values(weights) for each in self.seeds], axis=0)},
            len(self.seeds[0]),
            np.random.default_rng(self.rng_seed),
        )
        return values["mean"]

    @property
    def by_item(self) -> np.ndarray:
        """[items]: the score of each item, averaged over seeds."""
        return np.mean([each.by_item for each in self.seeds], axis=0)

    @property
    def seed_noise(self) -> tuple[float, float]:
        """s^2 / S, the variance of the mean over S seeds, and its degrees of freedom, S - 1."""
        if len(self.seeds) == 1:
            return ASSUMED_SEED_STD**2, math.inf
        return float(np.var(self.by_seed, ddof=1)) / len(self.seeds), len(self.seeds) - 1

    @property
    def score(self) -> Score:
        """Mean over seeds with its 95% interval over items and, if there are several, seeds."""
        noise, freedom = self.seed_noise if len(self.seeds) > 1 else (0.0, math.inf)
        items = float(np.var(self.resampled[1:])), len(self.seeds[0]) - 1
        error, freedom = total_error(items, (noise, freedom))
        half = student_t_quantile(1 - ALPHA / 2, freedom) * error
        least = -1.0 if self.seeds[0].counts.shape[1] > 2 else 0.0
        return Score(value=self.mean, low=max(least, self.mean - half), high=min(1.0, self.mean + half))


def compare_pairs(systems: Mapping[str, SystemResult]) -> list[PairwiseTest]:
    """All pairs of a column, with Holm's correction over them.

    The variance of a difference D of two means over S seeds and n items is
        V = V_items + s_A^2 / S_A + s_B^2 / S_B,
    where V_items is the variance of D over bootstrap resamples of items (one resample applies to all systems and seeds)
    and s^2 that of single seeds' scores. D / sqrt(V) is compared with Student's t of the degrees of freedom by
    Welch-Satterthwaite, V^2 / (V_items^2 / (n - 1) + sum of (s^2 / S)^2 / (S - 1)). The noise of items is in s^2 as
    well, so that V is rather too large. With fewer than 25 discordant items p is at least that of McNemar's test.
    """
    tests = [_test(*pair, systems[pair[0]], systems[pair[1]]) for pair in combinations(systems, 2)]
    values = [test.p for test, _, _ in tests]
    return [
        replace(test, p_holm=p_holm, detectable=error * _detectable_errors(level, freedom))
        for (test, error, freedom), p_holm, level in zip(tests, holm(values), holm_levels(values), strict=True)
    ]


def _test(first: str, second: str, one: SystemResult, two: SystemResult) -> tuple[PairwiseTest, float, float]:
    """The test of one pair, without correction; its standard error and degrees of freedom."""
    assert len(one.seeds[0]) == len(two.seeds[0]), f"{first} and {second} were tested on different items"
    samples = one.resampled - two.resampled
    difference, items = one.mean - two.mean, (float(np.var(samples[1:])), len(one.seeds[0]) - 1)
    error, freedom = total_error(items, one.seed_noise, two.seed_noise)
    gaps = one.by_item - two.by_item
    wins, losses = int((gaps > 1e-9).sum()), int((gaps < -1e-9).sum())
    p_mcnemar = mcnemar(wins, losses) if one.seeds[0].is_mean else None
    p = _two_sided(difference, error, freedom)
    if p_mcnemar is not None and wins + losses < FEW_DISCORDANT:
        p = max(p, p_mcnemar)
    half = student_t_quantile(1 - ALPHA / 2, freedom) * error
    test = PairwiseTest(
        first=first,
        second=second,
        difference=difference,
        low=difference - half,
        high=difference + half,
        p=p,
        p_holm=p,
        p_items=_bootstrap_p(samples),
        p_mcnemar=p_mcnemar,
        wins=wins,
        losses=losses,
        detectable=error * _detectable_errors(ALPHA, freedom),
    )
    return test, error, freedom


def _detectable_errors(level: float, freedom: float) -> float:
    """Standard errors of a difference that is found at this level of significance with a power of 80%.

    t_(1 - level/2) + t_.8 approximates the noncentral t: with 16 degrees of freedom or more it is at most 2% too small,
    with 4 and the level of 15 pairs 8%.
    """
    return student_t_quantile(1 - level / 2, freedom) + student_t_quantile(POWER, freedom)


def total_error(*parts: tuple[float, float]) -> tuple[float, float]:
    """The standard error of a sum of independent means, from the variance and the degrees of freedom of each: its own
    degrees of freedom are those by Welch-Satterthwaite."""
    total = sum(variance for variance, _ in parts)
    below = sum(variance**2 / freedom for variance, freedom in parts if freedom > 0)
    return math.sqrt(total), total**2 / below if below else math.inf


def _two_sided(difference: float, error: float, freedom: float) -> float:
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return 2 * student_t_tail(abs(difference) / error, freedom)


def _bootstrap_p(samples: np.ndarray) -> float:
    """Two-sided p-value of the paired bootstrap: twice the share of resamples on the other side of zero, which is
    (count + 1) / (resamples + 1), so that it is never 0."""
    resamples = samples[1:]
    beyond = min(int((resamples <= 0).sum()), int((resamples >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(resamples) + 1))


def mcnemar(wins: int, losses: int) -> float:
    """Mid-p of McNemar's exact test: under H0 the wins are Binomial(wins + losses, 1/2).

    p = 2 P(X < k) + P(X = k) with k = min(wins, losses) (Fagerland et al. 2013), which is at most 1.
    """
    total, least = wins + losses, min(wins, losses)
    if not total:
        return 1.0
    terms = [
        math.exp(math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) - total * math.log(2))
        for k in range(least + 1)
    ]
    return min(1.0, 2 * math.fsum(terms) - terms[-1])


def holm(values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the i-th smallest of m p-values is multiplied by m - i + 1; then they are made
    monotone."""
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda index: values[index])):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = largest
    return adjusted


def holm_levels(values: Sequence[float], alpha: float = ALPHA) -> list[float]:
    """The level that each p-value must be below to be decided by `holm`, given the other ones: alpha /
    (m - k) if k of the others are decided by the step-down procedure."""
    return [_holm_level([*values[:index], *values[index + 1 :]], alpha) for index in range(len(values))]


def _holm_level(others: Sequence[float], alpha: float) -> float:
    left = len(others) + 1
    for p in sorted(others):
        if left * p >= alpha:
            break
        left -= 1
    return alpha / left


def student_t_tail(t: float, freedom: float) -> float:
    """P(T > t) for t >= 0 of Student's t: I_x(freedom / 2, 1/2) / 2 with x = freedom / (freedom + t^2)."""
    if freedom > 1e6:
        return math.erfc(t / math.sqrt(2)) / 2
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2


def student_t_quantile(share: float, freedom: float) -> float:
    """The t that a share above 1/2 of Student's distribution is below, by bisection."""
    if freedom > 1e6:
        return NormalDist().inv_cdf(share)
    low, high = 0.0, 1.0
    while student_t_tail(high, freedom) > 1 - share:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_tail(middle, freedom) > 1 - share else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction (Lentz's method)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    factor = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    fraction, numerator = 1.0, 1.0
    denominator = 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    fraction = denominator
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            denominator = 1 / ((1 + term * denominator) or tiny)
            numerator = (1 + term / numerator) or tiny
            step = denominator * numerator
            fraction *= step
        if abs(step - 1) < 1e-14:
            break
    return factor * fraction / a
