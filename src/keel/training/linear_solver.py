"""Regularised linear models of fixed features: L-BFGS on the whole dataset, L2 strength by cross-validation.

The problem is convex: no learning rate and no epochs are needed, and the solution does not depend on an order of
examples or on initial weights.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Losses = Callable[[Tensor, Tensor], Tensor]
"""[examples] losses of logits [examples, outputs] and targets [examples, ...]."""
Choice = Callable[[Tensor, Tensor], int]
"""The chosen setting by held-out errors [settings, examples] and losses [settings]."""
STRENGTHS = tuple(4.0**-power for power in range(-1, 6))
"""Candidates of the L2 strength, strongest first."""
DENSE_STRENGTHS = tuple(4.0**-power for power in range(-4, 6))
"""The same for dense vectors, which are all noise for some tasks: the strongest leaves little but the bias."""
FOLDS = 5
HELD_OUT_FROM = 20_000
"""Groups of examples from which a tenth is held out once: cross-validation would take long and tell no more."""
UNTUNED = 1.0
"""L2 strength where nothing can be held out."""
MAX_JOINT_BYTES = 1 << 23
"""Weights of all folds up to which they are solved together: L-BFGS needs about 40 times this memory."""
ITERATIONS, HISTORY, TOLERANCE = 100, 8, 1e-5
TOLERANCE_CHANGE, DENSE_TOLERANCE_CHANGE = 1e-7, 1e-9
"""Change of loss or weights below which L-BFGS stops. At weak strengths the first step from the solution of the one
before changes little; for dense vectors 1e-7 would end the path of strengths there."""


class SparseRows(NamedTuple):
    """A sparse matrix [rows, width] in CSR format."""

    starts: Tensor  # [rows + 1]
    columns: Tensor
    values: Tensor
    width: int

    @property
    def matrix(self) -> Tensor:
        size = len(self.starts) - 1, self.width
        with warnings.catch_warnings():  # "sparse CSR tensor support is in beta state"
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_csr_tensor(self.starts, self.columns, self.values, size, check_invariants=False)

    @property
    def transposed(self) -> Tensor:
        """The transposed matrix, in CSR format too."""
        order = torch.argsort(self.columns, stable=True)
        rows = torch.arange(len(self.starts) - 1).repeat_interleave(self.starts.diff())
        counts = torch.bincount(self.columns, minlength=self.width)
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return SparseRows(starts, rows[order], self.values[order], len(self.starts) - 1).matrix


class LinearFit(NamedTuple):
    """A solution: logits = features @ weight + bias."""

    weight: Tensor  # [width, outputs]
    bias: Tensor  # [outputs]
    l2: float
    errors: tuple[float, ...] = ()
    """Mean error on the held-out examples of each fold; empty where the strength was given."""


def fit_linear(
    rows: SparseRows | Tensor,
    targets: Tensor,
    outputs: int,
    losses: Losses,
    l2: float,
    seed: int,
    errors: Losses | None = None,
    *,
    groups: np.ndarray,
    strengths: Sequence[float] = STRENGTHS,
    choose: Choice | None = None,
) -> LinearFit:
    """Minimise the sum of losses + l2 / 2 ||weight||^2: for classes, l2 is 1 / C in scikit-learn, but 2 / C for two,
    which have one vector of weights there and two opposite ones here. `rows` may be a dense matrix [examples, width].

    l2 = 0: the strength that `choose` (default: `within_one_standard_error`) takes by held-out errors, or losses.
    `groups` [examples] numbers from 0 what a fold does not divide; a single group cannot be held out, and l2 is 1 then.
    """
    if isinstance(rows, Tensor):
        width, used = rows.shape[1], torch.arange(rows.shape[1])
        problem = _Problem(rows, rows.T, targets, outputs, DENSE_TOLERANCE_CHANGE)
    else:  # columns without values would only take time
        width, (used, columns) = rows.width, rows.columns.unique(return_inverse=True)
        narrow = rows._replace(columns=columns, width=len(used))
        problem = _Problem(narrow.matrix, narrow.transposed, targets, outputs)
    fold_errors: tuple[float, ...] = ()
    if not l2 and groups.max() == 0:
        l2 = UNTUNED
    elif not l2:
        held_out = _held_out(groups, seed)  # [examples, folds]
        losses_of, errors_of = problem.cross_validate(losses, errors or losses, held_out, strengths)
        measured = errors_of.sum(2)[:, held_out.sum(1) > 0], losses_of.sum((1, 2))
        chosen = (choose or within_one_standard_error)(*measured)
        l2, fold_errors = strengths[chosen], tuple((errors_of[chosen].sum(0) / held_out.sum(0)).tolist())
    solution = problem.zeros(1)
    for strength in [*(each for each in strengths if fold_errors and each > l2), l2]:  # as in cross-validation
        solution = problem.solve(losses, torch.ones(len(targets), 1), strength, solution)
    weight = torch.zeros(width, outputs).index_copy_(0, used, solution[:-1])
    return LinearFit(weight, solution[-1], l2, fold_errors)


def within_one_standard_error(errors: Tensor, losses: Tensor) -> int:
    """The setting of least loss among those whose error is within one standard error of the best one's.

    `errors` [settings, examples] and `losses` [settings] are measured on the same held-out examples, so the standard
    error is that of the difference.
    """
    worse = errors - errors[errors.mean(1).argmin()]
    tolerated = worse.mean(1) <= worse.std(1) / worse.shape[1] ** 0.5
    return int(losses.where(tolerated, torch.inf).argmin())


def least_smoothed_error(errors: Tensor, losses: Tensor) -> int:
    """The setting of least error after averaging each with its two neighbours, ties by loss.

    At an end of the path the setting is its own neighbour.
    `errors` [settings, examples] and `losses` [settings] are in the order of the path.
    """
    sums = errors.double().sum(1)
    smoothed = torch.cat([sums[:1], sums, sums[-1:]]).unfold(0, 3, 1).sum(1)
    tied = smoothed <= smoothed.min() * (1 + 1e-6)
    return int(losses.where(tied, torch.inf).argmin())


def _held_out(groups: np.ndarray, seed: int) -> Tensor:
    """[examples, folds] 1 where an example is held out."""
    count = int(groups.max()) + 1
    order = np.random.default_rng(seed).permutation(count)[groups]
    folds = min(FOLDS, count)
    if count >= HELD_OUT_FROM:
        return torch.from_numpy((order < count // 10)[:, None].astype(np.float32))
    return torch.from_numpy((order[:, None] % folds == np.arange(folds)).astype(np.float32))


@dataclass(frozen=True)
class _Problem:
    """Several solutions at once, such as those of all folds, in the columns of one matrix of weights."""

    matrix: Tensor  # [examples, width]
    transposed: Tensor
    targets: Tensor
    outputs: int
    tolerance_change: float = TOLERANCE_CHANGE

    def zeros(self, solutions: int) -> Tensor:
        """[width + 1, solutions * outputs]: weights, and the biases below them."""
        return torch.zeros(self.matrix.shape[1] + 1, solutions * self.outputs)

    def logits(self, weights: Tensor) -> Tensor:
        """[examples, solutions * outputs]"""
        return self.matrix @ weights[:-1] + weights[-1]

    def cross_validate(self, losses: Losses, errors: Losses, held_out: Tensor, strengths: Sequence[float]) -> Tensor:
        """[2, strengths, examples, folds]: losses, then errors, of held-out examples; 0 for others."""
        together = self.zeros(1).nbytes * held_out.shape[1] <= MAX_JOINT_BYTES
        found: list[Tensor] = []
        for part in [held_out] if together else held_out.split(1, dim=1):
            weights, measured = self.zeros(part.shape[1]), []
            for strength in strengths:  # each starts from the solution of the one before
                weights = self.solve(losses, 1 - part, strength, weights)
                logits = self.logits(weights)
                measured.append(torch.stack([self._measure(each, logits) * part for each in (losses, errors)]))
            found.append(torch.stack(measured, 1))
        return torch.cat(found, 3)

    def _measure(self, measure: Losses, logits: Tensor) -> Tensor:
        """[examples, solutions] losses or errors."""
        solutions = logits.shape[1] // self.outputs
        targets = self.targets.repeat_interleave(solutions, 0)
        return measure(logits.view(-1, self.outputs), targets).view(-1, solutions)

    def solve(self, losses: Losses, used: Tensor, l2: float, start: Tensor) -> Tensor:
        """The solutions, from `start`; `used` [examples, solutions] weighs the examples of each."""
        weights = start.clone().requires_grad_(True)
        share, penalty = used / used.sum(0), l2 / float(used.sum(0).mean())
        optimizer = torch.optim.LBFGS(
            [weights],
            max_iter=ITERATIONS,
            history_size=HISTORY,
            tolerance_grad=TOLERANCE,
            tolerance_change=self.tolerance_change,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            with torch.no_grad():
                logits = self.logits(weights)
            logits.requires_grad_(True)
            with torch.enable_grad():
                total = (self._measure(losses, logits) * share).sum()
            (slope,) = torch.autograd.grad(total, logits)
            with torch.no_grad():
                slopes = self.transposed @ slope + penalty * weights[:-1]
                weights.grad = torch.cat([slopes, slope.sum(0, keepdim=True)])
                return total + penalty / 2 * weights[:-1].square().sum()

        optimizer.step(closure)
        return weights.detach()
