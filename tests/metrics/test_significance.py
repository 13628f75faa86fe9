"""Verdicts: the formulas against other implementations, and simulations with noise of items and of seeds."""

import math

import numpy as np
import pytest
from scipy import stats

from keel.metrics.item_scores import ItemScores
from keel.metrics.significance import (
    ALPHA,
    SystemResult,
    compare_pairs,
    holm,
    holm_levels,
    mcnemar,
    student_t_quantile,
    student_t_tail,
)

ITEMS = 500


def accuracy(correct: np.ndarray) -> ItemScores:
    return ItemScores.ratio("accuracy", correct, None)


def simulate(rng: np.random.Generator, p: np.ndarray, seeds: int, noise: float) -> SystemResult:
    """A system that is right on item i with probability p[i], shifted by each seed's own quality."""
    shifts = rng.normal(0, noise, seeds)
    return SystemResult([accuracy(rng.random(len(p)) < np.clip(p + shift, 0, 1)) for shift in shifts])


def share_decided(repeats: int, items: int, seeds: int, noise: float, gap: float, start: int) -> float:
    rng = np.random.default_rng(start)
    decided = 0
    for _ in range(repeats):
        p = rng.beta(3, 0.8, items)
        pair = {"a": simulate(rng, p, seeds, noise), "b": simulate(rng, p - gap, seeds, noise)}
        decided += compare_pairs(pair)[0].decided
    return decided / repeats


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_same_system_with_other_seeds_is_decided_in_at_most_one_of_twenty(seeds: int) -> None:
    shares = [share_decided(40, 300, seeds, noise, gap=0.0, start=seeds) for noise in (0.0, 0.01, 0.03)]
    assert np.mean(shares) <= 0.05


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_gap_of_five_points_on_a_thousand_items_is_found(noise: float) -> None:
    assert share_decided(20, 1000, seeds=5, noise=noise, gap=0.05, start=1) >= 0.95


def test_a_test_over_items_alone_would_decide_too_often() -> None:
    """Why seeds are part of the noise: the paired bootstrap over items is for the trained models at hand."""
    rng = np.random.default_rng(0)
    items_only = both = 0
    for _ in range(60):
        p = rng.beta(3, 0.8, ITEMS)
        (test,) = compare_pairs({"a": simulate(rng, p, 3, 0.04), "b": simulate(rng, p, 3, 0.04)})
        items_only += test.p_items < ALPHA
        both += test.decided
    assert items_only >= 12
    assert both < items_only / 3


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (5, 0), (3, 9), (12, 12), (30, 51), (400, 520)])
def test_mcnemar_is_the_mid_p_of_the_binomial_distribution(wins: int, losses: int) -> None:
    least, total = min(wins, losses), wins + losses
    exact = stats.binomtest(least, total).pvalue if total else 1.0
    expected = 1.0 if wins == losses else exact - float(stats.binom.pmf(least, total, 0.5))
    assert mcnemar(wins, losses) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(losses, wins) == mcnemar(wins, losses)


@pytest.mark.parametrize("freedom", [1.0, 2.3, 4.0, 33.0, 5000.0, math.inf])
def test_students_t_is_that_of_scipy(freedom: float) -> None:
    for t in (0.0, 0.3, 1.96, 7.5, 40.0):
        assert student_t_tail(t, freedom) == pytest.approx(float(stats.t.sf(t, freedom)), rel=1e-8, abs=1e-300)
    for share in (0.8, 0.975, 0.9999):
        assert student_t_quantile(share, freedom) == pytest.approx(float(stats.t.ppf(share, freedom)), rel=1e-8)


