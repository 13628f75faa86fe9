"""Full softmax loss of a language model, without materializing the logits of all positions."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.kernels import triton_usable
from keel.kernels.cross_entropy import cross_entropy

ROOM = 1 << 23
"""Logits in memory at a time."""


def softmax_loss(
    vectors: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """sum_n weights[n] (log sum exp(logits[n]) - logits[n, targets[n]]) with logits = vectors table^T + bias.

    vectors [n, width], table [vocab_size, width], bias [vocab_size] or None, targets [n], weights [n] or all 1; weights
    [n, sums] give several sums at once, without a gradient. With GPU kernels all logits are held in half precision;
    elsewhere they are computed in chunks, together with their gradient.
    """
    if vectors.is_cuda and torch.is_autocast_enabled("cuda") and triton_usable(vectors):
        room = -len(table) % 64  # whole tiles are faster on a GPU; the loss ignores the padding
        padded = F.pad(table.to(torch.get_autocast_dtype("cuda")), (0, 0, 0, room))
        logits = F.linear(vectors, padded, None if bias is None else F.pad(bias, (0, room)))
        return _sum(cross_entropy(logits, targets, len(table)), weights)
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (vectors, table, bias))
    assert not (needs_grad and weights is not None and weights.ndim > 1)
    with torch.autocast(vectors.device.type, enabled=False):
        return _SoftmaxLoss.apply(vectors.to(table.dtype), table, bias, targets, weights, needs_grad)


def _sum(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Sum of losses [n], or weighted sums [sums] by weights [n, sums]."""
    return losses.sum() if weights is None else (losses * weights.movedim(0, -1)).sum(-1)


class _SoftmaxLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, weights: Tensor | None,
        needs_grad: bool,
    ) -> Tensor:  # fmt: skip
        rows = max(1, ROOM // len(table))
        total = vectors.new_zeros(() if weights is None else weights.shape[1:], dtype=torch.float64)
        gradients = [torch.empty_like(vectors), torch.zeros_like(table)] if needs_grad else []
        gradients += [torch.zeros_like(bias)] if needs_grad and bias is not None else []
        for start in range(0, len(vectors), rows):
            part = slice(start, start + rows)
            logits = vectors[part] @ table.T if bias is None else torch.addmm(bias, vectors[part], table.T)
            sums = logits.logsumexp(1, keepdim=True)
            losses = sums - logits.gather(1, targets[part, None])
            share = None if weights is None else weights[part]
            total += _sum(losses[:, 0].double(), share)
            if needs_grad:
                probabilities = logits.sub_(sums).exp_()
                probabilities.scatter_add_(1, targets[part, None], -torch.ones_like(sums))
                if share is not None:
                    probabilities *= share[:, None]
                torch.mm(probabilities, table, out=gradients[0][part])
                gradients[1].addmm_(probabilities.T, vectors[part])
                if bias is not None:
                    gradients[2] += probabilities.sum(0)
        ctx.save_for_backward(*gradients)
        return total.to(vectors.dtype)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        vectors, table, *bias = (gradient * outputs[0] for gradient in ctx.saved_tensors)
        return vectors, table, bias[0] if bias else None, None, None, None
