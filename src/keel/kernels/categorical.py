"""Samples from softmax(logits) over a large vocabulary by one uniform number each: no copy of the probabilities."""

import torch
from torch import Tensor

from keel.kernels import triton_usable
from keel.kernels.cross_entropy import tiling
from keel.kernels.triton_support import tl, triton


def sample_categorical(logits: Tensor, uniform: Tensor, columns: int) -> Tensor:
    """[tokens] the column in which the cumulative probability passes `uniform` [tokens], from 0 to 1.

    The distribution of each token is softmax over the first `columns` of [tokens, width] logits.
    """
    if not triton_usable(logits):
        return sample_categorical_twin(logits, uniform, columns)
    logits = logits.detach().contiguous()
    rows, width = logits.shape
    sampled = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block, warps = tiling(width, backward=False)
    if rows:
        _sample[(rows,)](logits, uniform.contiguous(), sampled, width, columns, block=block, num_warps=warps)
    return sampled


def sample_categorical_twin(logits: Tensor, uniform: Tensor, columns: int) -> Tensor:
    cumulative = logits.detach()[:, :columns].float().softmax(-1).cumsum(-1)
    # Rounding may leave the last sum a little below 1.
    return (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(-1).clamp(max=columns - 1)


@triton.jit
def _sample(logits, uniform, sampled, width, columns, block: tl.constexpr):
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
    threshold = tl.load(uniform + row) * total
    before = tl.full([], 0.0, tl.float32)
    passed = tl.full([], 0, tl.int32)
    for first in range(0, columns, block):
        column = first + tl.arange(0, block)
        x = tl.load(logits + column, column < columns, -float("inf")).to(tl.float32) * 1.4426950409
        share = tl.exp2(x - highest)
        below = (before + tl.cumsum(share, 0) <= threshold) & (column < columns)
        passed += tl.sum(below.to(tl.int32), 0)
        before += tl.sum(share, 0)
    tl.store(sampled + row, tl.minimum(passed, columns - 1).to(tl.int64))
