"""Linear probes equal scikit-learn's logistic regression, and their strength is chosen on held-out texts."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import cross_entropy

from keel.explain.layers.linear_probe import (
    FIRST,
    STRENGTHS,
    ProbeFeatures,
    choose_strength,
    fit_probe,
    held_out_groups,
    standardise,
)


def problem(examples: int, width: int, classes: int, noise: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors with directions of very different variance, as networks have them, and labels that depend on them."""
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randn(examples, width, generator=random) @ torch.randn(width, width, generator=random)
    vectors = vectors * torch.logspace(0, -3, width) + 5
    truth = torch.randn(width, classes, generator=random)
    logits = standardise(vectors, vectors)[0] * width**0.5 @ truth
    return vectors, (logits + noise * width**0.5 * torch.randn(examples, classes, generator=random)).argmax(1)


@pytest.mark.parametrize("l2", [1.0, 1 / 16])
@pytest.mark.parametrize("classes", [3, 12])
def test_probe_equals_logistic_regression_of_scikit_learn(classes: int, l2: float) -> None:
    vectors, targets = problem(600, 24, classes)
    train, test = standardise(vectors[:500], vectors[500:])
    theirs = LogisticRegression(C=1 / l2, tol=1e-10, max_iter=5000).fit(train.double().numpy(), targets[:500].numpy())
    features = ProbeFeatures.of(vectors[:500], vectors[500:])
    ours = fit_probe(features.train, features.variances, targets[:500], classes, l2, tolerance=1e-8)
    probabilities = torch.addmm(ours.bias, features.test, ours.weight).softmax(1)
    assert np.abs(probabilities.numpy() - theirs.predict_proba(test.double().numpy())).max() < 2e-3
    weight = torch.from_numpy(theirs.coef_.T).float()

    def objective(rows: Tensor, weight: Tensor, bias: Tensor) -> float:
        return float(
            cross_entropy(rows @ weight + bias, targets[:500], reduction="sum") + l2 / 2 * weight.square().sum()
        )

    least = objective(train, weight, torch.from_numpy(theirs.intercept_).float())
    assert objective(features.train, ours.weight, ours.bias) == pytest.approx(least, rel=1e-5)
    default = fit_probe(features.train, features.variances, targets[:500], classes, l2)
    assert objective(features.train, default.weight, default.bias) == pytest.approx(least, rel=2e-3)
    agreement = default.predict(features.test).numpy() == theirs.predict(test.double().numpy())
    assert agreement.mean() >= 0.98


def test_start_does_not_change_the_solution() -> None:
    vectors, targets = problem(300, 10, 3)
    features = ProbeFeatures.of(vectors, vectors)
    arguments = features.train, features.variances, targets, 3
    cold = fit_probe(*arguments, 0.25, tolerance=1e-9)
    warm = fit_probe(*arguments, 0.25, start=fit_probe(*arguments, 16.0), tolerance=1e-9)
    assert (cold.weight - warm.weight).abs().max() < 1e-2 * cold.weight.abs().max()


def test_strength_follows_the_noise() -> None:
    found = []
    for noise in (0.0, 20.0):
        vectors, targets = problem(400, 30, 3, noise)
        features, held_out = ProbeFeatures.of(vectors, vectors), held_out_groups(np.arange(400), 0)
        number, probe = choose_strength(features.train, features.variances, targets, 3, held_out)
        assert probe is not None
        found.append(STRENGTHS[number])
    assert found[0] < found[1] / 16
    nothing = torch.zeros(400, dtype=torch.bool)
    assert choose_strength(features.train, features.variances, targets, 3, nothing) == (FIRST, None)


def test_texts_are_held_out_whole() -> None:
    groups = np.repeat(np.arange(40), 5)
    chosen = held_out_groups(groups, 1).numpy()
    assert chosen.sum() == 4 * 5
    assert all(len({*chosen[groups == group]}) == 1 for group in range(40))
    assert not held_out_groups(np.zeros(7), 0).any()


def test_constant_columns_do_not_matter() -> None:
    vectors, targets = problem(200, 8, 3)
    constant = torch.cat([vectors, torch.full((200, 3), 7.0)], 1)
    features = ProbeFeatures.of(constant, constant)
    probe = fit_probe(features.train, features.variances, targets, 3, 0.25)
    assert torch.isfinite(probe.weight).all()
    assert (probe.predict(features.test) == targets).float().mean() > 0.5
