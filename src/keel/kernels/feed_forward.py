"""The position-wise feed-forward network of a Transformer: gelu(x W1^T + b1) W2^T."""

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.kernels.gelu import bias_gelu
from keel.kernels.hopper import fused_feed_forward


def feed_forward(
    x: Tensor, expand: Tensor, bias: Tensor, contract: Tensor, *, tanh: bool = False
) -> tuple[Tensor, Tensor]:
    """gelu(x W1^T + b1) W2^T in x's dtype and, as in `branch_linear`, x once more for the residual connection.

    x [tokens, width], W1 [hidden, width], b1 [hidden], W2 [width, hidden]; both results are [tokens, width].
    """
    if not fused_feed_forward.fits(x, expand):
        return feed_forward_twin(x, expand, bias, contract, tanh=tanh)
    needs_grad = torch.is_grad_enabled() and any(given.requires_grad for given in (x, expand, bias, contract))
    return fused_feed_forward.FusedFeedForward.apply(
        x, expand.to(x.dtype), bias, contract.to(x.dtype), tanh, needs_grad
    )


def feed_forward_twin(
    x: Tensor, expand: Tensor, bias: Tensor, contract: Tensor, *, tanh: bool = False
) -> tuple[Tensor, Tensor]:
    hidden = bias_gelu(F.linear(x, expand.to(x.dtype)), bias, tanh=tanh)
    return F.linear(hidden, contract.to(x.dtype)), x
