"""Layer norm (Ba, Kiros, Hinton 2016), fused with the bias, dropout and residual sum before it.

torch.compile makes two or three kernels of it; here it is one per pass, and the column sums for the gradients of bias,
weight and shift stay in registers while a program processes its rows.
"""

# pyright: reportPossiblyUnboundVariable=false
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.kernels import triton_usable
from keel.kernels.dropout import hash_dropout, is_kept, plane_key, row_hash, threshold
from keel.kernels.triton_support import multiprocessors, power_of_two, tl, triton

Form = Literal["norm", "add", "keep"]


def add_norm(
    x: Tensor,
    y: Tensor,
    bias: Tensor,
    weight: Tensor,
    shift: Tensor,
    *,
    epsilon: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    salt: int = 0,
) -> Tensor:
    """LayerNorm(x + dropout(y + bias)) * weight + shift, in y's dtype: x and y are [..., width], the others [width].

    Only the result is saved for the backward pass, which inverts weight and shift: a weight nearer to zero than 1e-5
    gets no gradient.
    """
    if not triton_usable(y):
        return add_norm_twin(x, y, bias, weight, shift, epsilon=epsilon, dropout=dropout, seed=seed, salt=salt)
    return _LayerNorm.apply("add", y.dtype, x, y, bias, weight, shift, epsilon, dropout, seed, salt)


def add_then_norm(
    x: Tensor,
    y: Tensor,
    bias: Tensor,
    weight: Tensor,
    shift: Tensor,
    *,
    epsilon: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    salt: int = 0,
) -> tuple[Tensor, Tensor]:
    """Pre-norm: total = x + dropout(y + bias) in x's dtype, and its layer norm in y's dtype."""
    if not triton_usable(y):
        total = (x.float() + drop_rows(y.float() + bias, dropout, seed, salt)).to(x.dtype)
        return total, layer_norm_twin(total, weight, shift, epsilon=epsilon, out_dtype=y.dtype)
    return _LayerNorm.apply("keep", y.dtype, x, y, bias, weight, shift, epsilon, dropout, seed, salt)


