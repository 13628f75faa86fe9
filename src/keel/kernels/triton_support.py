"""Triton where it is usable; elsewhere stubs, enough to import the kernels' modules and run their eager twins."""

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:

    class Anything(type):
        def __getattr__(cls, name: str) -> Any: ...

    class Language(metaclass=Anything):
        constexpr = Any

    triton: Any = None
    tl = Language
else:
    try:
        # 50 MB that a CPU-only torch does not need, except for Triton's interpreter.
        if not (torch.version.cuda or torch.version.hip or os.environ.get("TRITON_INTERPRET") == "1"):
            raise ImportError
        import triton
        import triton.language as tl
    except ImportError:
        triton = SimpleNamespace(jit=lambda function=None, **options: function or (lambda inner: inner))
        tl = SimpleNamespace(constexpr=int)

PRESENT = hasattr(triton, "__version__")
INTERPRETED = PRESENT and os.environ.get("TRITON_INTERPRET") == "1"
"""Read at import, as by Triton itself."""


def multiprocessors(device: torch.device) -> int:
    """Number of multiprocessors; 2 for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory per program; unlimited in the interpreter."""
    if device.type != "cuda":
        return 1 << 30
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def power_of_two(size: int) -> int:
    """The smallest power of two >= size."""
    return 1 << (size - 1).bit_length()
