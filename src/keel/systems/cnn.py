"""Convolutional networks over text (Kim, "Convolutional Neural Networks for Sentence Classification", 2014).

New then: a layer of filters, each of which looks at a few words next to each other, and of each filter the strongest
answer in a text ("max over time"), is as good as far deeper networks.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Filters(nn.Module):
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

    def strongest(self, vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[batch, width]: of each filter the largest number among the places where all of it is inside its row; a row
        shorter than that is filled up with zeros."""
        x = _within(vectors, lengths).transpose(1, 2)
        found = []
        for window in self.windows:
            assert isinstance(window, nn.Conv1d)
            size = window.kernel_size[0]
            y = window(F.pad(x, (0, max(0, size - x.shape[2]))))  # [batch, count, places]
            if lengths is not None:
                place = torch.arange(y.shape[2], device=y.device)
                inside = place < (lengths[:, None] - size + 1).clamp(min=1)
                y = y.masked_fill(~inside[:, None], -torch.inf)
            found.append(y.amax(2))
        return torch.cat(found, 1)


def _within(vectors: Tensor, lengths: Tensor | None) -> Tensor:
    """The vectors with zeros beyond the end of each row."""
    if lengths is None:
        return vectors
    inside = torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None]
    return vectors * inside[..., None]
