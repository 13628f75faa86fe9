"""What kernels in Gluon share, Triton's language for saying which warps do what: the language itself, tiles, and trust.

They are for Hopper alone. Gluon is not settled yet: in another Triton the same words may not compile, or mean something
else. So a kernel is tried on each GPU before it is used there.
"""

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

constant: Any = gl.constexpr
"""A number that kernels find outside themselves."""
REGISTERS = 168
"""Of each thread of twelve warps; those that work then take over what the one that fetches has no use for."""
_TRYING = Lock()
"""One kernel at a time: warnings that are ignored are so in all threads."""


def shared_with_triton(function: Any) -> Any:
    """A function of Triton's for use in Gluon."""
    return gluon.jit(function.fn) if hopper is not None else function


def tiled(x: Tensor, *tile: int) -> Any:
    """x as kernels load and store it, tile by tile, with zeros beyond its ends."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # pyright: ignore[reportMissingImports]

    kind = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    return TensorDescriptor.from_tensor(x, list(tile), gl.NVMMASharedLayout.get_default_for(list(tile), kind))


def trusted(gap: Callable[..., float], x: Tensor, *settings: Any) -> bool:
    """Whether a kernel can take x: on x's GPU it is near its twin, by the `gap` of (device, type, *settings)."""
    if hopper is None or not x.is_cuda or not triton_usable(x) or x.dtype == torch.float32:
        return False
    off, reason = _tried(gap, x.device.index, x.dtype, *settings)
    if reason:
        name = gap.__module__.split(".")[-1]
        warnings.warn(f"{name} goes a plain way on this GPU, which costs some speed: {reason}", stacklevel=3)
    return off <= 0.02  # not if it is no number


@cache
def _tried(gap: Callable[..., float], index: int, dtype: torch.dtype, *settings: Any) -> tuple[float, str]:
    """How far off the kernel is, and what there is to say about it."""
    if torch.version.hip or torch.cuda.get_device_capability(index)[0] != 9:
        return float("inf"), ""
    try:
        # Whatever is going on where the first text comes, and whatever torch remarks on the first use of a GPU.
        quiet = warnings.catch_warnings(action="ignore")
        with _TRYING, quiet, torch.inference_mode(False), torch.enable_grad(), torch.autocast("cuda", enabled=False):
            off = gap(torch.device("cuda", index), dtype, *settings)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return float("inf"), f"{type(error).__name__} in Triton"
    return off, "" if off <= 0.02 else f"it is off by {off:.2g}"


def gap_of(ours: Callable[..., Tensor], twin: Callable[..., Tensor], *given: Tensor) -> float:
    """The largest ||ours - twin|| / ||twin|| of the results and of the gradients of all that is given."""
    outcomes = []
    for function in (ours, twin):
        inputs = [tensor.detach().requires_grad_() for tensor in given]
        out = function(*inputs)
        generator = torch.Generator(out.device).manual_seed(1)
        gradient = torch.randn(out.shape, generator=generator, device=out.device).to(out.dtype)
        outcomes.append([out, *torch.autograd.grad(out, inputs, gradient)])
    # The largest of some numbers, or no number if one of them is none.
    return torch.stack([(a - b).float().norm() / b.float().norm() for a, b in zip(*outcomes, strict=True)]).max().item()
