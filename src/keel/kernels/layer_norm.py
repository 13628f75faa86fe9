"""Layer norm (Ba, Kiros, Hinton 2016), fused with the bias, dropout and residual sum before it.

torch.compile makes two or three kernels of it; here it is one per pass, and the column sums for the gradients of bias,
weight and shift stay in registers while a program processes its rows.
"""

# pyright: reportPossiblyUnboundVariable=false
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.kernels import triton_usable
from keel.kernels.dropout import NO_DROPOUT, HashDropout, drop, plane_key
from keel.kernels.triton_support import multiprocessors, power_of_two, tl, triton

Form = Literal["norm", "add", "keep"]


def add_norm(x: Tensor, y: Tensor, bias: Tensor, norm: nn.LayerNorm, dropout: HashDropout = NO_DROPOUT) -> Tensor:
    """LayerNorm(x + dropout(y + bias)), in y's dtype: x and y are [..., width], bias [width].

    Only the result is saved for the backward pass, which inverts the norm's weight and bias: a weight nearer to zero
    than 1e-5 gets no gradient.
    """
    if not triton_usable(y):
        return add_norm_twin(x, y, bias, norm, dropout)
    return _LayerNorm.apply("add", y.dtype, x, y, bias, norm.weight, norm.bias, norm.eps, dropout)


def add_norm_twin(x: Tensor, y: Tensor, bias: Tensor, norm: nn.LayerNorm, dropout: HashDropout = NO_DROPOUT) -> Tensor:
    return layer_norm_twin(x.float() + drop_rows(y.float() + bias, dropout), norm, out_dtype=y.dtype)


def add_then_norm(
    x: Tensor, y: Tensor, bias: Tensor, norm: nn.LayerNorm, dropout: HashDropout = NO_DROPOUT
) -> tuple[Tensor, Tensor]:
    """Pre-norm: total = x + dropout(y + bias) in x's dtype, and its layer norm in y's dtype."""
    if not triton_usable(y):
        return add_then_norm_twin(x, y, bias, norm, dropout)
    return _LayerNorm.apply("keep", y.dtype, x, y, bias, norm.weight, norm.bias, norm.eps, dropout)


def add_then_norm_twin(
    x: Tensor, y: Tensor, bias: Tensor, norm: nn.LayerNorm, dropout: HashDropout = NO_DROPOUT
) -> tuple[Tensor, Tensor]:
    total = (x.float() + drop_rows(y.float() + bias, dropout)).to(x.dtype)
    return total, layer_norm_twin(total, norm, out_dtype=y.dtype)


def layer_norm(x: Tensor, norm: nn.LayerNorm, dropout: HashDropout = NO_DROPOUT, *, out_dtype: torch.dtype) -> Tensor:
    """dropout(LayerNorm(x)) in out_dtype, as on embeddings."""
    if not triton_usable(x):
        return layer_norm_twin(x, norm, dropout, out_dtype=out_dtype)
    return _LayerNorm.apply("norm", out_dtype, x, None, None, norm.weight, norm.bias, norm.eps, dropout)


def layer_norm_twin(
    x: Tensor, norm: nn.LayerNorm, dropout: HashDropout = NO_DROPOUT, *, out_dtype: torch.dtype
) -> Tensor:
    normed = F.layer_norm(x.float(), x.shape[-1:], norm.weight, norm.bias, norm.eps)
    return drop_rows(normed, dropout).to(out_dtype)


def drop_rows(x: Tensor, dropout: HashDropout) -> Tensor:
    """Dropout over [..., width], with the leading dimensions flattened to rows."""
    return dropout(x.reshape(1, -1, x.shape[-1])).view(x.shape)


