"""Linear layers for small batches on a CPU, as in generation token by token.

The weight is packed once in oneDNN's layout and then read at memory bandwidth; torch's default reads it at half that
speed for a batch of one, and repacks it in every product otherwise. Without oneDNN, a batch of one is faster with
a column-major weight.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

MatrixProduct = Callable[[Tensor], Tensor]
"""[batch, inputs] to [batch, outputs]."""


def pack_linear(weight: Tensor, bias: Tensor | None, batch_size: int) -> MatrixProduct:
    """x W^T + b for x [batch_size, inputs] and W [outputs, inputs], packed for this batch size where that is faster."""
    if weight.is_cuda or weight.dtype != torch.float32:
        return lambda x: F.linear(x, weight, bias)
    if torch.backends.mkldnn.is_available():
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), batch_size)
            linear = torch.ops.mkldnn._linear_pointwise
            linear(weight.new_zeros(batch_size, weight.shape[1]), packed, bias, "none", [], "")
        except (AttributeError, RuntimeError):  # a private API: another version of torch may lack it
            pass
        else:
            return lambda x: linear(x, packed, bias, "none", [], "")
    outputs, inputs = weight.shape
    if batch_size == 1 and outputs > inputs:
        transposed = weight.T.contiguous()
        return lambda x: x @ transposed if bias is None else torch.addmm(bias, x, transposed)
    return lambda x: F.linear(x, weight, bias)
