"""Triton where it is of use; elsewhere stand-ins, enough to import the kernels' files and run their twins."""

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:

    class Anything(type):
        def __getattr__(cls, name: str) -> Any: ...

    class Language(metaclass=Anything):
        constexpr = Any  # of a parameter that is known when the kernel is compiled

    triton: Any = None
    tl = Language
else:
    try:
        # Fifty megabytes that a torch without a GPU has no use for, unless Triton is to be interpreted.
        if not (torch.version.cuda or torch.version.hip or os.environ.get("TRITON_INTERPRET") == "1"):
            raise ImportError
        import triton
        import triton.language as tl
    except ImportError:
        triton = SimpleNamespace(jit=lambda function=None, **options: function or (lambda inner: inner))
        tl = SimpleNamespace(constexpr=int)

PRESENT = hasattr(triton, "__version__")
INTERPRETED = PRESENT and os.environ.get("TRITON_INTERPRET") == "1"
"""Read when Triton is imported, and by Triton too: set it before."""


def multiprocessors(device: torch.device) -> int:
    """How many programs run side by side, at least; the interpreter runs one after another."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def shared_memory(device: torch.device) -> int:
    """Bytes of fast memory that one program may take; the interpreter has no bounds."""
    if device.type != "cuda":
        return 1 << 30
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def power_of_two(size: int) -> int:
    """The smallest power of two that is no less than size."""
    return 1 << (size - 1).bit_length()
