"""Calibration against scipy and scikit-learn."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn import metrics as reference
from torch.nn import functional as F

from keel.metrics.calibration import expected_calibration_error, fit_temperature, fit_threshold


def overconfident(sigmoid: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are three times too large for the labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, 4, generator=generator)
    if sigmoid:
        return logits, torch.bernoulli((logits / 3).sigmoid(), generator=generator)
    return logits, torch.multinomial((logits / 3).softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("sigmoid", [False, True])
def test_the_temperature_is_that_of_the_lowest_negative_log_likelihood(sigmoid: bool) -> None:
    logits, targets = overconfident(sigmoid)
    loss = F.binary_cross_entropy_with_logits if sigmoid else F.cross_entropy
    best: Any = minimize_scalar(lambda t: loss(logits.double() / t, targets.double() if sigmoid else targets).item(),
                           bounds=(0.2, 10), method="bounded")  # fmt: skip
    found = fit_temperature(logits, targets, sigmoid=sigmoid)
    assert found == pytest.approx(best.x, abs=1e-3)
    assert found == pytest.approx(3, abs=0.2)


def test_a_temperature_has_bounds_where_all_examples_are_right() -> None:
    assert fit_temperature(torch.eye(2), torch.tensor([0, 1])) == pytest.approx(0.2)


def test_calibration_lowers_the_expected_calibration_error() -> None:
    logits, targets = overconfident(sigmoid=False)
    before, after = (
        expected_calibration_error(p.max(1).values.numpy(), (p.argmax(1) == targets).numpy())
        for p in (logits.softmax(1), (logits / fit_temperature(logits, targets)).softmax(1))
    )
    assert before > 0.2
    assert after < 0.04


def test_expected_calibration_error_is_the_weighted_gap_of_bins() -> None:
    confidence, correct = np.array([0.95, 0.95, 0.95, 0.95, 0.55, 1.0]), np.array([1, 1, 1, 0, 0, 1])
    # (14/15, 1]: 0.96 against 0.8 of five; (8/15, 9/15]: 0.55 against 0 of one
    assert expected_calibration_error(confidence, correct) == pytest.approx((5 * 0.16 + 0.55) / 6)


@pytest.mark.parametrize("seed", range(2))
def test_the_threshold_has_the_highest_f1(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.random(300) < 0.2
    probabilities = np.round(np.clip(0.25 + 0.2 * truth + 0.15 * rng.normal(size=300), 0, 1), 2)
    best = max(reference.f1_score(truth, probabilities > each / 200) for each in range(201))
    threshold = fit_threshold(probabilities, truth)
    assert reference.f1_score(truth, probabilities > threshold) == pytest.approx(best)


def test_a_half_stays_where_it_is_as_good() -> None:
    assert fit_threshold(np.array([0.9, 0.8, 0.3, 0.2]), np.array([True, True, False, False])) == 0.5
    assert fit_threshold(np.array([0.4, 0.3, 0.2, 0.1]), np.array([True, True, False, False])) == pytest.approx(0.25)


def test_the_threshold_of_a_rare_class_is_between_0_and_1() -> None:
    probabilities, truth = np.array([3e-6, 1e-6, 0, 0], np.float32), np.array([True, False, False, False])
    assert fit_threshold(probabilities, truth) == pytest.approx(2e-6)
    assert 0 < fit_threshold(np.zeros(3, np.float32), np.array([True, False, False])) < 1e-30
    assert np.float32(0) < np.float32(fit_threshold(np.ones(2, np.float32), np.array([True, True]))) < np.float32(1)
