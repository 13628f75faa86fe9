"""Averaged weights: the mean over the last steps of a run is often better than where it ends."""

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
    """The running mean of all trained weights, in fp32 and where they are; nothing here waits for a GPU."""

    count: int = 0
    means: dict[str, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def add(self, objective: Objective) -> None:
        """mean <- mean + (weights - mean) / n, the n-th time."""
        self.count += 1
        weights = {name: parameter.detach().float() for name, parameter in _trained(objective).items()}
        if self.count == 1:
            self.means = {name: weight.clone() for name, weight in weights.items()}
        else:
            now = [weights[name] for name in self.means]
            torch._foreach_lerp_([*self.means.values()], now, 1 / self.count)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def apply(self, objective: Objective) -> None:
        """Put the mean, if there is one, in the place of the weights."""
        trained = _trained(objective)
        for name, mean in self.means.items():
            trained[name].copy_(mean)

    def tensors(self) -> dict[str, Tensor]:
        """All of it by names of its own, for a checkpoint; empty before the first weights came."""
        if not self.count:
            return {}
        return {COUNT: torch.tensor(self.count), **{PREFIX + name: mean for name, mean in self.means.items()}}

    def restore(self, tensors: Mapping[str, Tensor], objective: Objective) -> None:
        """Go on from what `tensors` gave, placed as the objective's weights are; other names are passed over."""
        if COUNT in tensors:
            self.count = int(tensors[COUNT])
            self.means = {
                name: shard_like(tensors[PREFIX + name], weight) for name, weight in _trained(objective).items()
            }


def _trained(objective: Objective) -> dict[str, Tensor]:
    """By name; a state dict makes shards again of what an evaluation may have left whole."""
    return {name: value for name, value in objective.state_dict(keep_vars=True).items() if value.requires_grad}
