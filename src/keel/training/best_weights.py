"""The weights of the best evaluation of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from keel.training.distributed import shard_like
from keel.training.objective import Objective

PREFIX = "best."


@dataclass
class BestWeights:
    """A copy of all weights, on their device."""

    weights: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, objective: Objective) -> None:
        self.weights = {name: value.detach().clone() for name, value in objective.state_dict().items()}

    @torch.no_grad()
    def apply(self, objective: Objective) -> None:
        """Replace the weights by the copy."""
        for name, value in objective.state_dict().items():
            value.copy_(self.weights[name])

    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name, for a checkpoint; empty before the first evaluation."""
        return {PREFIX + name: value for name, value in self.weights.items()}

    def restore(self, tensors: Mapping[str, Tensor], objective: Objective) -> None:
        """Restore from a checkpoint's tensors, on the devices of the weights; other names are ignored."""
        if any(name.startswith(PREFIX) for name in tensors):
            weights = objective.state_dict()
            self.weights = {name: shard_like(tensors[PREFIX + name], value) for name, value in weights.items()}
