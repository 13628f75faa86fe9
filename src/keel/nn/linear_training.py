"""Training of a task's last linear layer on fixed features as a convex problem, inside the one training loop."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from keel.data.label_kinds import SingleLabel
from keel.training.counter_rng import CounterRng, derive_seed
from keel.training.linear_solver import (
    DENSE_STRENGTHS,
    FOLDS,
    STRENGTHS,
    Choice,
    SparseRows,
    fit_linear,
    least_smoothed_error,
    within_one_standard_error,
)
from keel.training.objective import CustomUpdate, State, Sums


class LinearTraining(CustomUpdate):
    """One step solves the problem for all examples."""

    nondeterministic: ClassVar[bool] = False
    strengths: ClassVar[Sequence[float]] = STRENGTHS
    choose_class_strength: Choice = staticmethod(within_one_standard_error)
    """Chooses the L2 strength by classification errors; without classes, the one of least loss is taken."""

    def __init__(self, task: Any, l2: float = 0.0):
        super().__init__()
        self.task, self.l2 = task, l2
        self.strength = nn.Buffer(torch.zeros(1))
        """The L2 strength that cross-validation chose; 0: none yet."""
        self.fold_errors = nn.Buffer(torch.full((FOLDS,), -1.0))
        """Mean error on the held-out examples of each fold; -1 without them."""

    def features(self, data: Any) -> SparseRows | Tensor:
        """The features of all sequences of the dataset."""
        raise NotImplementedError

    def example_indices(self, data: Any) -> np.ndarray:
        """[rows of the features] the example of each."""
        return data.example_indices

    def store(self, weight: Tensor, bias: Tensor) -> None:
        """Set the classifier to the solution, weight [outputs, width]."""
        self.task.classifier.weight.copy_(weight)
        self.task.classifier.bias.copy_(bias)

    def epoch_size(self, data: Any) -> int:
        return 1  # one step of any batch size

    def batch(self, data: Any, rng: CounterRng, examples: range) -> Any:
        return self.task.batch(data, rng, examples)

    def counts(self, batch: Any) -> dict[str, Tensor]:
        return self.task.counts(batch)

    def forward(self, batch: Any, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        return self.task(batch, state)

    def update(self, data: Any, rng: CounterRng, examples: range, lr: float, threads: int) -> Sums:
        kind = self.task.labels.kind
        self.task.setup(data)  # class weights
        indices = self.example_indices(data)
        rows, targets = self.features(data), data.targets[torch.from_numpy(indices)]
        with torch.no_grad():
            errors = self._class_errors if isinstance(kind, SingleLabel) else None
            seed, losses = derive_seed(rng.seed, "folds"), self.task.example_losses
            groups, outputs = text_groups(data.examples, indices), self.task.labels.outputs
            choose = self.choose_class_strength if errors else None
            found = fit_linear(
                rows, targets, outputs, losses, self.l2, seed, errors,
                groups=groups, strengths=self.strengths, choose=choose,
            )  # fmt: skip
            weight = found.weight.T.contiguous()
            self.store(weight, found.bias)
            self.strength.fill_(found.l2)
            self.fold_errors[: len(found.errors)] = torch.tensor(found.errors)
            matrix = rows if isinstance(rows, Tensor) else rows.matrix
            loss = self.task.example_losses(matrix @ weight.T + found.bias, targets).mean()
        counts = float(len(data))
        return {"loss": float(loss) * counts}, {"loss": counts, "examples": counts}

    def notes(self) -> list[str]:
        if not bool((self.fold_errors >= 0).any()):
            return []
        strength, labels = float(self.strength), self.task.labels
        inverse = f" (C = {(2 if labels.outputs == 2 else 1) / strength:g} in scikit-learn)"
        shown = inverse if isinstance(labels.kind, SingleLabel) else ""
        return [f"L2 regularisation {strength:g}{shown}, chosen by cross-validation"]

    def fold_scores(self) -> dict[str, Any] | None:
        """Accuracy on the held-out examples of each fold, if there were folds and classes."""
        if not isinstance(self.task.labels.kind, SingleLabel):
            return None
        main = "accuracy" if self.task.class_weights is None else "weighted_accuracy"
        return fold_accuracies(self.fold_errors[self.fold_errors >= 0].tolist(), main)

    def _class_errors(self, logits: Tensor, targets: Tensor) -> Tensor:
        wrong = (logits.argmax(1) != targets).float()
        return wrong if self.task.class_weights is None else wrong * self.task.class_weights[targets]


class FrozenEncoderTraining(LinearTraining):
    """Logistic or ridge regression on the vectors of a frozen encoder.

    They are centred and scaled to a mean squared length of 1, so that an L2 strength means the same for every encoder.
    """

    any_device: ClassVar[bool] = True
    strengths = DENSE_STRENGTHS
    choose_class_strength = staticmethod(least_smoothed_error)

    def features(self, data: Any) -> Tensor:
        found = self.task.classifier_inputs(data).float().cpu()  # [examples, width]
        self.center = found.mean(0)
        centered = found - self.center
        self.scale = max(1e-12, float(centered.square().sum(1).mean().sqrt()))
        return centered / self.scale

    def example_indices(self, data: Any) -> np.ndarray:
        return np.arange(len(data.examples))

    def store(self, weight: Tensor, bias: Tensor) -> None:
        scaled = weight / self.scale
        super().store(scaled, bias - scaled @ self.center)


def fold_accuracies(errors: Sequence[float], main: str = "accuracy") -> dict[str, Any] | None:
    """The mean and each value of 1 - error, for the model card; None for fewer than two folds."""
    if len(errors) < 2:
        return None
    values = [1 - error for error in errors]
    return {"main": main, "mean": mean(values), "std": stdev(values), "values": values}


def text_groups(examples: Any, indices: np.ndarray) -> np.ndarray:
    """[rows] the number of each one's text: duplicates, and the windows of a text, share it."""
    numbers: dict[str, int] = {}
    groups = [numbers.setdefault(key, len(numbers)) for key in examples.text_keys()]
    return np.array(groups)[indices]
