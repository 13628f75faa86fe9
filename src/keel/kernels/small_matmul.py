"""Products of few rows with large matrices on a CPU, as in writing text one piece at a time.

The matrix is laid out once for them, as oneDNN packs it, and is then read in order, as fast as memory allows: what
torch calls otherwise reads it at half that speed for one row, and packs it anew in every product for several. Where
oneDNN is not, one row is faster with a matrix that lies column by column.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

MatrixProduct = Callable[[Tensor], Tensor]
"""[rows, inputs] to [rows, outputs]."""


def pack_linear(weight: Tensor, bias: Tensor | None, rows: int) -> MatrixProduct:
    """x W^T + b for x of so many rows, with W [outputs, inputs] laid out for it if that pays."""
    if weight.is_cuda or weight.dtype != torch.float32:
        return lambda x: F.linear(x, weight, bias)
    if torch.backends.mkldnn.is_available():
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
            one = torch.ops.mkldnn._linear_pointwise
            one(weight.new_zeros(rows, weight.shape[1]), packed, bias, "none", [], "")
        except (AttributeError, RuntimeError):  # none of torch's promises: another version may lack it
            pass
        else:
            return lambda x: one(x, packed, bias, "none", [], "")
    outputs, inputs = weight.shape
    if rows == 1 and outputs > inputs:
        turned = weight.T.contiguous()
        return lambda x: x @ turned if bias is None else torch.addmm(bias, x, turned)
    return lambda x: F.linear(x, weight, bias)
