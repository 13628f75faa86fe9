"""What the loop asks of whatever it trains: batches, counts, losses."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from keel.train.draw import Draw

State = Any
"""What a recurrent or caching network hands from one call to the next; the loop passes it on without looking."""


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """A record of tensors that moves between devices as one."""

    def to(self, device: torch.device | str) -> Self:
        moved = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor | Tensors)
        }
        return replace(self, **moved)


class Objective(nn.Module):
    """A network with its batches and its losses. `data` is whatever it reads: the loop only passes it on."""

    def rows(self, data: Any) -> int:
        """How many rows make one epoch."""
        raise NotImplementedError

    def batch(self, data: Any, draw: Draw, rows: range) -> Tensors:
        """These rows of one step: a pure function of the draw's (seed, step) and of each row's number."""
        raise NotImplementedError

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """How many predictions each loss sums over, known before the forward pass."""
        raise NotImplementedError

    def forward(self, batch: Any, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        """Sums of losses by name (never means: the loop divides by the global counts) and the state to hand on."""
        raise NotImplementedError

    def blocks(self) -> list[nn.Module]:
        """The units that are compiled, sharded, unfrozen or given a rate of their own, from the input upwards."""
        return []
