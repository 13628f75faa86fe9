"""Randomness as a pure function: row r of step n is a hash of (seed, n, r), equal on any device or number of ranks."""

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
    """SplitMix64's finalizer: every bit of the input moves every bit of the output."""
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)


def _word(*parts: int | str) -> int:
    """One signed 64-bit key from several small parts: the same mixing, in Python's own integers."""
    return _mixed(parts)


# The compiler then takes the key as it is instead of following big integers (torch.compiler.assume_constant_result
# would do this, after importing all of the compiler).
_word._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@lru_cache(maxsize=256)
def _mixed(parts: tuple[int | str, ...]) -> int:
    key = 0
    for part in parts:
        key = (key ^ _number(part)) + GAMMA & MASK
        key = (key ^ key >> 30) * FIRST & MASK
        key = (key ^ key >> 27) * SECOND & MASK
        key ^= key >> 31
    return key - (key >> 63 << 64)


def _number(part: int | str) -> int:
    return crc32(part.encode()) if isinstance(part, str) else part


_number._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def derive_seed(*parts: int | str) -> int:
    """A non-negative seed for `torch.manual_seed`, another one for any other parts."""
    return _word(*parts) & (2**63 - 1)


def permute_index(index: Tensor, size: int, key: Tensor, rounds: int = 32) -> Tensor:
    """Where `index` goes in a pseudo-random permutation of range(size) chosen by `key`; nothing is stored.

    The swap-or-not shuffle (Hoang, Morris, Rogaway 2012): each round pairs x with pivot - x and swaps the pair or not.
    """
    for round_ in range(rounds):
        round_key = mix(key + _word("round", round_))
        partner = torch.remainder((round_key & (2**62 - 1)) - index, size)
        swap = mix(torch.maximum(index, partner) ^ round_key) & 1
        index = torch.where(swap == 1, partner, index)
    return index


@dataclass(frozen=True, kw_only=True)
class CounterRng:
    """The draws of one step; every method takes the rows' numbers within the step and gives one result a row."""

    seed: int
    step: int | Tensor
    first_example: int | Tensor
    """How many rows the steps before this one drew: what is read in order goes on from there."""
    batch_size: int | Tensor = 0
    """How many rows the step has in all: so many readers go through a stream side by side."""
    phase: int = 0
    """Which part of the training the step is in."""

    def random_bits(self, name: str, examples: Tensor, count: int = 1) -> Tensor:
        """[rows, count] integers of 63 random bits; `name` tells the draws of a row apart."""
        column = torch.arange(count, device=examples.device)
        key = mix(examples * GAMMA + self._key(name))
        return mix(key[:, None] + column * GAMMA) & (2**63 - 1)

    def _key(self, name: str) -> int | Tensor:
        """Of all draws of that name in the step; a step that is a tensor gives the same key on its own device."""
        if isinstance(self.step, int):
            return _word(self.seed, self.step, name)
        key = mix((self.step ^ _word(self.seed)) + GAMMA)
        return mix((key ^ _number(name)) + GAMMA)

    def randint(self, name: str, examples: Tensor, high: Tensor | int, count: int = 1) -> Tensor:
        """[rows, count] integers from 0 to `high` - 1."""
        return self.random_bits(name, examples, count) % high

    def epoch_order(self, examples: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """[rows] indices into `size` items, each once an epoch in an order of its own, and the epoch of each."""
        place = self.first_example + examples
        epoch = torch.div(place, size, rounding_mode="floor")
        return permute_index(place % size, size, mix(epoch * GAMMA + _word(self.seed, "epoch"))), epoch
