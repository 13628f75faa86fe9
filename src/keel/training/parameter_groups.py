"""The levels of a network, from its head down to its words: each may have a rate of its own (discriminative rates) and
start to learn in an epoch of its own (gradual unfreezing; both Howard and Ruder 2018). Words that pre-training also
foretells by, as their table is the softmax too, are of its head."""

from typing import TYPE_CHECKING, Any

from torch import nn

from keel.errors import UsageError
from keel.training.objective import Objective

if TYPE_CHECKING:
    from keel.training.plan import StepPlan, Train


def layer_groups(objective: Objective) -> list[list[nn.Parameter]]:
    """All weights that learn: what stands above the blocks, each block from the top down, what stands below them."""
    found: list[list[nn.Parameter]] = []
    seen: set[nn.Parameter] = set()
    # What an objective calls its inputs is below, though it may serve as the output too.
    for weights in (
        objective.input_parameters(),
        *(block.parameters() for block in objective.blocks()),
        objective.parameters(),
    ):
        found.append([weight for weight in weights if weight.requires_grad and weight not in seen])
        seen.update(found[-1])
    return [level for level in reversed(found) if level]


def lr_multipliers(objective: Objective, train: "Train") -> dict[nn.Parameter, float]:
    """The share of the rate that each weight has: `layer_decay` to the power of its level, the head's being 0."""
    levels = layer_groups(objective)
    if train.layer_decay != 1 and len(levels) < 2:
        raise UsageError("this network learns in one level alone, so there is nothing for --layer-decay to tell apart")
    return {weight: train.layer_decay**number for number, level in enumerate(levels) for weight in level}


class ParameterGroups:
    """Which levels learn at a step: all, or with `unfreeze = "gradual"` one more each epoch, from the head down."""

    def __init__(self, objective: Objective, data: Any, train: "Train"):
        self.levels = layer_groups(objective)
        self.learning = len(self.levels)
        """How many do now."""
        self.epoch = 0
        """The rows of one, if it matters."""
        if train.unfreeze == "none":
            return
        if len(self.levels) < 2:
            raise UsageError("this network learns in one level alone, so there is nothing for --unfreeze to wait with")
        if len(objective.phases()) > 1:
            raise UsageError("--unfreeze counts epochs, and here the rows change in length on the way: leave it out")
        self.epoch = objective.epoch_size(data)

    def __len__(self) -> int:
        return len(self.levels)

    def reached(self, place: "StepPlan") -> int:
        """How many learn at `place`."""
        return min(len(self), place.first_example // self.epoch + 1) if self.epoch else len(self)

    def set(self, place: "StepPlan | None") -> bool:
        """Let those levels learn whose epoch has come at `place`, or without one all; whether that is a change."""
        count = self.reached(place) if place else len(self)
        changed = count != self.learning
        self.learning = count
        if changed:
            for number, level in enumerate(self.levels):
                for weight in level:
                    weight.requires_grad_(number < count)
        return changed
