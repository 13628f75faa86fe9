"""GPU kernels in Triton, each beside its eager twin, which defines it and runs wherever Triton does not.

A bias is mostly added by the kernel after its matrix product, which also computes its gradient. Dropout masks are a
hash of (seed, salt, position), recomputed in the backward pass and never stored. No kernel uses atomics or autotuning:
results are bit-exact in every run. `hopper` holds faster kernels for one kind of GPU.
"""

from functools import cache

import torch
from torch import Tensor

from keel.kernels.triton_support import INTERPRETED, PRESENT

_TYPES = (torch.bfloat16, torch.float16, torch.float32)


def triton_usable(x: Tensor) -> bool:
    """Whether the kernels support x's device and dtype; if not, use the eager twins."""
    if not PRESENT or x.dtype not in _TYPES:
        return False
    if not x.is_cuda:
        return INTERPRETED
    # Triton launches on the current device, and supports Ampere and later.
    return x.device.index == torch.cuda.current_device() and _is_ampere_or_later(x.device.index)


@cache
def _is_ampere_or_later(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= (8, 0)
