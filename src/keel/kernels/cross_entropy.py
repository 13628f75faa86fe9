"""Cross entropy over a large vocabulary: logits are read once in each pass and overwritten by their gradient.

On a GPU by kernels; with label smoothing on a CPU, by torch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.kernels import triton_usable
from keel.kernels.triton_support import power_of_two, tl, triton


def cross_entropy(logits: Tensor, targets: Tensor, columns: int) -> Tensor:
    """log sum exp(logits) - logits[target] over the first `columns` of [tokens, width] logits: [tokens] float32.

    Further columns are padding (a width divisible by 64 keeps the product aligned) without a gradient. The backward
    pass overwrites the logits by their gradient.
    """
    if not triton_usable(logits):
        return cross_entropy_twin(logits, targets, columns)
    return _CrossEntropy.apply(logits, targets, columns)


def cross_entropy_twin(logits: Tensor, targets: Tensor, columns: int) -> Tensor:
    return F.cross_entropy(logits[:, :columns].float(), targets, reduction="none")


@triton.jit
def _forward(logits, targets, losses, totals, width, columns, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * width
    highest = tl.full([], -float("inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for first in range(0, columns, block):
        column = first + tl.arange(0, block)
        x = tl.load(logits + column, column < columns, -float("inf")).to(tl.float32) * 1.4426950409
        higher = tl.maximum(highest, tl.max(x, 0))
        total = total * tl.exp2(highest - higher) + tl.sum(tl.exp2(x - higher), 0)
        highest = higher
    total = highest + tl.log2(total)
    target = tl.load(targets + row)
    tl.store(totals + row, total)
    tl.store(losses + row, total * 0.6931471806 - tl.load(logits + target).to(tl.float32))


@triton.jit
def _backward(logits, targets, totals, dlosses, width, columns, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * width
    total = tl.load(totals + row)
    target = tl.load(targets + row)
    dloss = tl.load(dlosses + row)
    for first in range(0, width, block):
        column = first + tl.arange(0, block)
        x = tl.load(logits + column, column < columns, -float("inf")).to(tl.float32)
        gradient = (tl.exp2(x * 1.4426950409 - total) - tl.where(column == target, 1.0, 0.0)) * dloss
        tl.store(logits + column, gradient.to(logits.dtype.element_ty), column < width)


def tiling(width: int, *, backward: bool) -> tuple[int, int]:
    """Columns in a block, warps."""
    block = min(power_of_two(width), 8192)
    return block, max(1, block // (1024 if backward else 2048))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, columns: int) -> Tensor:
        logits = logits.contiguous()
        rows, width = logits.shape
        losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
        totals = torch.empty_like(losses)
        block, warps = tiling(width, backward=False)
        if rows:
            _forward[(rows,)](logits, targets, losses, totals, width, columns, block=block, num_warps=warps)
        ctx.save_for_backward(logits, targets, totals)
        ctx.columns = columns
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, totals = ctx.saved_tensors
        rows, width = logits.shape
        block, warps = tiling(width, backward=True)
        if rows:
            _backward[(rows,)](
                *(logits, targets, totals, gradients[0].contiguous(), width, ctx.columns), block=block, num_warps=warps
            )
        return logits, None, None


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """-(1 - s) log p(target) - s mean_w log p(w) (Szegedy et al. 2015): [tokens, vocab_size] to [tokens].

    On a CPU the backward pass overwrites the logits by their gradient.
    """
    if logits.is_cuda:
        return F.cross_entropy(logits.float(), targets, reduction="none", label_smoothing=smoothing)
    return _Smoothed.apply(logits.float(), targets, smoothing)


class _Smoothed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        totals = logits.logsumexp(1)
        right = logits.gather(1, targets[:, None])[:, 0]
        losses = totals - (1 - smoothing) * right
        if smoothing:
            losses -= smoothing * logits.mean(1)
        ctx.save_for_backward(logits, targets, totals)
        ctx.smoothing = smoothing
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, totals = ctx.saved_tensors
        logits.sub_(totals[:, None]).exp_()
        if ctx.smoothing:
            logits -= ctx.smoothing / logits.shape[1]
        logits.scatter_add_(1, targets[:, None], logits.new_full((len(targets), 1), ctx.smoothing - 1))
        return logits.mul_(gradients[0][:, None]), None, None
