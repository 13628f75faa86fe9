"""Calibration of probabilities on validation examples: temperature scaling, decision threshold, calibration error.

Guo et al. 2017, On Calibration of Modern Neural Networks: p = softmax(z / T) with the T that minimises the negative
log-likelihood. The most probable label stays the same.
"""

import numpy as np
from torch import Tensor
from torch.nn import functional as F

BINS = 15
TEMPERATURES = (0.2, 10.0)
"""The bounds of a temperature: where all validation examples are right, the likelihood has no maximum."""
DEFAULT_THRESHOLD = 0.5
INSIDE = float(np.finfo(np.float32).tiny), 1 - float(np.finfo(np.float32).epsneg)
"""Bounds of a threshold, which is above 0 and below 1 also in single precision."""


def fit_temperature(logits: Tensor, targets: Tensor, *, sigmoid: bool = False) -> float:
    """The temperature of these logits [examples, classes] with the lowest negative log-likelihood.

    `targets` are class ids [examples] or, with `sigmoid`, multi-hot [examples, classes]. The negative log-likelihood is
    convex in 1 / T: its derivative has one zero, which bisection finds.
    """
    logits = logits.double()
    truth = targets.double() if sigmoid else F.one_hot(targets, logits.shape[1]).double()
    low, high = 1 / TEMPERATURES[1], 1 / TEMPERATURES[0]
    for _ in range(50):
        middle = (low + high) / 2
        scaled = logits * middle
        probabilities = scaled.sigmoid() if sigmoid else scaled.softmax(1)
        derivative = ((probabilities - truth) * logits).sum()
        low, high = (middle, high) if derivative < 0 else (low, middle)
    return 2 / (low + high)


def fit_threshold(probabilities: np.ndarray, truth: np.ndarray) -> float:
    """The threshold of probabilities with the highest F1: predicted is what lies above it; 0.5 if that is as good."""
    order = np.argsort(-probabilities, kind="stable")
    values, hits = probabilities[order].astype(np.float64), np.cumsum(truth[order])
    last_of_equal = np.append(values[:-1] > values[1:], True)
    f1 = np.where(last_of_equal, 2 * hits / (np.arange(1, len(values) + 1) + max(1, hits[-1])), 0.0)
    above = int(np.count_nonzero(values > DEFAULT_THRESHOLD))
    best = int(f1.argmax())
    if above and f1[above - 1] >= f1[best]:
        return DEFAULT_THRESHOLD
    after = values[best + 1] if best + 1 < len(values) else 0.0
    return float(np.clip((values[best] + after) / 2, *INSIDE))


def expected_calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """The mean difference between confidence and accuracy over equal-width bins, weighted by their sizes."""
    number = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(number, confidence, BINS) - np.bincount(number, correct, BINS)
    return float(np.abs(gaps).sum() / len(confidence))
