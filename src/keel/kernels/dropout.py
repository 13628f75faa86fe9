"""Which elements a dropout keeps: a hash of (seed, salt, plane, row, column), the same here and in the kernels.

Each row is hashed once; columns then step by the golden ratio, so that an element costs one shift and one product.
"""

import torch
from torch import Tensor

from keel.kernels.triton_support import tl, triton

MASK = 2**32 - 1


def threshold(p: float) -> int:
    """Elements whose 32-bit hash is below it are dropped."""
    return round(p * 2**32)


def hash_dropout(x: Tensor, p: float, seed: Tensor | None, salt: int) -> Tensor:
    """Eager twin: dropout with probability p on x [..., rows, columns], scaled by 1 / (1 - p)."""
    if p == 0:
        return x
    assert seed is not None, "dropout needs a seed"
    *planes, rows, columns = x.shape
    kept = dropout_mask(seed, salt, planes, rows, columns, p)
    return torch.where(kept, x / (1 - p), 0.0)


def dropout_mask(seed: Tensor, salt: int, planes: list[int], rows: int, columns: int, p: float) -> Tensor:
    """[*planes, rows, columns] bool: True where an element is kept."""
    count = torch.Size(planes).numel()
    key = _join(_join(_join(torch.zeros_like(seed), seed & MASK), (seed >> 32) & MASK), torch.full_like(seed, salt))
    key = _join(key, torch.arange(count, device=seed.device)).view(*planes, 1, 1)
    row = _join(key, torch.arange(rows, device=seed.device)[:, None])
    x = (row + torch.arange(columns, device=seed.device) * 0x9E3779B9) & MASK
    return ((x ^ x >> 13) * 0x846CA68B & MASK) >= threshold(p)


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
def row_hash(key, row):
    return join(key, row)


@triton.jit
def is_kept(hashed, column, threshold):
    """True where an element is kept, from its row's hash and its column, broadcast."""
    x = hashed + tl.cast(column, tl.uint32) * 0x9E3779B9
    return (x ^ (x >> 13)) * 0x846CA68B >= threshold
