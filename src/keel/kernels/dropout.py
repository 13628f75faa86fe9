"""Which elements a dropout keeps: a hash of (seed, salt, plane, row, column), the same here and in the kernels.

Each row is hashed once; columns then step by the golden ratio, so that an element costs one shift and one product.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from keel.kernels.triton_support import tl, triton

MASK = 2**32 - 1


class HashDropout(NamedTuple):
    """Dropout with probability p on [..., rows, columns], scaled by 1 / (1 - p): the eager twin of what kernels do."""

    p: float = 0.0
    seed: Tensor | None = None
    salt: int = 0

    @property
    def threshold(self) -> int:
        """Elements whose 32-bit hash is below it are dropped."""
        return round(self.p * 2**32)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.where(self.mask(x.shape), x / (1 - self.p), 0.0) if self.p else x

    def mask(self, shape: Sequence[int]) -> Tensor:
        """[*planes, rows, columns] bool: True where an element is kept."""
        assert self.seed is not None, "dropout needs a seed"
        *planes, rows, columns = shape
        seed, device = self.seed, self.seed.device
        key = _join(
            _join(_join(torch.zeros_like(seed), seed & MASK), seed >> 32 & MASK), torch.full_like(seed, self.salt)
        )
        key = _join(key, torch.arange(math.prod(planes), device=device)).view(*planes, 1, 1)
        row = _join(key, torch.arange(rows, device=device)[:, None])
        x = (row + torch.arange(columns, device=device) * 0x9E3779B9) & MASK
        return ((x ^ x >> 13) * 0x846CA68B & MASK) >= self.threshold


NO_DROPOUT = HashDropout()


def _join(key: Tensor, value: Tensor) -> Tensor:
    """Hash of a key and a value: 32 bits (the constants of Wellons' lowbias32) in 64-bit integers."""
    x = ((key ^ value) + 0x9E3779B9) & MASK
    x = (x ^ x >> 16) * 0x7FEB352D & MASK
    x = (x ^ x >> 15) * 0x846CA68B & MASK
    return x ^ x >> 16


@triton.jit
def join(key, value):
    x = (key ^ tl.cast(value, tl.uint32)) + 0x9E3779B9
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def plane_key(seed, salt, plane):
    """Key of a plane of rows and columns, from a pointer to the seed."""
    value = tl.load(seed)
    key = join(tl.zeros([], tl.uint32), value)
    return join(join(join(key, value >> 32), salt), plane)


@triton.jit
def is_kept(hashed, column, threshold):
    """True where an element is kept, from its row's hash and its column, broadcast."""
    x = hashed + tl.cast(column, tl.uint32) * 0x9E3779B9
    return (x ^ (x >> 13)) * 0x846CA68B >= threshold


@triton.jit
def drop(x, key, row, column, threshold: tl.constexpr):
    """x / (1 - p) where an element of the plane is kept, else 0."""
    return tl.where(is_kept(join(key, row), column, threshold), x * (4294967296 / (4294967296 - threshold)), 0.0)