def layer_norm(
    x: Tensor,
    weight: Tensor,
    shift: Tensor,
    *,
    epsilon: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    salt: int = 0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """dropout(LayerNorm(x) * weight + shift) in out_dtype (default: x's), as on embeddings."""
    out_dtype = out_dtype or x.dtype
    if not triton_usable(x):
        return layer_norm_twin(
            x, weight, shift, epsilon=epsilon, dropout=dropout, seed=seed, salt=salt, out_dtype=out_dtype
        )
    return _LayerNorm.apply("norm", out_dtype, x, None, None, weight, shift, epsilon, dropout, seed, salt)


def add_norm_twin(
    x: Tensor,
    y: Tensor,
    bias: Tensor,
    weight: Tensor,
    shift: Tensor,
    *,
    epsilon: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    salt: int = 0,
) -> Tensor:
    total = x.float() + drop_rows(y.float() + bias, dropout, seed, salt)
    return F.layer_norm(total, total.shape[-1:], weight, shift, epsilon).to(y.dtype)


def layer_norm_twin(
    x: Tensor,
    weight: Tensor,
    shift: Tensor,
    *,
    epsilon: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    salt: int = 0,
    out_dtype: torch.dtype,
) -> Tensor:
    normed = F.layer_norm(x.float(), x.shape[-1:], weight, shift, epsilon)
    return drop_rows(normed, dropout, seed, salt).to(out_dtype)


def drop_rows(x: Tensor, p: float, seed: Tensor | None, salt: int) -> Tensor:
    """Dropout over [..., width], with the leading dimensions flattened to rows."""
    return hash_dropout(x.reshape(1, -1, x.shape[-1]), p, seed, salt).view(x.shape)


@triton.jit(do_not_specialize=["salt"])
def _forward(
    x,
    y,
    bias,
    weight,
    shift,
    seed,
    total,
    out,
    means,
    scales,
    rows,
    epsilon,
    salt,
    width: tl.constexpr,
    block: tl.constexpr,
    tile: tl.constexpr,
    stages: tl.constexpr,
    threshold: tl.constexpr,
    add: tl.constexpr,
    keep: tl.constexpr,
):
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
                stays = is_kept(row_hash(key, row), column, threshold)
                branch = tl.where(stays, branch * (4294967296 / (4294967296 - threshold)), 0.0)
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
            stays = is_kept(row_hash(key, row), column, threshold)
            result = tl.where(stays, result * (4294967296 / (4294967296 - threshold)), 0.0)
        tl.store(out + place, result.to(out.dtype.element_ty), mask)
        if keep or not add:
            tl.store(means + row, mean, row < rows)
        tl.store(scales + row, scale, row < rows)


@triton.jit(do_not_specialize=["salt"])
def _backward(
    dout,
    other,
    source,
    weight,
    shift,
    seed,
    means,
    scales,
    dx,
    dy,
    sums,
    rows,
    salt,
    width: tl.constexpr,
    block: tl.constexpr,
    tile: tl.constexpr,
    stages: tl.constexpr,
    threshold: tl.constexpr,
    add: tl.constexpr,
    traced: tl.constexpr,
    keep: tl.constexpr,
    separate: tl.constexpr,
):
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
        if threshold:
            stays = is_kept(row_hash(key, row), column, threshold)
            if not add:
                gradient = tl.where(stays, gradient * (4294967296 / (4294967296 - threshold)), 0.0)
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
                result = tl.where(stays, result * (4294967296 / (4294967296 - threshold)), 0.0)
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


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        form: Form,
        out_dtype: torch.dtype,
        x: Tensor,
        y: Tensor | None,
        bias: Tensor | None,
        weight: Tensor,
        shift: Tensor,
        epsilon: float,
        dropout: float,
        seed: Tensor | None,
        salt: int,
    ) -> Any:
        x = x.contiguous()
        y = None if y is None else y.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        out = torch.empty(x.shape, dtype=out_dtype, device=x.device)
        total = torch.empty_like(x) if form == "keep" else None
        means = torch.empty(rows if form in ("norm", "keep") else 0, dtype=torch.float32, device=x.device)
        scales = torch.empty(rows, dtype=torch.float32, device=x.device)
        tile, warps, occupancy, stages = tiling(width, backward=False)
        programs = max(1, min(-(-rows // tile), occupancy * multiprocessors(x.device)))
        _forward[(programs,)](
            *(x, y, bias, weight, shift, seed, total, out, means, scales, rows, epsilon, salt),
            width=width,
            block=power_of_two(width),
            tile=tile,
            stages=stages,
            threshold=threshold(dropout),
            add=y is not None,
            keep=form == "keep",
            num_warps=warps,
        )
        source = {"norm": x, "keep": total}.get(form, out)
        ctx.save_for_backward(source, weight, shift, seed, means, scales)
        ctx.form, ctx.dropout, ctx.salt = form, dropout, salt
        ctx.types = x.dtype, None if y is None else y.dtype
        ctx.set_materialize_grads(False)
        return (total, out) if form == "keep" else out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        source, weight, shift, seed, means, scales = ctx.saved_tensors
        form: Form = ctx.form
        other, dout = gradients if form == "keep" else (None, *gradients)
        dout = torch.zeros_like(source) if dout is None else dout.contiguous()
        other = None if other is None else other.contiguous()
        width = source.shape[-1]
        rows = source.numel() // width
        x_type, y_type = ctx.types
        add = y_type is not None
        separate = add and (ctx.dropout > 0 or y_type != x_type)
        dx = torch.empty(source.shape, dtype=x_type, device=source.device)
        dy = torch.empty(source.shape, dtype=y_type, device=source.device) if separate else dx
        tile, warps, occupancy, stages = tiling(width, backward=True)
        programs = max(1, min(-(-rows // tile), occupancy * multiprocessors(source.device)))
        sums = torch.empty(programs, 2 + add, width, dtype=torch.float32, device=source.device)
        _backward[(programs,)](
            *(dout, other, source, weight, shift, seed, means, scales, dx, dy, sums, rows, ctx.salt),
            width=width,
            block=power_of_two(width),
            tile=tile,
            stages=stages,
            threshold=threshold(ctx.dropout),
            add=add,
            traced=form == "add",
            keep=other is not None,
            separate=separate,
            num_warps=warps,
        )
        dweight, dshift, *dbias = sums.sum(0)
        return None, None, dx, dy if add else None, dbias[0] if add else None, dweight, dshift, None, None, None, None
