"""Convolutions over word or character vectors, and max-over-time pooling."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvolutionFilters(nn.Module):
    """Filters of several kernel sizes over a sequence of vectors.

    y_t = b + sum over i of W_i x_{t+i}: a cross-correlation, that is, a convolution with the kernel reversed.
    """

    def __init__(self, inputs: int, filters: Mapping[int, int]) -> None:
        """`filters` maps each kernel size to its number of filters."""
        super().__init__()
        self.width = sum(filters.values())
        """Output size: the number of filters."""
        self.windows = nn.ModuleList(nn.Conv1d(inputs, count, size) for size, count in filters.items())

    def forward(self, vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[batch, time, width] activations of filters centered on each position, with zero padding."""
        x = _zero_padding(vectors, lengths).transpose(1, 2)  # [batch, inputs, time]
        outputs = []
        for conv in self.windows:
            assert isinstance(conv, nn.Conv1d)
            size = conv.kernel_size[0]
            outputs.append(conv(F.pad(x, ((size - 1) // 2, size // 2))))
        return torch.cat(outputs, 1).transpose(1, 2)

    def max_pool(self, vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[batch, width] maximum of each filter over the positions where it fits; shorter sequences are zero-padded."""
        x = _zero_padding(vectors, lengths).transpose(1, 2)
        outputs = []
        for conv in self.windows:
            assert isinstance(conv, nn.Conv1d)
            size = conv.kernel_size[0]
            y = conv(F.pad(x, (0, max(0, size - x.shape[2])))).transpose(1, 2)  # [batch, positions, count]
            outputs.append(max_over_time(y, None if lengths is None else (lengths - size + 1).clamp(min=1)))
        return torch.cat(outputs, 1)


def max_over_time(vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
    """[batch, width] max-over-time pooling, without padding."""
    if lengths is None:
        return vectors.amax(1)
    mask = torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None]
    return vectors.masked_fill(~mask[..., None], -torch.inf).amax(1)


def _zero_padding(vectors: Tensor, lengths: Tensor | None) -> Tensor:
    """Zero the padding."""
    if lengths is None:
        return vectors
    mask = torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None]
    return vectors * mask[..., None]
