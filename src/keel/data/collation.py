"""Collation: labelled examples as token ids, and batches of similar length from them, padded or packed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from keel.data.examples import Examples
from keel.data.input_windows import concatenated_ranges
from keel.data.token_batch import SubwordUnits, TokenBatch, pad_sequences
from keel.training.counter_rng import CounterRng, derive_seed
from keel.training.objective import Tensors

TILE = 128
"""Packed batches have a multiple of this many tokens: fewer shapes, fewer compiled kernels."""
WORD_TILE = 16
"""The same for the selected tokens of a sequence."""
BUCKET = 50
"""Batches that are sorted by length together: enough to avoid padding, few enough to keep batches mixed."""
CACHED_EPOCHS = 4


def epoch_rng(seed: int, epoch: int) -> np.random.Generator:
    """The generator that shuffles one epoch."""
    return np.random.default_rng(derive_seed(seed, "epoch", epoch))


class EpochOrder:
    """Example indices of each step; `make_order(seed, epoch)` is a permutation of `size` examples.

    A corpus is too large for an array per epoch: `CounterRng.epoch_order` computes its permutation index by index.
    """

    def __init__(self, size: int, make_order: Callable[[int, int], np.ndarray]):
        self.size, self.make_order = size, make_order
        self._cache: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        """[size] all examples in the order of one epoch."""
        if (seed, epoch) not in self._cache:
            if len(self._cache) >= CACHED_EPOCHS:
                self._cache.clear()
            self._cache[seed, epoch] = self.make_order(seed, epoch)
        return self._cache[seed, epoch]

    def step_indices(self, rng: CounterRng, examples: range) -> np.ndarray:
        """The examples of a part of a step; a batch may end one epoch and begin the next."""
        epochs, position = np.divmod(int(rng.first_example) + np.arange(examples.start, examples.stop), self.size)
        indices = np.empty_like(position)
        for epoch in np.unique(epochs).tolist():
            indices[epochs == epoch] = self(rng.seed, epoch)[position[epochs == epoch]]
        return indices


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedExamples:
    """Examples as concatenated id sequences; a long text has several, its windows."""

    examples: Examples
    ids: np.ndarray  # [tokens] int32
    segments: np.ndarray | None  # [tokens] uint8
    starts: np.ndarray  # [sequences + 1] where each sequence starts in ids
    example_indices: np.ndarray  # [sequences] the example of each
    weights: np.ndarray  # [sequences] float32: 1 / windows of its example, so that examples count alike
    targets: Tensor | None  # [examples, ...]
    batch_size: int
    """Sequences, or groups of them, per step."""
    subword_units: SubwordUnits | None = None  # of the distinct words, if the system uses them; ids index into these
    features: Tensor | None = None  # [sequences or selected, width] frozen encoder's output that the head reads
    selected: np.ndarray | None = None  # [selected] positions in ids of the tokens that the head classifies
    selected_starts: np.ndarray | None = None  # [sequences + 1] where those of each sequence start
    selected_roles: np.ndarray | None = None  # [selected] uint8: what each is, where they are not all alike
    selected_offsets: np.ndarray | None = None  # [selected, 2] characters in the example's text
    target_ids: np.ndarray | None = None  # [tokens] int32: concatenated target sequences with their end token
    target_starts: np.ndarray | None = None  # [sequences + 1]
    characters: SubwordUnits | None = None  # of the distinct selected words
    selected_words: np.ndarray | None = None  # [selected] the index of each in `characters`
    word_hashes: np.ndarray | None = None  # [selected] int64, for n-grams of words
    group_starts: np.ndarray | None = None  # [groups + 1] first sequence of each group that yields one prediction

    def __len__(self) -> int:
        """Units of an epoch: sequences or, where one prediction needs several of them, groups."""
        return len(self.example_indices) if self.group_starts is None else len(self.group_starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def packed_batch(self, index: np.ndarray) -> TokenBatch:
        """These sequences without padding between them."""
        lengths = self.lengths[index]
        starts = np.cumsum(lengths) - lengths
        padding = np.zeros(-lengths.sum() % TILE, np.int64)
        positions = np.append(concatenated_ranges(np.zeros_like(lengths), lengths), padding)
        source = np.append(concatenated_ranges(self.starts[index], lengths), padding)

        def gather(flat: np.ndarray) -> Tensor:
            return torch.from_numpy(flat[source].astype(np.int64))[None]

        batch = TokenBatch(
            ids=gather(self.ids),
            lengths=torch.from_numpy(lengths),
            segments=None if self.segments is None else gather(self.segments),
            sequence_starts=torch.from_numpy(starts),
            position_ids=torch.from_numpy(positions)[None],
            max_seqlen=1 << int(lengths.max() - 1).bit_length(),
        )
        return batch if self.subword_units is None else batch.with_subword_units(self.subword_units)

    def padded_batch(self, index: np.ndarray, multiple: int = 1) -> TokenBatch:
        """These sequences, padded to a multiple of a length."""
        batch = TokenBatch(
            ids=pad_sequences(self.ids, self.starts, index, multiple),
            lengths=torch.from_numpy(self.starts[index + 1] - self.starts[index]),
            segments=None if self.segments is None else pad_sequences(self.segments, self.starts, index, multiple),
        )
        return batch if self.subword_units is None else batch.with_subword_units(self.subword_units)

    def id_lists(self) -> list[list[int]]:
        """The ids of each sequence."""
        return [part.tolist() for part in np.split(self.ids, self.starts[1:-1])]

    def select_tokens(self, index: np.ndarray, inputs: TokenBatch | None) -> "tuple[TokenSelection | None, np.ndarray]":
        """The selected tokens of these sequences, and [batch, most] the index of each among all selected ones.

        Without `inputs`, where features are cached, positions are meaningless.
        """
        if self.selected is None or self.selected_starts is None:
            return None, index
        counts = np.diff(self.selected_starts)[index]
        most = max(1, int(counts.max()))
        packed = inputs is not None and inputs.sequence_starts is not None
        if inputs is None:
            first_positions = np.zeros_like(index)
        elif inputs.sequence_starts is None:
            first_positions = np.arange(len(index)) * inputs.ids.shape[1]
        else:
            first_positions = inputs.sequence_starts.numpy()
        if packed or (inputs is None and self.features is not None and self.features.is_cuda):
            most = -(-most // WORD_TILE) * WORD_TILE
        column = np.arange(most)
        mask = column < counts[:, None]
        numbers = np.where(mask, self.selected_starts[index][:, None] + column, -1)
        positions = self.selected[numbers] + (first_positions - self.starts[index])[:, None]
        selection = TokenSelection(
            positions=torch.from_numpy(np.where(mask, positions, 0)), counts=torch.from_numpy(counts)
        )
        if self.selected_roles is not None:
            selection = replace(selection, roles=torch.from_numpy(self.selected_roles[numbers].astype(np.int64)))
        if self.characters is not None and self.selected_words is not None:
            words, indices = np.unique(self.selected_words[numbers], return_inverse=True)
            characters = self.characters.index_select(torch.from_numpy(words))
            selection = replace(selection, character_indices=torch.from_numpy(indices), characters=characters)
        if self.word_hashes is not None:
            selection = replace(selection, word_hashes=torch.from_numpy(np.where(mask, self.word_hashes[numbers], 0)))
        return selection, numbers

    def expand_groups(self, index: np.ndarray) -> tuple[np.ndarray, Tensor | None]:
        """The sequences of these groups and [groups, most] the position of each group's members among them, -1 for
        padding; without groups the index itself and None."""
        if self.group_starts is None:
            return index, None
        counts = np.diff(self.group_starts)[index]
        starts = np.cumsum(counts) - counts
        sequences = concatenated_ranges(self.group_starts[index], counts)
        column = np.arange(counts.max())
        return sequences, torch.from_numpy(np.where(column < counts[:, None], starts[:, None] + column, -1))

    def step_indices(self, rng: CounterRng, examples: range) -> np.ndarray:
        """The sequences, or groups, of a part of a step."""
        return self.epoch_order.step_indices(rng, examples)

    @cached_property
    def epoch_order(self) -> EpochOrder:
        return EpochOrder(len(self), self._bucketed_order)

    def _bucketed_order(self, seed: int, epoch: int) -> np.ndarray:
        """Shuffled, sorted by length within buckets, then the batches shuffled."""
        rng = epoch_rng(seed, epoch)
        order = rng.permutation(len(self))
        bucket = np.arange(len(self)) // (BUCKET * self.batch_size)
        lengths = self.lengths
        if self.group_starts is not None:
            lengths = np.maximum.reduceat(lengths, self.group_starts[:-1])
        sort_keys = [lengths]
        if self.target_starts is not None:  # similar lengths on both sides
            sort_keys.append(np.diff(self.target_starts))
        order = order[np.lexsort((*(key[order] for key in sort_keys), bucket))]
        # Where the previous epoch ended within a batch, the first sequences of this one complete it.
        head = min(-epoch * len(self) % self.batch_size, len(self))
        tail = len(self) - (len(self) - head) % self.batch_size
        batches = order[head:tail].reshape(-1, self.batch_size)
        return np.concatenate([order[:head], rng.permutation(batches).ravel(), order[tail:]])


@dataclass(frozen=True, kw_only=True)
class TokenSelection(Tensors):
    """The tokens that a head classifies, such as the first subword of each word."""

    positions: Tensor  # [batch, most] among all tokens of the batch, padding included
    counts: Tensor  # [batch] number in each sequence; the rest is padding
    character_indices: Tensor | None = None  # [batch, most] the index of each word in `characters`
    characters: SubwordUnits | None = None  # of the distinct words
    roles: Tensor | None = None  # [batch, most] `EncodedExamples.selected_roles`
    word_hashes: Tensor | None = None  # [batch, most] `EncodedExamples.word_hashes`, 0 for padding

    def gather(self, hidden: Tensor) -> Tensor:
        """[batch, most, width]: their vectors among those of all tokens."""
        return hidden.flatten(0, 1)[self.positions]

    @property
    def mask(self) -> Tensor:
        """[batch, most]: False for padding."""
        return torch.arange(self.positions.shape[1], device=self.positions.device) < self.counts[:, None]


@dataclass(frozen=True, kw_only=True)
class TaskBatch(Tensors):
    """Inputs, targets and example weights of a step."""

    inputs: TokenBatch | None  # None where features are cached
    targets: Tensor  # [batch, ...]
    weights: Tensor  # [batch]
    features: Tensor | None  # [batch, ..., width]
    selection: TokenSelection | None = None
    group_members: Tensor | None = None  # [groups, most] of `expand_groups`; targets and weights are per group
