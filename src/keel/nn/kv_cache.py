"""What blocks that look back keep of the places before, so that a text is read on and not read again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from keel.training.objective import Tensors


@dataclass(frozen=True, kw_only=True)
class KVCache(Tensors):
    """The keys and values of all that each row has read. Going on from a state writes into it, so that it serves once;
    `take` makes a copy of the rows it is asked for."""

    memory: Tensor  # [rows, layers, 2, heads, room, head width]
    count: int = 0
    """Places in use."""
    spare: int = 64
    """Room is a multiple of so many places."""
    graph: Callable[[Tensor, int], Tensor] | None = None
    """On a GPU: the step over this very memory."""

    @torch.no_grad()
    def index_select(self, index: Tensor) -> Self:
        """With room for the next place: a search takes rows at each step, and copies what they have read once."""
        used = self.memory[..., : self.count, :]
        memory = self.memory.new_empty(len(index), *used.shape[1:4], self._room(self.count + 1), used.shape[5])
        torch.index_select(used, 0, index.to(memory.device), out=memory[..., : self.count, :])
        memory[..., self.count :, :] = 0
        return replace(self, memory=memory, graph=None)

    def with_room(self, time: int, most: int, dtype: torch.dtype) -> Self:
        """The same with room for so many places more, of `most` in all; it doubles, so that little is copied, and is
        zero where a graph looks at all of it."""
        rows, layers, two, heads, room, width = self.memory.shape
        if self.count + time <= room:
            return self
        room = min(most, max(2 * room, self._room(self.count + time)))
        memory = self.memory.new_zeros(rows, layers, two, heads, room, width, dtype=dtype)
        memory[..., : self.count, :] = self.memory[..., : self.count, :]
        return replace(self, memory=memory, graph=None)

    def _room(self, places: int) -> int:
        return -(-places // self.spare) * self.spare

    def layer(self, number: int) -> "LayerCache":
        return LayerCache(memory=self.memory[:, number], count=self.count)

    def advanced(self, time: int) -> Self:
        """The same when every layer has written so many places more."""
        return replace(self, count=self.count + time)


@dataclass(frozen=True, kw_only=True)
class LayerCache(Tensors):
    """What one layer keeps of the places before."""

    memory: Tensor  # [rows, 2, heads, room, head width]
    count: int

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, each [rows, heads, places, head width], with these of further places at the end."""
        end = self.count + keys.shape[2]
        self.memory[:, 0, :, self.count : end] = keys
        self.memory[:, 1, :, self.count : end] = values
        return self.memory[:, 0, :, :end], self.memory[:, 1, :, :end]
