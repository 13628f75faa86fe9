"""What the Gluon kernels share: the language itself, tensor descriptors, and a check before the first use.

Gluon is experimental: with another version of Triton a kernel may not compile, or give other results. So each kernel is
compared with its eager twin on each GPU before it is used there.
"""

import os
import warnings
from collections.abc import Callable
from functools import cache
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from keel.kernels import triton_usable
from keel.kernels.triton_support import PRESENT, tl

if TYPE_CHECKING:
    gluon: Any = None
    gl = tl
    hopper: Any = None
    tile_load: Any = None
    tile_store: Any = None
else:
    try:
        if not PRESENT:
            raise ImportError
        from triton.experimental import gluon
        from triton.experimental.gluon import language as gl
        from triton.experimental.gluon.language.nvidia import hopper

        # Renamed after Triton 3.6.
        tile_load = getattr(hopper.tma, "async_load", None) or hopper.tma.async_copy_global_to_shared
        tile_store = getattr(hopper.tma, "async_store", None) or hopper.tma.async_copy_shared_to_global
    except (ImportError, AttributeError):
        gluon = SimpleNamespace(jit=lambda function=None, **options: function or (lambda inner: inner))
        gl = SimpleNamespace(constexpr=lambda value: SimpleNamespace(value=value))
        hopper = tile_load = tile_store = None

ENABLED = os.environ.get("KEEL_HOPPER_KERNELS", "1") != "0"
constant: Any = gl.constexpr
"""A global constant of kernels."""
REGISTERS = 168
"""Registers per thread of twelve warps; consumer warps then take over those that the producer does not need."""
MAX_ERROR = 0.02
_CHECKING = Lock()
"""One kernel at a time: ignoring warnings affects all threads."""


def from_triton(function: Any) -> Any:
    """The Triton function for use in Gluon."""
    return gluon.jit(function.fn) if hopper is not None else function


def tiled(x: Tensor, *tile: int) -> Any:
    """Tensor descriptor (TMA) of x for tiles of this shape; out-of-bounds elements read as zeros."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # pyright: ignore[reportMissingImports]

    kind = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    return TensorDescriptor.from_tensor(x, list(tile), gl.NVMMASharedLayout.get_default_for(list(tile), kind))


def trusted(check: Callable[..., float], x: Tensor, *settings: Any) -> bool:
    """Whether a kernel is usable for x: `check`(device, dtype, *settings), its relative error on x's GPU, is small."""
    if not ENABLED or hopper is None or not x.is_cuda or not triton_usable(x) or x.dtype == torch.float32:
        return False
    error, reason = _checked(check, x.device.index, x.dtype, *settings)
    if reason:
        name = check.__module__.split(".")[-1]
        warnings.warn(f"{name} falls back to a slower kernel on this GPU: {reason}", stacklevel=3)
    return error <= MAX_ERROR  # False for NaN


@cache
def _checked(check: Callable[..., float], index: int, dtype: torch.dtype, *settings: Any) -> tuple[float, str]:
    """Relative error of the kernel, and the reason not to use it, if any."""
    if torch.version.hip or torch.cuda.get_device_capability(index)[0] != 9:
        return float("inf"), ""
    try:
        # Independent of the modes of the caller, and without torch's warnings at the first use of a GPU.
        quiet = warnings.catch_warnings(action="ignore")
        with _CHECKING, quiet, torch.inference_mode(False), torch.enable_grad(), torch.autocast("cuda", enabled=False):
            error = check(torch.device("cuda", index), dtype, *settings)
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:
        return float("inf"), f"{type(failure).__name__} in Triton"
    return error, "" if error <= MAX_ERROR else f"its relative error is {error:.2g}"


def relative_error(ours: Callable[..., Tensor], twin: Callable[..., Tensor], *given: Tensor) -> float:
    """The largest ||ours - twin|| / ||twin|| of the results and of the gradients of all inputs."""
    outcomes = []
    for function in (ours, twin):
        inputs = [tensor.detach().requires_grad_() for tensor in given]
        out = function(*inputs)
        generator = torch.Generator(out.device).manual_seed(1)
        gradient = torch.randn(out.shape, generator=generator, device=out.device).to(out.dtype)
        outcomes.append([out, *torch.autograd.grad(out, inputs, gradient)])
    # NaN if any of them is NaN.
    return torch.stack([(a - b).float().norm() / b.float().norm() for a, b in zip(*outcomes, strict=True)]).max().item()
