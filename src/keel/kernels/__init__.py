"""Kernels for the GPU: each file holds one, beside its eager twin, the definition, which runs wherever Triton does not.

Products stay bias-free: the kernel after one adds its bias, so that the bias's gradient comes out of the same pass.
Dropout is a hash of (seed, salt, place), drawn again in the backward pass and never stored. No kernel uses atomics or
measures itself: the same input gives the same bits in every run.
"""

import torch
from torch import Tensor

from keel.kernels.language import INTERPRETED, PRESENT

_TYPES = (torch.bfloat16, torch.float16, torch.float32)


def usable(x: Tensor) -> bool:
    """Whether the kernels can take x; if not, the eager twins do the work."""
    return PRESENT and (x.is_cuda or INTERPRETED) and x.dtype in _TYPES
