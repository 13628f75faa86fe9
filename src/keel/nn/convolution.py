"""Convolutions over the vectors of words or characters, and max pooling over time."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvolutionFilters(nn.Module):
    """Filters of several widths ("windows") over vectors that stand in a row, words or characters:

    y_t = b + sum over i of W_i x_{t+i}, which is a cross-correlation; a convolution has the filter the other way round.
    """

    def __init__(self, inputs: int, windows: Mapping[int, int]) -> None:
        """`windows` says how many filters there are of each width."""
        super().__init__()
        self.width = sum(windows.values())
        """Of what they give: one number for each filter."""
        self.windows = nn.ModuleList(nn.Conv1d(inputs, count, window) for window, count in windows.items())

    def forward(self, vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[batch, time, width]: what every filter says where it is centered on a place; around a row are zeros."""
        x = _within(vectors, lengths).transpose(1, 2)  # [batch, inputs, time]
        found = []
        for window in self.windows:
            assert isinstance(window, nn.Conv1d)
            size = window.kernel_size[0]
            found.append(window(F.pad(x, ((size - 1) // 2, size // 2))))
        return torch.cat(found, 1).transpose(1, 2)

    def max_pool(self, vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[batch, width]: of each filter the largest number among the places where all of it is inside its row; a row
        shorter than that is filled up with zeros."""
        x = _within(vectors, lengths).transpose(1, 2)
        found = []
        for window in self.windows:
            assert isinstance(window, nn.Conv1d)
            size = window.kernel_size[0]
            y = window(F.pad(x, (0, max(0, size - x.shape[2])))).transpose(1, 2)  # [batch, places, count]
            found.append(max_over_time(y, None if lengths is None else (lengths - size + 1).clamp(min=1)))
        return torch.cat(found, 1)


def max_over_time(vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
    """[batch, width]: the largest of each number in a row ("max over time"), whatever stands beyond its end."""
    if lengths is None:
        return vectors.amax(1)
    inside = torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None]
    return vectors.masked_fill(~inside[..., None], -torch.inf).amax(1)


def _within(vectors: Tensor, lengths: Tensor | None) -> Tensor:
    """The vectors with zeros beyond the end of each row."""
    if lengths is None:
        return vectors
    inside = torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None]
    return vectors * inside[..., None]
