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
        self.sizes = tuple(filters)
        self.windows = nn.ModuleList(nn.Conv1d(inputs, count, size) for size, count in filters.items())

    def forward(self, vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[batch, time, width] activations of filters centered on each position, with zero padding."""
        x = _zero_padding(vectors, lengths).transpose(1, 2)  # [batch, inputs, time]
        padded = (F.pad(x, ((size - 1) // 2, size // 2)) for size in self.sizes)
        return torch.cat([conv(y) for conv, y in zip(self.windows, padded, strict=True)], 1).transpose(1, 2)

    def max_pool(self, vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[batch, width] maximum of each filter over the positions where it fits; shorter sequences are zero-padded."""
        x = _zero_padding(vectors, lengths).transpose(1, 2)
        outputs = []
        for size, conv in zip(self.sizes, self.windows, strict=True):
            y = conv(F.pad(x, (0, max(0, size - x.shape[2])))).transpose(1, 2)  # [batch, positions, count]
            outputs.append(max_over_time(y, None if lengths is None else (lengths - size + 1).clamp(min=1)))
        return torch.cat(outputs, 1)


def max_over_time(vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
    """[batch, width] max-over-time pooling, without padding."""
    return vectors.amax(1) if lengths is None else vectors.masked_fill(~_mask(vectors, lengths), -torch.inf).amax(1)


def _zero_padding(vectors: Tensor, lengths: Tensor | None) -> Tensor:
    return vectors if lengths is None else vectors * _mask(vectors, lengths)


def _mask(vectors: Tensor, lengths: Tensor) -> Tensor:
    """[batch, time, 1] True at tokens, False at padding."""
    return (torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None])[..., None]
