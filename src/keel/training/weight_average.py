"""Weight averaging over the last steps of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from keel.training.distributed import shard_like
from keel.training.objective import Objective

COUNT = "averaged"
PREFIX = "average."


@dataclass
class WeightAverage:
    """Running mean of all trained weights, in fp32 on their device; never synchronizes with a GPU."""

    count: int = 0
    means: dict[str, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def add(self, objective: Objective) -> None:
        """mean <- mean + (weights - mean) / n, at the n-th call."""
        self.count += 1
        weights = {name: parameter.detach().float() for name, parameter in _trained(objective).items()}
        if self.count == 1:
            self.means = {name: weight.clone() for name, weight in weights.items()}
        else:
            now = [weights[name] for name in self.means]
            torch._foreach_lerp_([*self.means.values()], now, 1 / self.count)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def apply(self, objective: Objective) -> None:
        """Replace the weights by their mean, if there is one."""
        trained = _trained(objective)
        for name, mean in self.means.items():
            trained[name].copy_(mean)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name, for a checkpoint; empty before the first `add`."""
        if not self.count:
            return {}
        return {COUNT: torch.tensor(self.count), **{PREFIX + name: mean for name, mean in self.means.items()}}

    def restore(self, tensors: Mapping[str, Tensor], objective: Objective) -> None:
        """Restore from a checkpoint's tensors, on the devices of the weights; other names are ignored."""
        if COUNT in tensors:
            self.count = int(tensors[COUNT])
            trained = _trained(objective)
            self.means = {name: shard_like(tensors[PREFIX + name], weight) for name, weight in trained.items()}


def _trained(objective: Objective) -> dict[str, Tensor]:
    """By name; FSDP's state_dict reshards what an evaluation may have left unsharded."""
    return {name: value for name, value in objective.state_dict(keep_vars=True).items() if value.requires_grad}