@triton.jit(do_not_specialize=["salt"])
def _forward(
    x, y, bias, weight, shift, seed, total, out, means, scales, rows, epsilon, salt,
    width: tl.constexpr, block: tl.constexpr, tile: tl.constexpr, stages: tl.constexpr, threshold: tl.constexpr,
    add: tl.constexpr, keep: tl.constexpr,
):  # fmt: skip
    """`tile` rows at a time; `add`: there is a y; `keep`: the sum is written too."""
    column = tl.arange(0, block)[None, :]
    inside = column < width
    b = tl.load(bias + column, inside, 0.0) if add else 0.0
    w = tl.load(weight + column, inside, 0.0)
    c = tl.load(shift + column, inside, 0.0)
    if threshold:
        key = plane_key(seed, salt, tl.full([], 0, tl.uint32))
    for first in tl.range(tl.program_id(0) * tile, rows, tl.num_programs(0) * tile, num_stages=stages):
        row = first + tl.arange(0, tile)[:, None]
        place = row.to(tl.int64) * width + column
        mask = (row < rows) & inside
        value = tl.load(x + place, mask, 0.0).to(tl.float32)
        if add:
            branch = tl.load(y + place, mask, 0.0).to(tl.float32) + b
            if threshold:
                branch = drop(branch, key, row, column, threshold)
            value += branch
        if keep:
            value = value.to(total.dtype.element_ty)
            tl.store(total + place, value, mask)
            value = value.to(tl.float32)
        mean = tl.sum(value, 1, keep_dims=True) / width
        centred = tl.where(inside, value - mean, 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, 1, keep_dims=True) / width + epsilon)
        result = centred * scale * w + c
        if threshold and not add:
            result = drop(result, key, row, column, threshold)
        tl.store(out + place, result.to(out.dtype.element_ty), mask)
        if keep or not add:
            tl.store(means + row, mean, row < rows)
        tl.store(scales + row, scale, row < rows)


@triton.jit(do_not_specialize=["salt"])
def _backward(
    dout, other, source, weight, shift, seed, means, scales, dx, dy, sums, rows, salt,
    width: tl.constexpr, block: tl.constexpr, tile: tl.constexpr, stages: tl.constexpr, threshold: tl.constexpr,
    add: tl.constexpr, traced: tl.constexpr, keep: tl.constexpr, separate: tl.constexpr,
):  # fmt: skip
    """`source`: the result (`traced`) or the input of the norm; `other`: a second gradient, of the sum (`keep`);
    `separate`: dy is not the same tensor as dx.
    """
    column = tl.arange(0, block)[None, :]
    inside = column < width
    w = tl.load(weight + column, inside, 1.0)
    if traced:
        c = tl.load(shift + column, inside, 0.0)
        back = 1 / tl.where(tl.abs(w) > 1e-5, w, float("inf"))
    if threshold:
        key = plane_key(seed, salt, tl.full([], 0, tl.uint32))
    dweight = tl.zeros([1, block], tl.float32)
    dshift = tl.zeros([1, block], tl.float32)
    dbias = tl.zeros([1, block], tl.float32)
    for first in tl.range(tl.program_id(0) * tile, rows, tl.num_programs(0) * tile, num_stages=stages):
        row = first + tl.arange(0, tile)[:, None]
        place = row.to(tl.int64) * width + column
        mask = (row < rows) & inside
        gradient = tl.load(dout + place, mask, 0.0).to(tl.float32)
        value = tl.load(source + place, mask, 0.0).to(tl.float32)
        if keep:
            second = tl.load(other + place, mask, 0.0).to(tl.float32)
        scale = tl.load(scales + row, row < rows, 0.0)
        if threshold and not add:
            gradient = drop(gradient, key, row, column, threshold)
        normed = (value - c) * back if traced else (value - tl.load(means + row, row < rows, 0.0)) * scale
        dweight += tl.sum(gradient * normed, 0, keep_dims=True)
        dshift += tl.sum(gradient, 0, keep_dims=True)
        gradient *= w
        mean = tl.sum(gradient, 1, keep_dims=True) / width
        along = tl.sum(gradient * normed, 1, keep_dims=True) / width
        result = (gradient - mean - normed * along) * scale
        if keep:
            result += second
        tl.store(dx + place, result.to(dx.dtype.element_ty), mask)
        if add:
            if threshold:
                result = drop(result, key, row, column, threshold)
            if separate:
                tl.store(dy + place, result.to(dy.dtype.element_ty), mask)
            dbias += tl.sum(tl.where(mask, result, 0.0), 0, keep_dims=True)
    sums += tl.program_id(0) * (3 if add else 2) * width
    tl.store(sums + column, dweight, inside)
    tl.store(sums + width + column, dshift, inside)
    if add:
        tl.store(sums + 2 * width + column, dbias, inside)


