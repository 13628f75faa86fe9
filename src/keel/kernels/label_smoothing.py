"""Cross entropy with label smoothing, on a CPU: logits are overwritten by their gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


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
