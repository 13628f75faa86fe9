"""Linear probes: multinomial logistic regression on standardised vectors, with the L2 strength chosen on held-out ones.

L-BFGS runs in the basis of the principal components, each scaled by the curvature that it would have for uniform
probabilities. Vectors of networks have few directions of large variance, and without this preconditioner L-BFGS
needs several times as many iterations for the same convex problem.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

STRENGTHS = tuple(4.0**-power for power in range(-3, 8))
"""Candidates of the L2 strength, strongest first."""
FIRST = 4
"""Index of the candidate that is tried first, unless a similar problem has another."""
HELD_OUT = 10
"""One in ten texts is held out to choose the strength."""
MIN_GROUPS = 2
"""Texts from which on one can be held out."""
ITERATIONS, CHUNK, HISTORY = 200, 5, 10
SMALLEST = 1e-6
"""Standard deviation up to which a column is constant."""
TOLERANCE, SEARCH_TOLERANCE = 3e-4, 2e-3
"""Relative decrease of the objective in a chunk of iterations below which L-BFGS stops; the same in the search."""


class Probe(NamedTuple):
    """A solution in the basis of the features: logits = rows @ weight + bias."""

    weight: Tensor  # [width, classes]
    bias: Tensor  # [classes]

    def predict(self, rows: Tensor) -> Tensor:
        """[examples] the most probable class."""
        return torch.addmm(self.bias, rows, self.weight).argmax(1)


@dataclass(frozen=True, eq=False)
class ProbeFeatures:
    """Standardised vectors for training and test, rotated to the principal components of the former."""

    train: Tensor  # [examples, width]
    test: Tensor  # [examples, width]
    variances: Tensor  # [width] of the principal components

    @classmethod
    def of(cls, train: Tensor, test: Tensor) -> Self:
        """From vectors [examples, width], fp32."""
        train, test = standardise(train, test)
        variances, rotation = torch.linalg.eigh(train.T @ train / len(train))
        return cls(train @ rotation, test @ rotation, variances.clamp(min=0))

    def select(self, train: Tensor, test: Tensor) -> Self:
        """The examples at these indices."""
        return replace(self, train=self.train[train], test=self.test[test])


def standardise(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Both without the mean and the standard deviation of each column of `train`, and divided by the square root of the
    width: the mean squared length is 1, so that an L2 strength means the same for any width."""
    mean, deviation = train.mean(0), train.std(0, correction=0)
    scale = torch.where(deviation > SMALLEST, train.shape[1] ** -0.5 / deviation, 0.0)
    return (train - mean) * scale, (test - mean) * scale


def fit_probe(
    rows: Tensor,
    variances: Tensor,
    targets: Tensor,
    classes: int,
    l2: float,
    *,
    start: Probe | None = None,
    tolerance: float = TOLERANCE,
) -> Probe:
    """Minimise the sum of -log p(target) + l2 / 2 ||weight||^2: l2 is 1 / C in scikit-learn.

    `variances` [width] are those of the columns of `rows` [examples, width], for the preconditioner.
    """
    count = len(rows)
    curvature = count / (2 * classes)  # a half of that of uniform probabilities, which it exceeds near the solution
    scale = (curvature * variances + l2).sqrt()[:, None]
    scale = torch.cat([scale, scale.new_full((1, 1), curvature**0.5)])
    if start is None:
        shares = (torch.bincount(targets, minlength=classes) + 1.0) / (count + classes)
        start = Probe(rows.new_zeros(rows.shape[1], classes), shares.to(rows).log())
    point = torch.cat([start.weight, start.bias[None]]) * scale
    optimizer = torch.optim.LBFGS(
        [point],
        max_iter=CHUNK,
        history_size=HISTORY,
        tolerance_grad=0,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
    index = torch.arange(count, device=rows.device)

    def closure() -> Tensor:
        weight, bias = (point / scale).tensor_split([len(point) - 1])
        logits = torch.addmm(bias, rows, weight)
        logits.sub_(logits.amax(1, keepdim=True))
        chosen = logits[index, targets]
        slope = logits.exp_()
        sums = slope.sum(1, keepdim=True)
        loss = (sums.log()[:, 0] - chosen).sum() + l2 / 2 * weight.square().sum()
        slope.div_(sums)
        slope[index, targets] -= 1
        point.grad = torch.cat([rows.T @ slope + l2 * weight, slope.sum(0, keepdim=True)]) / scale / count
        return loss / count

    before = float(closure())
    for _ in range(ITERATIONS // CHUNK):
        optimizer.step(closure)
        after = float(closure())
        if before - after <= tolerance * after:
            break
        before = after
    weight, bias = (point / scale).tensor_split([len(point) - 1])
    return Probe(weight, bias[0])


def choose_strength(
    rows: Tensor, variances: Tensor, targets: Tensor, classes: int, held_out: Tensor, first: int = FIRST
) -> tuple[int, Probe | None]:
    """The index of the L2 strength of least loss on the held-out examples ([examples] `held_out`), and its probe of the
    other examples; `first` if none are held out.

    From `first` the search descends to the next minimum; each probe starts from the one before.
    """
    if not held_out.any() or held_out.all():
        return first, None
    kept, tested = rows[~held_out], rows[held_out]
    best, found, lowest = first, None, float("inf")
    for numbers in (range(first, len(STRENGTHS)), range(first - 1, -1, -1)):
        probe = found
        for number in numbers:
            probe = fit_probe(
                kept, variances, targets[~held_out], classes, STRENGTHS[number], start=probe, tolerance=SEARCH_TOLERANCE
            )
            loss = float(cross_entropy(torch.addmm(probe.bias, tested, probe.weight), targets[held_out]))
            if loss >= lowest:
                break
            best, found, lowest = number, probe, loss
        if best > first:
            break
    return best, found


def held_out_groups(groups: np.ndarray, seed: int) -> Tensor:
    """[examples] True for those of a tenth of the groups; none is held out of a single group."""
    names, numbers = np.unique(groups, return_inverse=True)
    if len(names) < MIN_GROUPS:
        return torch.zeros(len(groups), dtype=torch.bool)
    chosen = np.random.default_rng(seed).permutation(len(names))[: -(-len(names) // HELD_OUT)]
    return torch.from_numpy(np.isin(numbers, chosen))
