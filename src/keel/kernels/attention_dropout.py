"""Attention with dropout on a CPU, one sequence at a time.

Torch's fused CPU attention has no dropout: with it, all weights of a batch are written to memory several times, and
dropped element by element. Here the weights of a sequence stay in the cache and are computed again for the gradient;
which of them are dropped is a hash (`kernels.dropout`).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

MIN_TIME = 64
"""Keys from which this is faster than torch's attention."""
CHUNK = 1 << 20
"""Attention weights that are computed at once: 4 MB."""


def fits(q: Tensor, k: Tensor, mask: Tensor | None) -> bool:
    """Whether `attend_with_dropout` computes this attention, and faster: on a CPU, long enough sequences."""
    padding_only = mask is None or (mask.dtype == torch.bool and mask.shape[1:3] == (1, 1))
    return q.device.type == "cpu" and padding_only and k.shape[2] >= MIN_TIME and not torch.compiler.is_compiling()


def attend_with_dropout(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, *, causal: bool) -> Tensor:
    """dropout(softmax(Q K^T / sqrt(d))) V: [batch, heads, queries, head_dim] of q, k and v in this layout, in fp32.

    `mask` [batch, 1, 1, keys] is False at padding. With `causal`, queries are as many as keys.
    """
    seed = int(torch.empty((), dtype=torch.int64).random_())
    with torch.autocast("cpu", enabled=False):
        return _AttendWithDropout.apply(q.float(), k.float(), v.float(), mask, seed, p, causal)


class _AttendWithDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, seed: int, p: float, causal: bool
    ) -> Tensor:
        batch, heads, queries, width = q.shape
        out = q.new_empty(batch, queries, heads, width).transpose(1, 2)  # the layout that the next layer reads
        for part in _parts(q, k):
            weights = _weights(q[part], k[part], _padding(mask, part), causal)
            out[part] = _drop(weights, part, heads, seed, p) @ v[part]
        ctx.save_for_backward(q, k, v, mask)
        ctx.settings = seed, p, causal
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask = ctx.saved_tensors
        seed, p, causal = ctx.settings
        dq, dk, dv = (torch.empty_like(each) for each in (q, k, v))
        scale, heads = q.shape[-1] ** -0.5, q.shape[1]
        for part in _parts(q, k):
            dout = gradients[0][part]
            weights = _weights(q[part], k[part], _padding(mask, part), causal)
            dweights = _drop(dout @ v[part].mT, part, heads, seed, p)
            dscores = torch.ops.aten._softmax_backward_data(dweights, weights, -1, torch.float32).mul_(scale)
            dq[part] = dscores @ k[part]
            dk[part] = dscores.mT @ q[part]
            dv[part] = _drop(weights, part, heads, seed, p).mT @ dout
        return dq, dk, dv, None, None, None, None


def _parts(q: Tensor, k: Tensor) -> Iterator[tuple[int, slice]]:
    """Each sequence, or some of its heads: an index of [batch, heads, ...]."""
    batch, heads, queries, _ = q.shape
    step = min(heads, max(1, CHUNK // (queries * k.shape[2])))
    for number in range(batch):
        for first in range(0, heads, step):
            yield number, slice(first, first + step)


def _padding(mask: Tensor | None, part: tuple[int, slice]) -> Tensor | None:
    """[1, 1, keys] -inf at the padding of a sequence, else 0; None without padding."""
    if mask is None or bool(mask[part[0]].all()):
        return None
    return torch.zeros(mask[part[0]].shape).masked_fill_(~mask[part[0]], -torch.inf)


def _weights(q: Tensor, k: Tensor, padding: Tensor | None, causal: bool) -> Tensor:
    """[heads, queries, keys]: softmax(q k^T / sqrt(d))."""
    shape = q.shape[0], q.shape[1], k.shape[1]
    scores = torch.baddbmm(q.new_empty(shape), q, k.mT, beta=0, alpha=q.shape[-1] ** -0.5)
    if padding is not None:
        scores += padding
    if causal:
        scores += torch.full(shape[1:], -torch.inf).triu_(1)
    return torch.softmax(scores, -1, out=scores)


def _drop(weights: Tensor, part: tuple[int, slice], heads: int, seed: int, p: float) -> Tensor:
    """Dropout in place: 0, or the weight divided by 1 - p."""
    from keel.kernels.dropout_planes import drop_planes  # numba takes its time to import, and inference needs none

    drop_planes(weights.numpy(), part[0] * heads + part[1].start, seed, p)
    return weights
