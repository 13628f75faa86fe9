"""KV cache: the keys and values of earlier positions, so that decoding continues without reading them again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from keel.training.objective import Tensors


@dataclass(frozen=True, kw_only=True)
class KVCache(Tensors):
    """Keys and values of all layers. Decoding writes into it, so that it is used once; `index_select` copies."""

    memory: Tensor  # [batch, layers, 2, heads, capacity, head_dim]
    count: int = 0
    """Positions in use."""
    spare: int = 64
    """The capacity is a multiple of this."""
    graph: Callable[[Tensor, int], Tensor] | None = None
    """On a GPU: the decoding step captured over this memory."""

    @torch.no_grad()
    def index_select(self, index: Tensor) -> Self:
        """A copy of these sequences with room for the next position, as beam search makes at every step."""
        used = self.memory[..., : self.count, :]
        memory = self.memory.new_empty(len(index), *used.shape[1:4], self._capacity(self.count + 1), used.shape[5])
        torch.index_select(used, 0, index.to(memory.device), out=memory[..., : self.count, :])
        memory[..., self.count :, :] = 0
        return replace(self, memory=memory, graph=None)

    def with_room(self, time: int, most: int, dtype: torch.dtype) -> Self:
        """This cache with room for `time` more positions, of `most` in all.

        The capacity doubles, so that little is copied; unused positions are zero, as a graph reads all of them.
        """
        batch, layers, two, heads, capacity, head_dim = self.memory.shape
        if self.count + time <= capacity:
            return self
        capacity = min(most, max(2 * capacity, self._capacity(self.count + time)))
        memory = self.memory.new_zeros(batch, layers, two, heads, capacity, head_dim, dtype=dtype)
        memory[..., : self.count, :] = self.memory[..., : self.count, :]
        return replace(self, memory=memory, graph=None)

    def _capacity(self, positions: int) -> int:
        return -(-positions // self.spare) * self.spare

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer, each [batch, heads, positions, head_dim], with these appended."""
        memory, end = self.memory[:, layer], self.count + keys.shape[2]
        memory[:, 0, :, self.count : end] = keys
        memory[:, 1, :, self.count : end] = values
        return memory[:, 0, :, :end], memory[:, 1, :, :end]

    def advanced(self, time: int) -> Self:
        """The cache after every layer has written `time` more positions."""
        return replace(self, count=self.count + time)
