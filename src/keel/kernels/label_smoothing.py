"""Cross entropy with smoothed labels, on a CPU: logits are read once each way and become their own gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """[rows]: -(1 - s) log p(target) - s times the mean of log p over all of [rows, words] (Szegedy et al. 2015).

    On a CPU the backward pass writes the gradient over the logits: nothing may read them after that.
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
