"""Class weights in the loss of a classifier: balanced, or given for each label."""

import torch
from torch import Tensor

from keel.config import unknown_name
from keel.data.examples import Labels
from keel.data.label_kinds import MultiLabel, SingleLabel, parse_number
from keel.errors import UsageError

NONE, BALANCED = "none", "balanced"


def check_class_weights(setting: str, labels: Labels) -> None:
    """Refuse weights of unknown labels, and those of labels that are no classes."""
    if setting == NONE:
        return
    if not isinstance(labels.kind, SingleLabel | MultiLabel):
        raise UsageError("--class-weights are for classes, and these labels are numbers: leave it out")
    if setting != BALANCED:
        _parse_weights(setting, labels.names)


def class_weights(setting: str, labels: Labels, targets: Tensor) -> Tensor | None:
    """Weights as `LabelKind.loss` takes them: their mean over the training examples is 1, so that the learning rate
    keeps its meaning."""
    if setting == NONE:
        return None
    if setting == BALANCED:
        return labels.kind.balanced_weights(targets, len(labels.names))
    given = _parse_weights(setting, labels.names)
    weights = torch.tensor([given.get(name, 1.0) for name in labels.names])
    if isinstance(labels.kind, MultiLabel):  # the weight of a label where it is present
        weights = torch.stack([torch.ones_like(weights), weights])
        return weights / torch.where(targets > 0, weights[1], weights[0]).mean()
    return weights / weights[targets].mean()


def _parse_weights(setting: str, names: tuple[str, ...]) -> dict[str, float]:
    """The weights in "spam=5,ham=1"; labels that are not named have 1."""
    given: dict[str, float] = {}
    for part in setting.split(","):
        name, _, value = part.rpartition("=")
        weight = parse_number(value)
        if not name or weight is None or weight <= 0:
            raise UsageError(
                f"--class-weights {part!r}: give balanced, or a weight above 0 for labels, as in spam=5,ham=1"
            )
        if name.strip() not in names:
            raise unknown_name(name.strip(), names, "--class-weights")
        given[name.strip()] = weight
    return given
