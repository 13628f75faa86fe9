"""Products of few rows with large matrices on a CPU, as in writing text one piece at a time.

The matrix is laid out once for them. For one row that is column by column: its memory is then read in order, at twice
the speed. For several rows it is as oneDNN packs it; what torch calls otherwise packs the matrix anew in every product.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Product = Callable[[Tensor], Tensor]
"""[rows, inputs] to [rows, outputs]."""


def product(weight: Tensor, bias: Tensor | None, rows: int) -> Product:
    """x W^T + b for x of so many rows, with W [outputs, inputs] laid out for it if that pays."""
    if weight.is_cuda or weight.dtype != torch.float32:
        return lambda x: F.linear(x, weight, bias)
    if rows == 1:
        outputs, inputs = weight.shape
        if outputs <= inputs:  # rows are long enough
            return lambda x: F.linear(x, weight, bias)
        turned = weight.T.contiguous()
        return lambda x: x @ turned if bias is None else torch.addmm(bias, x, turned)
    if torch.backends.mkldnn.is_available():
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
            one = torch.ops.mkldnn._linear_pointwise
            one(weight.new_zeros(rows, weight.shape[1]), packed, bias, "none", [], "")
        except (AttributeError, RuntimeError):  # none of torch's promises: another version may lack it
            pass
        else:
            return lambda x: one(x, packed, bias, "none", [], "")
    return lambda x: F.linear(x, weight, bias)
