"""A softmax over all words as the last layer of a language model: the scores of all places never stand in memory."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.kernels import triton_usable
from keel.kernels.cross_entropy import cross_entropy

ROOM = 1 << 23
"""Scores that are held at once."""


def softmax_loss(
    vectors: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """The sum over n of weights[n] (log sum exp(scores[n]) - scores[n, targets[n]]), scores = vectors table' + bias.

    vectors [n, width], table [words, width], bias [words] or none, targets [n], weights [n] or all 1; weights [n, sums]
    are for several sums at once, without a gradient. Where the GPU's kernels run all scores are held in half precision;
    elsewhere some places are done at a time, gradient and all.
    """
    if vectors.is_cuda and torch.is_autocast_enabled("cuda") and triton_usable(vectors):
        room = -len(table) % 64  # a GPU multiplies in tiles: it gets whole ones, and nobody looks at the rest
        padded = F.pad(table.to(torch.get_autocast_dtype("cuda")), (0, 0, 0, room))
        scores = F.linear(vectors, padded, None if bias is None else F.pad(bias, (0, room)))
        return _sum(cross_entropy(scores, targets, len(table)), weights)
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (vectors, table, bias))
    assert not (learns and weights is not None and weights.ndim > 1)
    with torch.autocast(vectors.device.type, enabled=False):
        return _SoftmaxLoss.apply(vectors.to(table.dtype), table, bias, targets, weights, learns)


def _sum(losses: Tensor, weights: Tensor | None) -> Tensor:
    """The sum of losses [n], or [sums] of them by weights [n, sums]."""
    return losses.sum() if weights is None else (losses * weights.movedim(0, -1)).sum(-1)


class _SoftmaxLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor | None,
        learns: bool,
    ) -> Tensor:
        rows = max(1, ROOM // len(table))
        total = vectors.new_zeros(() if weights is None else weights.shape[1:], dtype=torch.float64)
        gradients = [torch.empty_like(vectors), torch.zeros_like(table)] if learns else []
        gradients += [torch.zeros_like(bias)] if learns and bias is not None else []
        for start in range(0, len(vectors), rows):
            part = slice(start, start + rows)
            scores = vectors[part] @ table.T if bias is None else torch.addmm(bias, vectors[part], table.T)
            sums = scores.logsumexp(1, keepdim=True)
            losses = sums - scores.gather(1, targets[part, None])
            share = None if weights is None else weights[part]
            total += _sum(losses[:, 0].double(), share)
            if learns:
                chances = scores.sub_(sums).exp_()
                chances.scatter_add_(1, targets[part, None], -torch.ones_like(sums))
                if share is not None:
                    chances *= share[:, None]
                torch.mm(chances, table, out=gradients[0][part])
                gradients[1].addmm_(chances.T, vectors[part])
                if bias is not None:
                    gradients[2] += chances.sum(0)
        ctx.save_for_backward(*gradients)
        return total.to(vectors.dtype)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        vectors, table, *bias = (gradient * outputs[0] for gradient in ctx.saved_tensors)
        return vectors, table, bias[0] if bias else None, None, None, None
