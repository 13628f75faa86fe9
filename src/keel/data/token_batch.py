"""Input of an encoder: a batch of token ids, padded or packed, with the subword units of its words."""

from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import numpy as np
import torch
from torch import Tensor

from keel.training.objective import Tensors


@dataclass(frozen=True, kw_only=True)
class SubwordUnits(Tensors):
    """Words with the units that each is composed of: n-grams (fastText) or characters (ELMo)."""

    word_ids: Tensor  # [words], -1 for a word that is not in the vocabulary
    unit_ids: Tensor  # [units] those of the first word, then those of the second, ...
    unit_starts: Tensor  # [words] where the units of each word start

    @property
    def unit_counts(self) -> Tensor:
        """[words] number of units of each."""
        return self.unit_starts.diff(append=self.unit_starts.new_full((1,), len(self.unit_ids)))

    def index_select(self, index: Tensor) -> Self:
        """The words at these indices."""
        sizes = self.unit_counts[index]
        starts = sizes.cumsum(0) - sizes
        sources = torch.arange(int(sizes.sum())) + (self.unit_starts[index] - starts).repeat_interleave(sizes)
        return replace(self, word_ids=self.word_ids[index], unit_ids=self.unit_ids[sources], unit_starts=starts)


@dataclass(frozen=True, kw_only=True)
class TokenBatch(Tensors):
    """A batch of id sequences, padded to the longest; or packed: concatenated without padding."""

    ids: Tensor  # [batch, time], or packed [1, tokens]
    lengths: Tensor  # [batch]
    segments: Tensor | None = None  # as ids
    subword_units: SubwordUnits | None = None
    sequence_starts: Tensor | None = None  # [batch] start of each sequence, if packed
    position_ids: Tensor | None = None  # [1, tokens] position of each token in its sequence, if packed
    max_seqlen: int = 0
    """Upper bound of the lengths, if packed."""
    embeddings: Tensor | None = None  # [batch, time, width] input embeddings instead of those of the ids

    @classmethod
    def pad(cls, sequences: list[list[int]], segments: list[list[int]] | None = None) -> Self:
        """A padded batch of sequences of unequal length."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        starts, index = np.append(0, np.cumsum(lengths)), np.arange(len(sequences))

        def padded(lists: list[list[int]]) -> Tensor:
            return pad_sequences(np.fromiter(chain.from_iterable(lists), np.int64), starts, index)

        return cls(
            ids=padded(sequences),
            lengths=torch.from_numpy(lengths),
            segments=None if segments is None else padded(segments),
        )

    @classmethod
    def unpadded(cls, ids: Tensor) -> Self:
        """A batch of sequences [batch, time] of equal length."""
        return cls(ids=ids, lengths=ids.new_full((len(ids),), ids.shape[1]))

    def with_subword_units(self, units: SubwordUnits) -> Self:
        """This batch, whose ids index into `units`, with only those units that it uses."""
        used, ids = self.ids.unique(return_inverse=True)
        return replace(self, ids=ids, subword_units=units.index_select(used))


def pad_sequences(flat: np.ndarray, starts: np.ndarray, index: np.ndarray, multiple: int = 1) -> Tensor:
    """[batch, time] some of the sequences that are concatenated in `flat`, zero-padded to a multiple of a length."""
    begins = starts[index]
    lengths = starts[index + 1] - begins
    time = np.arange(-(-lengths.max(initial=0) // multiple) * multiple)
    padding = time >= lengths[:, None]
    grid = flat[np.where(padding, 0, begins[:, None] + time)].astype(np.int64)
    grid[padding] = 0  # any id would do: padding is masked
    return torch.from_numpy(grid)


def distinct_ids(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids in order, and [ids] int32 the index of each among them; much faster than sorting."""
    if ids.max(initial=0) > 1 << 24:  # out-of-vocabulary words of a server that runs for long
        used, indices = np.unique(ids, return_inverse=True)
        return used, indices.astype(np.int32)
    used = np.flatnonzero(np.bincount(ids))
    indices = np.zeros(ids.max(initial=0) + 1, np.int32)
    indices[used] = np.arange(len(used))
    return used, indices[ids]
