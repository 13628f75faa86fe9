"""What goes into a network and what comes out: rows of ids, how words are spelled, vectors."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from keel.training.objective import Tensors


@dataclass(frozen=True, kw_only=True)
class SubwordUnits(Tensors):
    """Some words with the parts that each is spelled by: n-grams (fastText) or characters (ELMo)."""

    word_ids: Tensor  # [words] their ids; -1 for one that has none, as it was never met in training
    unit_ids: Tensor  # [parts] those of the first word, then those of the second, ...
    unit_starts: Tensor  # [words] where each word's parts start

    @property
    def unit_counts(self) -> Tensor:
        """[words] how many parts each has."""
        return self.unit_starts.diff(append=self.unit_starts.new_full((1,), len(self.unit_ids)))

    def index_select(self, index: Tensor) -> Self:
        """The words at these places alone."""
        sizes = self.unit_counts[index]
        starts = sizes.cumsum(0) - sizes
        sources = torch.arange(int(sizes.sum())) + (self.unit_starts[index] - starts).repeat_interleave(sizes)
        return replace(self, word_ids=self.word_ids[index], unit_ids=self.unit_ids[sources], unit_starts=starts)


@dataclass(frozen=True, kw_only=True)
class TokenBatch(Tensors):
    """A batch of id sequences, padded to the longest; or packed: end to end in one row, without padding."""

    ids: Tensor  # [batch, time], or packed [1, tokens]
    lengths: Tensor  # [batch]
    segments: Tensor | None = None  # as ids
    subword_units: SubwordUnits | None = None
    sequence_starts: Tensor | None = None  # [batch]: where each sequence starts, if packed
    position_ids: Tensor | None = None  # [1, tokens]: the place of each token in its sequence, if packed
    max_seqlen: int = 0
    """At least the longest length, if packed."""

    @classmethod
    def pad(cls, sequences: list[list[int]], segments: list[list[int]] | None = None) -> Self:
        """Rows of unequal sequences."""
        lengths = [len(sequence) for sequence in sequences]
        time = max(lengths, default=0)

        def fill(lists: list[list[int]]) -> Tensor:
            grid = np.zeros((len(lists), time), dtype=np.int64)  # any id will do: nothing looks at padding
            for row, items in zip(grid, lists, strict=True):
                row[: len(items)] = items
            return torch.from_numpy(grid)

        return cls(
            ids=fill(sequences),
            lengths=torch.tensor(lengths),
            segments=None if segments is None else fill(segments),
        )

    def with_subword_units(self, spelling: SubwordUnits) -> Self:
        """These rows, whose ids are places in `spelling`, with no more of it than they need."""
        used, ids = self.ids.unique(return_inverse=True)
        return replace(self, ids=ids, subword_units=spelling.index_select(used))


def distinct_ids(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different ids, in order, and [ids] int32 the place of each among them; many times as fast as sorting."""
    if ids.max(initial=0) > 1 << 24:  # words that no vocabulary has, in a server that runs for long
        used, places = np.unique(ids, return_inverse=True)
        return used, places.astype(np.int32)
    used = np.flatnonzero(np.bincount(ids))
    places = np.zeros(ids.max(initial=0) + 1, np.int32)
    places[used] = np.arange(len(used))
    return used, places[ids]