def tiling(width: int, *, backward: bool) -> tuple[int, int, int, int]:
    """Rows per tile, warps, programs per multiprocessor, pipeline stages."""
    warps = min(8, max(1, power_of_two(width) // 256))
    return (2, warps, 16 // warps, 1) if backward else (2, warps, 32, 1)


def _launch_settings(like: Tensor, *, backward: bool) -> tuple[int, int, dict[str, int]]:
    """Rows, programs, and the sizes of a launch."""
    width = like.shape[-1]
    rows = like.numel() // width
    tile, warps, occupancy, stages = tiling(width, backward=backward)
    programs = max(1, min(-(-rows // tile), occupancy * multiprocessors(like.device)))
    sizes = {"width": width, "block": power_of_two(width), "tile": tile, "stages": stages, "num_warps": warps}
    return rows, programs, sizes


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, form: Form, out_dtype: torch.dtype, x: Tensor, y: Tensor | None, bias: Tensor | None, weight: Tensor,
        shift: Tensor, epsilon: float, dropout: HashDropout,
    ) -> Any:  # fmt: skip
        x = x.contiguous()
        y = None if y is None else y.contiguous()
        rows, programs, sizes = _launch_settings(x, backward=False)
        out = torch.empty(x.shape, dtype=out_dtype, device=x.device)
        total = torch.empty_like(x) if form == "keep" else None
        means = torch.empty(0 if form == "add" else rows, dtype=torch.float32, device=x.device)
        scales = torch.empty(rows, dtype=torch.float32, device=x.device)
        flags = {"threshold": dropout.threshold, "add": y is not None, "keep": form == "keep"}
        given = x, y, bias, weight, shift, dropout.seed, total, out, means, scales, rows, epsilon, dropout.salt
        _forward[(programs,)](*given, **sizes, **flags)
        source = {"norm": x, "keep": total, "add": out}[form]
        ctx.save_for_backward(source, weight, shift, means, scales)
        ctx.form, ctx.dropout, ctx.types = form, dropout, (x.dtype, None if y is None else y.dtype)
        ctx.set_materialize_grads(False)
        return (total, out) if form == "keep" else out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        source, weight, shift, means, scales = ctx.saved_tensors
        form, dropout, (x_type, y_type) = ctx.form, ctx.dropout, ctx.types
        other, dout = gradients if form == "keep" else (None, *gradients)
        dout = torch.zeros_like(source) if dout is None else dout.contiguous()
        other = None if other is None else other.contiguous()
        add = y_type is not None
        separate = add and (dropout.p > 0 or y_type != x_type)
        dx = torch.empty(source.shape, dtype=x_type, device=source.device)
        dy = torch.empty(source.shape, dtype=y_type, device=source.device) if separate else dx
        rows, programs, sizes = _launch_settings(source, backward=True)
        sums = torch.empty(programs, 2 + add, source.shape[-1], dtype=torch.float32, device=source.device)
        flags = {"add": add, "traced": form == "add", "keep": other is not None, "separate": separate}
        given = dout, other, source, weight, shift, dropout.seed, means, scales, dx, dy, sums, rows, dropout.salt
        _backward[(programs,)](*given, **sizes, **flags, threshold=dropout.threshold)
        dweight, dshift, *dbias = sums.sum(0)
        return None, None, dx, dy if add else None, dbias[0] if add else None, dweight, dshift, None, None
