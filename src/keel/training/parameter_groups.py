"""Layer groups of a network, from the head down to the embeddings: layer-wise learning rates (discriminative
fine-tuning) and gradual unfreezing (both Howard and Ruder 2018). Embeddings tied to the softmax belong to the head."""

from typing import Any

from torch import nn

from keel.errors import UsageError
from keel.training.objective import Objective
from keel.training.plan import StepPlan, Train


def layer_groups(objective: Objective) -> list[list[nn.Parameter]]:
    """Trainable parameters: those above the blocks, each block from the top down, those below the blocks."""
    groups: list[list[nn.Parameter]] = []
    seen: set[nn.Parameter] = set()
    # Input parameters belong to the bottom group even where the output shares them.
    for weights in (
        objective.input_parameters(),
        *(block.parameters() for block in objective.blocks()),
        objective.parameters(),
    ):
        groups.append([weight for weight in weights if weight.requires_grad and weight not in seen])
        seen.update(groups[-1])
    return [group for group in reversed(groups) if group]


def lr_multipliers(objective: Objective, train: Train) -> dict[nn.Parameter, float]:
    """Learning rate multiplier of each parameter: layer_decay ** depth, with depth 0 for the head; more for those with
    a smallest learning rate."""
    groups = layer_groups(objective)
    if train.layer_decay != 1 and len(groups) < 2:
        raise UsageError("--layer-decay needs at least two layer groups, and this network has one: leave it out")
    multipliers = {weight: train.layer_decay**depth for depth, group in enumerate(groups) for weight in group}
    least = {weight: lr / train.lr for weight, lr in objective.least_lrs().items() if weight in multipliers}
    return multipliers | {weight: max(multipliers[weight], share) for weight, share in least.items()}


class ParameterGroups:
    """Layer groups trained at a step: all, or with `unfreeze = "gradual"` one more per epoch, from the head down."""

    def __init__(self, objective: Objective, data: Any, train: Train):
        self.groups = layer_groups(objective)
        self.trainable = len(self.groups)
        """Number of groups that are trained now."""
        self.epoch_size = 0
        """Examples per epoch; 0 without gradual unfreezing."""
        if train.unfreeze == "none":
            return
        if len(self.groups) < 2:
            raise UsageError("--unfreeze needs at least two layer groups, and this network has one: leave it out")
        if len(objective.phases()) > 1:
            raise UsageError("--unfreeze counts epochs, but this pre-training has several phases: leave it out")
        self.epoch_size = objective.epoch_size(data)

    def __len__(self) -> int:
        return len(self.groups)

    def trainable_at(self, step_plan: StepPlan) -> int:
        """Number of groups that are trained at this step."""
        return min(len(self), step_plan.first_example // self.epoch_size + 1) if self.epoch_size else len(self)

    def set_trainable(self, step_plan: StepPlan | None) -> bool:
        """Unfreeze the groups trained at this step (None: all groups); returns whether anything changed."""
        count = self.trainable_at(step_plan) if step_plan else len(self)
        changed = count != self.trainable
        self.trainable = count
        if changed:
            for depth, group in enumerate(self.groups):
                for weight in group:
                    weight.requires_grad_(depth < count)
        return changed
