"""Kernels for the GPU, each beside its eager twin, the definition, which runs wherever Triton does not.

The gradient of a product's bias comes out of the kernel after it, in the same pass, and mostly the bias goes in there.
Dropout is a hash of (seed, salt, place), drawn again in the backward pass and never stored. No kernel uses atomics or
measures itself: the same input gives the same bits in every run.
"""

from functools import cache

import torch
from torch import Tensor

from keel.kernels.triton_support import INTERPRETED, PRESENT

_TYPES = (torch.bfloat16, torch.float16, torch.float32)


def triton_usable(x: Tensor) -> bool:
    """Whether the kernels can take x; if not, the eager twins do the work."""
    if not PRESENT or x.dtype not in _TYPES:
        return False
    if not x.is_cuda:
        return INTERPRETED
    # Triton launches on the current device alone, and only what is younger than Volta and Turing is known to it.
    return x.device.index == torch.cuda.current_device() and _young(x.device.index)


@cache
def _young(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= (8, 0)
