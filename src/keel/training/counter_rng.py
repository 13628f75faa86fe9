"""Counter-based random numbers: a hash of (seed, step, example index), equal on any device and number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood 2014), its odd constants as signed integers: int64 products wrap alike on CPU and GPU.
GAMMA = -0x61C8864680B583EB
FIRST, SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
MASK = 2**64 - 1


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift (torch's own keeps the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer."""
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)


def _constant_for_compiler(function: Callable[..., int]) -> Callable[..., int]:
    # What torch.compiler.assume_constant_result does, but that would import the compiler.
    vars(function)["_dynamo_marked_constant"] = True
    return function


@_constant_for_compiler
def _word(*parts: int | str) -> int:
    """Signed 64-bit key of several parts, by the same mixing in Python integers."""
    return _mixed(parts)


@lru_cache(maxsize=256)
def _mixed(parts: tuple[int | str, ...]) -> int:
    key = 0
    for part in parts:
        key = (key ^ _number(part)) + GAMMA & MASK
        key = (key ^ key >> 30) * FIRST & MASK
        key = (key ^ key >> 27) * SECOND & MASK
        key ^= key >> 31
    return key - (key >> 63 << 64)


@_constant_for_compiler
def _number(part: int | str) -> int:
    return crc32(part.encode()) if isinstance(part, str) else part


def derive_seed(*parts: int | str) -> int:
    """Non-negative seed for `torch.manual_seed`, derived from these parts."""
    return _word(*parts) & (2**63 - 1)


def permute_index(index: Tensor, size: int, key: Tensor, rounds: int = 32) -> Tensor:
    """Image of `index` under a pseudo-random permutation of range(size) given by `key`, without storing it.

    Swap-or-not shuffle (Hoang, Morris, Rogaway 2012): each round pairs x with pivot - x and swaps the pair or not.
    """
    for round_ in range(rounds):
        round_key = mix(key + _word("round", round_))
        partner = torch.remainder((round_key & (2**62 - 1)) - index, size)
        swap = mix(torch.maximum(index, partner) ^ round_key) & 1
        index = torch.where(swap == 1, partner, index)
    return index


@dataclass(frozen=True, kw_only=True)
class CounterRng:
    """Random numbers of one step; every method takes example indices within the step."""

    seed: int
    step: int | Tensor
    first_example: int | Tensor
    """Examples of earlier steps: the offset of this step in the epoch order."""
    batch_size: int | Tensor = 0
    """Examples of this step, over all processes: the number of parallel streams."""
    phase: int = 0
    """Phase of training (see `Objective.phases`)."""
    steps: int | Tensor = 0
    """Planned steps of the run, for what changes with its progress; 0 outside of a run, as in evaluation."""

    def random_bits(self, name: str, examples: Tensor, count: int = 1) -> Tensor:
        """[examples, count] integers of 63 random bits, independent for each `name`."""
        column = torch.arange(count, device=examples.device)
        key = mix(examples * GAMMA + self._key(name))
        return mix(key[:, None] + column * GAMMA) & (2**63 - 1)

    def _key(self, name: str) -> int | Tensor:
        """Key of (seed, step, name); a step that is a tensor gives the same key on its device."""
        if isinstance(self.step, int):
            return _word(self.seed, self.step, name)
        key = mix((self.step ^ _word(self.seed)) + GAMMA)
        return mix((key ^ _number(name)) + GAMMA)

    def randint(self, name: str, examples: Tensor, high: Tensor | int, count: int = 1) -> Tensor:
        """[examples, count] integers from 0 to `high` - 1."""
        return self.random_bits(name, examples, count) % high

    def epoch_order(self, examples: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """[examples] indices into `size` items, each once per epoch in a new random order, and the epoch of each."""
        index = self.first_example + examples
        epoch = torch.div(index, size, rounding_mode="floor")
        return permute_index(index % size, size, mix(epoch * GAMMA + _word(self.seed, "epoch"))), epoch
