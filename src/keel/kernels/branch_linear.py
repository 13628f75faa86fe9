"""Linear layer on a branch of a residual connection.

In the backward pass the input gets two gradients. Adding them in a separate kernel costs memory traffic; a matrix
product that accumulates into the other gradient does not.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def branch_linear(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """x W^T + b in x's dtype, and x for the residual connection: [tokens, inputs], [outputs, inputs] to
    [tokens, outputs], x.

    The kernel after this one computes the bias gradient. The incoming gradient of x is overwritten.
    """
    return _Branch.apply(x, weight.to(x.dtype), bias.detach().to(x.dtype))


def branch_linear_twin(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return F.linear(x, weight.to(x.dtype), bias.detach().to(x.dtype)), x


def add_product(dx: Tensor | None, dy: Tensor, weight: Tensor) -> Tensor:
    """dx + dy W, in place if there is a dx."""
    return dy @ weight if dx is None else dx.contiguous().addmm_(dy, weight)


class _Branch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        return F.linear(x, weight, bias), x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        dy, dx = gradients
        if dy is None:
            return dx, None, None
        x_wanted, weight_wanted, _ = ctx.needs_input_grad
        dweight = dy.T @ x if weight_wanted else None  # first: dx may be the same tensor as dy
        return add_product(dx, dy, weight) if x_wanted else None, dweight, None
