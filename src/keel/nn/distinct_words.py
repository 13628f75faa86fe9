"""Distinct words of a batch as rows of characters, for a character CNN that encodes each of them once."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.training.objective import Tensors

EMPTY = 260
"""Character id of padding."""
SHORT = 13
"""Characters of a short word, with those for its begin and end; nearly all words are short."""


@dataclass(frozen=True, kw_only=True)
class DistinctWords(Tensors):
    """Distinct words by their characters, the short ones apart: they need less padding."""

    short: Tensor  # [words, fewer characters]
    long: Tensor  # [words, characters]

    @classmethod
    def of(cls, table: Tensor, room: int, tile: int = 1) -> tuple[Self, Tensor]:
        """The words of [words, characters], both groups padded to a multiple of `tile`, and [words] the index of each.

        A filter beyond the end of a word sees padding only, with one output everywhere: short words keep `room` for it.
        """
        if room >= table.shape[1]:
            fits = table.new_zeros(len(table), dtype=torch.bool)
        else:
            fits = (table[:, SHORT:] == EMPTY).all(1)
        order = (~fits).long().argsort(stable=True)
        count = int(fits.sum())
        short, long = order.split([count, len(order) - count])
        padding = -count % tile
        index = torch.empty_like(order)
        index[short] = torch.arange(count, device=order.device)
        index[long] = torch.arange(len(long), device=order.device) + count + padding
        padded = F.pad(table[short][:, :room], (0, 0, 0, padding), value=EMPTY)
        return cls(short=padded, long=F.pad(table[long], (0, 0, 0, -len(long) % tile), value=EMPTY)), index
