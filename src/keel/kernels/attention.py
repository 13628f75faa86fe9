"""Attention (Vaswani et al. 2017) over packed sequences of unequal length, with or without gaps between them.

The fused QKV projection is read, and its gradient written, in its own layout: nothing is stacked or transposed. The
kernels are in `attention_varlen`, for any lengths, and `hopper.attention_fixed`.

The bias of the projection is already added; its gradient is computed here. Softmax is invariant to a constant added to
all scores of a query, so the gradient of the key bias is zero.
"""

from typing import Any

import torch
from torch import Tensor

from keel.kernels import attention_varlen, triton_usable
from keel.kernels.dropout import hash_dropout
from keel.kernels.hopper import attention_fixed
from keel.kernels.hopper.gluon import relative_error, trusted

WIDTHS = (16, 32, 64, 128)
"""Head dimensions that the kernels support."""


def attend(
    qkv: Tensor,
    bias: Tensor,
    sequence_starts: Tensor,
    lengths: Tensor,
    *,
    max_seqlen: int,
    heads: int,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    salt: int = 0,
    causal: bool = False,
    fixed_length: bool = False,
) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V per head and sequence: qkv [tokens, 3 x width], bias [3 x width] to [tokens, width].

    Sequence s has lengths[s] <= max_seqlen tokens from sequence_starts[s] on; sequences are in order and do not
    overlap. `fixed_length`: they start at the multiples of max_seqlen, and the padding between them is finite. Tokens
    outside all sequences get zeros. Dropout is on the attention weights. qkv includes the bias, given for its gradient.
    """
    if not triton_usable(qkv) or qkv.shape[1] // 3 // heads not in WIDTHS:
        return attend_twin(
            *(qkv, bias, sequence_starts, lengths),
            max_seqlen=max_seqlen,
            heads=heads,
            dropout=dropout,
            seed=seed,
            salt=salt,
            causal=causal,
        )
    fixed = fixed_length and attention_fixed.fits(qkv, lengths, max_seqlen, heads)
    fixed = fixed and trusted(_relative_error, qkv, heads, dropout, causal, seed is not None)
    return _Attend.apply(qkv, bias, sequence_starts, lengths, max_seqlen, heads, dropout, seed, salt, causal, fixed)


def attend_twin(
    qkv: Tensor,
    bias: Tensor,
    sequence_starts: Tensor,
    lengths: Tensor,
    *,
    max_seqlen: int,
    heads: int,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    salt: int = 0,
    causal: bool = False,
) -> Tensor:
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    position = torch.arange(max_seqlen, device=qkv.device)
    real = position < lengths[:, None]  # [batch, time]
    index = torch.where(real, sequence_starts[:, None] + position, 0)
    seen = real[:, None, None, :]
    if causal:
        seen = seen & (position[:, None] >= position)
    with torch.autocast(qkv.device.type, enabled=False):  # all in fp32
        # Each [batch, heads, time, head_dim].
        q, k, v = (qkv.float() + (bias - bias.detach()))[index].unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        # Empty sequences would divide by zero; their result is not read.
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, torch.finfo(torch.float32).min)
        mixed = hash_dropout(scores.softmax(-1), dropout, seed, salt) @ v
        # Padding is written to one extra token, which is cut off.
        out = torch.zeros(tokens + 1, width, device=qkv.device)
        out = out.index_put((torch.where(real, index, tokens),), mixed.transpose(1, 2).flatten(2))[:tokens]
    return out.to(qkv.dtype)


def _relative_error(
    device: torch.device, dtype: torch.dtype, heads: int, dropout: float, causal: bool, seeded: bool
) -> float:
    """Relative error of the fixed-length kernel where programs take several sequences, some of them padded."""
    time, rows = attention_fixed.TIME.value, attention_fixed.rows_at_once(device, heads) * 3 + 2
    starts = torch.arange(0, rows * time, time, device=device)
    seed = torch.tensor(1, device=device) if seeded else None
    lengths = time - torch.arange(rows, device=device) % 3 * 40
    generator = torch.Generator(device).manual_seed(0)
    width = heads * attention_fixed.WIDTH.value
    qkv = torch.randn(rows * time, 3 * width, generator=generator, device=device).to(dtype)
    settings: dict[str, Any] = {"max_seqlen": time, "heads": heads, "dropout": dropout, "seed": seed, "causal": causal}
    return relative_error(
        lambda qkv, bias: _Attend.apply(qkv, bias, starts, lengths, time, heads, dropout, seed, 0, causal, True),
        lambda qkv, bias: attend_twin(qkv, bias, starts, lengths, **settings),
        qkv,
        torch.zeros_like(qkv[0]).float(),
    )


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        bias: Tensor,
        starts: Tensor,
        lengths: Tensor,
        max_seqlen: int,
        heads: int,
        dropout: float,
        seed: Tensor | None,
        salt: int,
        causal: bool,
        even: bool,
    ) -> Tensor:
        qkv = qkv.contiguous()
        tokens, width = qkv.shape[0], qkv.shape[1] // 3
        out = torch.empty(tokens, width, dtype=qkv.dtype, device=qkv.device)
        # The log-sum-exp of each query's scores and, for dropout, the query's hash.
        normalizers = torch.empty(2 if dropout else 1, heads, tokens, dtype=torch.float32, device=qkv.device)
        settings = {"heads": heads, "dropout": dropout, "causal": causal}
        if even:
            attention_fixed.mix(qkv, lengths, seed, out, normalizers, salt=salt, **settings)
        else:
            settings["max_seqlen"] = max_seqlen
            attention_varlen.mix(qkv, starts, lengths, seed, out, normalizers, salt=salt, **settings)
        ctx.save_for_backward(qkv, starts, lengths, out, normalizers)
        ctx.even, ctx.settings = even, settings
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        qkv, starts, lengths, out, normalizers = ctx.saved_tensors
        dout = gradients[0].contiguous()
        if ctx.even:
            found = attention_fixed.gradients(dout, qkv, lengths, normalizers, **ctx.settings)
        else:
            found = attention_varlen.gradients(dout, qkv, starts, lengths, out, normalizers, **ctx.settings)
        return *found, None, None, None, None, None, None, None, None, None