def test_holm_multiplies_step_by_step_and_stays_monotone() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_a_pair_is_decided_exactly_below_its_level() -> None:
    rng = np.random.default_rng(5)
    for count in (1, 2, 3, 6, 10):
        for _ in range(200):
            values = (10 ** rng.uniform(-4, 0, count)).tolist()
            levels = holm_levels(values)
            assert [p < level for p, level in zip(values, levels, strict=True)] == [p < 0.05 for p in holm(values)]
    assert holm_levels([0.5, 0.9, 0.8]) == pytest.approx([0.05 / 3] * 3)
    assert holm_levels([1e-9, 0.9, 1e-9]) == pytest.approx([0.05 / 2, 0.05, 0.05 / 2])


def test_the_smallest_difference_counts_the_other_pairs() -> None:
    rng = np.random.default_rng(8)
    p = rng.beta(3, 1, 1500)
    systems = {name: simulate(rng, p, 3, 0.01) for name in "abcde"}
    for test in compare_pairs(systems):
        (alone,) = compare_pairs({name: systems[name] for name in (test.first, test.second)})
        assert test.p == alone.p
        assert test.detectable > 1.15 * alone.detectable  # ten pairs, none decided
    far = {name: simulate(rng, p - 0.3 * number, 3, 0.01) for number, name in enumerate("abc")}
    for test in compare_pairs(far):  # where the others are decided, the correction costs nothing
        (alone,) = compare_pairs({name: far[name] for name in (test.first, test.second)})
        assert test.detectable == pytest.approx(alone.detectable)


def test_the_error_of_a_difference_is_that_of_items_and_seeds() -> None:
    rng = np.random.default_rng(3)
    p = rng.beta(3, 1, 2000)
    one, two = simulate(rng, p, 4, 0.02), simulate(rng, p - 0.03, 4, 0.02)
    (test,) = compare_pairs({"one": one, "two": two})
    matrix = [np.array([each.counts[:, 0] for each in system.seeds]) for system in (one, two)]
    gaps = matrix[0].mean(0) - matrix[1].mean(0)
    items = gaps.var() / len(gaps)
    seeds = [each.mean(1).var(ddof=1) / 4 for each in matrix]
    error = math.sqrt(items + sum(seeds))
    freedom = error**4 / (items**2 / 1999 + sum(each**2 for each in seeds) / 3)
    assert test.difference == pytest.approx(gaps.mean())
    assert test.p == pytest.approx(2 * float(stats.t.sf(abs(gaps.mean()) / error, freedom)), rel=0.15)
    assert (test.high - test.low) / 2 == pytest.approx(float(stats.t.ppf(0.975, freedom)) * error, rel=0.05)
    both = float(stats.t.ppf(0.975, freedom) + stats.t.ppf(0.8, freedom))
    assert test.detectable == pytest.approx(both * error, rel=0.05)
    assert test.wins == (gaps > 1e-9).sum()
    assert test.losses == (gaps < -1e-9).sum()


def test_a_few_discordant_items_decide_by_the_exact_distribution() -> None:
    right = np.ones(200)
    wrong = right.copy()
    wrong[:5] = 0
    (test,) = compare_pairs({"a": SystemResult([accuracy(right)] * 2), "b": SystemResult([accuracy(wrong)] * 2)})
    assert test.p == pytest.approx(mcnemar(5, 0)) == 1 / 32
    (same,) = compare_pairs({"a": SystemResult([accuracy(right)]), "b": SystemResult([accuracy(right)])})
    assert (same.p, same.verdict, same.better) == (1.0, "not decided", "")


def test_one_seed_has_an_assumed_noise() -> None:
    rng = np.random.default_rng(5)
    p = rng.beta(3, 1, 5000)
    gaps = {"a": simulate(rng, p, 1, 0.0), "b": simulate(rng, p - 0.04, 1, 0.0)}
    (test,) = compare_pairs(gaps)
    assert test.p_items < 0.01  # these two models differ
    assert not test.decided  # but two seeds of one system differ as much
    (far,) = compare_pairs({"a": gaps["a"], "b": simulate(rng, p - 0.3, 1, 0.0)})
    assert far.better == "a"
