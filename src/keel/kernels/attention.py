"""Attention (Vaswani et al. 2017) over rows of unequal length that lie one after another, with or without gaps.

The fused product of queries, keys and values comes in as it is and its gradient goes out in the same layout, so nothing
is stacked or transposed. The kernels stand in `attention_rows`, for any rows, and `attention_even`.

The product brings its bias along, but not the bias's gradient: its sums are found here on the way. The softmax does not
see a number that all keys of a query share, so that of the keys is zero.
"""

from typing import Any

import torch
from torch import Tensor

from keel.kernels import attention_varlen, triton_usable
from keel.kernels.dropout import hash_dropout
from keel.kernels.hopper import attention_fixed
from keel.kernels.hopper.gluon import gap_of, trusted

WIDTHS = (16, 32, 64, 128)
"""Of a head, that the kernels can take."""


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
    """softmax(Q K^T / sqrt(d)) V in every head of every row: [tokens, 3 x width], [3 x width] to [tokens, width].

    Row r is the tokens from starts[r] on, lengths[r] of them, `longest` at most; rows are in order and do not overlap;
    `even` ones begin at the multiples of `longest`, and what lies between them must be numbers. A token of no row gets
    zeros. Dropout falls on the attention weights. The bias is in qkv already, and is here for its gradient.
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
    whole = fixed_length and attention_fixed.fits(qkv, lengths, max_seqlen, heads)
    whole = whole and trusted(_gap, qkv, heads, dropout, causal, seed is not None)
    return _Attend.apply(qkv, bias, sequence_starts, lengths, max_seqlen, heads, dropout, seed, salt, causal, whole)


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
    place = torch.arange(max_seqlen, device=qkv.device)
    real = place < lengths[:, None]  # [rows, time]
    index = torch.where(real, sequence_starts[:, None] + place, 0)
    seen = real[:, None, None, :]
    if causal:
        seen = seen & (place[:, None] >= place)
    with torch.autocast(qkv.device.type, enabled=False):  # all in fp32
        # Each [rows, heads, time, width / heads].
        q, k, v = (qkv.float() + (bias - bias.detach()))[index].unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        # Rows without a token would divide by nothing; theirs is not read.
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, torch.finfo(torch.float32).min)
        mixed = hash_dropout(scores.softmax(-1), dropout, seed, salt) @ v
        # What is beyond a row's end goes to one more place, which is cut off.
        out = torch.zeros(tokens + 1, width, device=qkv.device)
        out = out.index_put((torch.where(real, index, tokens),), mixed.transpose(1, 2).flatten(2))[:tokens]
    return out.to(qkv.dtype)


def _gap(device: torch.device, dtype: torch.dtype, heads: int, dropout: float, causal: bool, seeded: bool) -> float:
    """Of even rows, where programs take several of them, some not whole."""
    time, rows = attention_fixed.TIME.value, attention_fixed.rows_at_once(device, heads) * 3 + 2
    starts = torch.arange(0, rows * time, time, device=device)
    seed = torch.tensor(1, device=device) if seeded else None
    lengths = time - torch.arange(rows, device=device) % 3 * 40
    generator = torch.Generator(device).manual_seed(0)
    width = heads * attention_fixed.WIDTH.value
    qkv = torch.randn(rows * time, 3 * width, generator=generator, device=device).to(dtype)
    settings: dict[str, Any] = {"longest": time, "heads": heads, "dropout": dropout, "seed": seed, "causal": causal}
    return gap_of(
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
        longest: int,
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
        # The logarithm of what each query's weights were divided by and, for dropout, the query's hash.
        normalizers = torch.empty(2 if dropout else 1, heads, tokens, dtype=torch.float32, device=qkv.device)
        settings = {"heads": heads, "dropout": dropout, "causal": causal}
        if even:
            attention_fixed.mix(qkv, lengths, seed, out, normalizers, salt=salt, **settings)
        else:
            settings["longest"] = longest
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
