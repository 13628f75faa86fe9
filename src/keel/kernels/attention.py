"""Attention (Vaswani et al. 2017) over packed sequences of unequal length, with or without gaps between them.

The fused QKV projection is read, and its gradient written, in its own layout: nothing is stacked or transposed. The
kernels are in `attention_varlen`, for any lengths, and `hopper.attention_fixed`.

The bias of the projection is already added; its gradient is computed here. Softmax is invariant to a constant added to
all scores of a query, so the gradient of the key bias is zero.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from keel.kernels import attention_varlen, triton_usable
from keel.kernels.attention_varlen import PackedSpans
from keel.kernels.dropout import NO_DROPOUT, HashDropout
from keel.kernels.hopper import attention_fixed
from keel.kernels.hopper.gluon import relative_error, trusted

WIDTHS = (16, 32, 64, 128)
"""Head dimensions that the kernels support."""


def attend(
    qkv: Tensor, bias: Tensor, spans: PackedSpans, heads: int, dropout: HashDropout = NO_DROPOUT, causal: bool = False
) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V per head and sequence: qkv [tokens, 3 x width], bias [3 x width] to [tokens, width].

    Tokens outside all sequences get zeros. Dropout is on the attention weights. qkv includes the bias, given for its
    gradient.
    """
    if not triton_usable(qkv) or qkv.shape[1] // 3 // heads not in WIDTHS:
        return attend_twin(qkv, bias, spans, heads, dropout, causal)
    fixed = spans.uniform and attention_fixed.fits(qkv, spans.lengths, spans.max_seqlen, heads)
    fixed = fixed and trusted(_relative_error, qkv, heads, dropout.p, causal, dropout.seed is not None)
    return _Attend.apply(qkv, bias, spans, heads, dropout, causal, attention_fixed if fixed else attention_varlen)


def attend_twin(
    qkv: Tensor, bias: Tensor, spans: PackedSpans, heads: int, dropout: HashDropout = NO_DROPOUT, causal: bool = False
) -> Tensor:
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    position = torch.arange(spans.max_seqlen, device=qkv.device)
    real = position < spans.lengths[:, None]  # [batch, time]
    index = torch.where(real, spans.starts[:, None] + position, 0)
    seen = real[:, None, None, :]
    if causal:
        seen = seen & (position[:, None] >= position)
    with torch.autocast(qkv.device.type, enabled=False):  # all in fp32
        # Each [batch, heads, time, head_dim].
        q, k, v = (qkv.float() + (bias - bias.detach()))[index].unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        # Empty sequences would divide by zero; their result is not read.
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, torch.finfo(torch.float32).min)
        mixed = dropout(scores.softmax(-1)) @ v
        # Padding is written to one extra token, which is cut off.
        out = torch.zeros(tokens + 1, width, device=qkv.device)
        out = out.index_put((torch.where(real, index, tokens),), mixed.transpose(1, 2).flatten(2))[:tokens]
    return out.to(qkv.dtype)


def _relative_error(
    device: torch.device, dtype: torch.dtype, heads: int, p: float, causal: bool, seeded: bool
) -> float:
    """Relative error of the fixed-length kernel where programs take several sequences, some of them padded."""
    time, rows = attention_fixed.TIME.value, attention_fixed.rows_at_once(device, heads) * 3 + 2
    lengths = time - torch.arange(rows, device=device) % 3 * 40
    spans = PackedSpans(torch.arange(0, rows * time, time, device=device), lengths, time)
    dropout = HashDropout(p, torch.tensor(1, device=device) if seeded else None)
    generator = torch.Generator(device).manual_seed(0)
    width = heads * attention_fixed.WIDTH.value
    qkv = torch.randn(rows * time, 3 * width, generator=generator, device=device).to(dtype)
    return relative_error(
        lambda qkv, bias: _Attend.apply(qkv, bias, spans, heads, dropout, causal, attention_fixed),
        lambda qkv, bias: attend_twin(qkv, bias, spans, heads, dropout, causal),
        qkv,
        torch.zeros_like(qkv[0]).float(),
    )


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, bias: Tensor, spans: PackedSpans, heads: int, dropout: HashDropout, causal: bool,
        kernels: ModuleType,
    ) -> Tensor:  # fmt: skip
        qkv = qkv.contiguous()
        tokens, width = qkv.shape[0], qkv.shape[1] // 3
        out = torch.empty(tokens, width, dtype=qkv.dtype, device=qkv.device)
        # The log-sum-exp of each query's scores and, for dropout, the query's hash.
        normalizers = torch.empty(2 if dropout.p else 1, heads, tokens, dtype=torch.float32, device=qkv.device)
        kernels.mix(qkv, spans, out, normalizers, heads, dropout, causal)
        ctx.save_for_backward(qkv, out, normalizers)
        ctx.kernels, ctx.spans, ctx.settings = kernels, spans, (heads, dropout, causal)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, normalizers = ctx.saved_tensors
        dout = gradients[0].contiguous()
        dqkv, dbias = ctx.kernels.gradients(dout, qkv, ctx.spans, out, normalizers, *ctx.settings)
        return dqkv, dbias, None, None, None, None, None
