"""GELU (Hendrycks, Gimpel 2016) fused with the bias of the product before it: x Phi(x) with x = h + bias.

With the library's erf the exact form is compute-bound on a fast GPU: here Phi is one exponential, which the derivative
needs anyway, times a polynomial (Abramowitz, Stegun 7.1.26).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.kernels import triton_usable
from keel.kernels.triton_support import multiprocessors, tl, triton


def bias_gelu(h: Tensor, bias: Tensor, *, tanh: bool = False) -> Tensor:
    """gelu(h + bias) in h's dtype, exact or by the tanh approximation: [..., width], [width] to [..., width]."""
    if not triton_usable(h):
        return bias_gelu_twin(h, bias, tanh=tanh)
    return _BiasGelu.apply(h, bias, tanh)


def bias_gelu_twin(h: Tensor, bias: Tensor, *, tanh: bool = False) -> Tensor:
    return F.gelu(h.float() + bias, approximate="tanh" if tanh else "none").to(h.dtype)


@triton.jit
def gelu_parts(x, tanh: tl.constexpr):
    """Phi(x) and x times its derivative."""
    if tanh:
        # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)); a reciprocal as a squared rsqrt is two instructions.
        root = tl.rsqrt(1.0 + tl.exp2(x * (-2.302208198 - 0.1029432407 * x * x)))
        share = root * root
        slope = x * share * (1.0 - share) * (1.5957691216 + 0.2140644432 * x * x)
    else:
        bell = tl.exp2(x * x * -0.7213475204)  # exp(-x^2 / 2)
        root = tl.rsqrt(1.0 + 0.2316418882 * tl.abs(x))
        t = root * root
        tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
        tail *= bell
        share = tl.where(x < 0, tail, 1.0 - tail)
        slope = x * bell * 0.3989422804
    return share, slope


@triton.jit
def _gelu(
    dout, h, bias, out, sums, rows, width,
    backward: tl.constexpr, tanh: tl.constexpr, tile: tl.constexpr, block: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """out = gelu(h + bias), or in the `backward` pass its gradient by h, and the column sums of each program."""
    column = tl.program_id(0) * block + tl.arange(0, block)[None, :]
    inside = column < width
    b = tl.load(bias + column, inside, 0.0)
    dbias = tl.zeros([1, block], tl.float32)
    for first in tl.range(tl.program_id(1) * tile, rows, tl.num_programs(1) * tile, num_stages=stages):
        row = first + tl.arange(0, tile)[:, None]
        place = row.to(tl.int64) * width + column
        mask = (row < rows) & inside
        x = tl.load(h + place, mask, 0.0).to(tl.float32) + b
        share, slope = gelu_parts(x, tanh)
        if backward:
            value = tl.load(dout + place, mask, 0.0).to(tl.float32) * (share + slope)
            dbias += tl.sum(value, 0, keep_dims=True)
        else:
            value = x * share
        tl.store(out + place, value.to(out.dtype.element_ty), mask)
    if backward:
        tl.store(sums + tl.program_id(1) * width + column, dbias, inside)


def tiling(width: int, *, backward: bool) -> tuple[int, int, int, int, int]:
    """Columns per block, rows per tile, warps, programs per multiprocessor, pipeline stages."""
    if backward:
        block = 1024 if width % 1024 == 0 else 512
        return block, 2, block // 256, 8192 // block, 1
    return 512, 2, 4, 16, 1


def _launch(dout: Tensor | None, h: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """gelu(h + bias) or, given its gradient, the gradient of h; and the column sums of each program."""
    width, backward = h.shape[-1], dout is not None
    block, tile, warps, occupancy, stages = tiling(width, backward=backward)
    columns, rows = -(-width // block), h.numel() // width
    programs = max(1, min(-(-rows // tile), -(-occupancy * multiprocessors(h.device) // columns)))
    out = torch.empty_like(h)
    sums = torch.empty(programs if backward else 0, width, dtype=torch.float32, device=h.device)
    sizes = {"tile": tile, "block": block, "stages": stages, "num_warps": warps}
    _gelu[(columns, programs)](dout, h, bias, out, sums, rows, width, backward=backward, tanh=tanh, **sizes)
    return out, sums


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, bias: Tensor, tanh: bool) -> Tensor:
        h = h.contiguous()
        ctx.save_for_backward(h, bias)
        ctx.tanh = tanh
        return _launch(None, h, bias, tanh)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        h, bias = ctx.saved_tensors
        dh, sums = _launch(gradients[0].contiguous(), h, bias, ctx.tanh)
        return dh, sums.sum(0), None
