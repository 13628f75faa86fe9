"""Labelled examples as rows of ids, and the batches drawn from them: of about one length, padded or packed."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from keel.data.examples import Examples
from keel.data.token_batch import SubwordUnits, TokenBatch
from keel.training.counter_rng import CounterRng, derive_seed
from keel.training.objective import Tensors

TILE = 128
"""Packed rows fill up whole tiles of this many tokens."""
WORD_TILE = 16
"""Of packed rows, the longest is taken to have a multiple of so many words."""
POOL = 50
"""Batches that are sorted by length together: enough to leave next to no padding, few enough to keep batches mixed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedExamples:
    """Examples as rows of ids, end to end; a text too long for one row has several, its windows."""

    examples: Examples
    ids: np.ndarray  # [tokens] int32
    segments: np.ndarray | None  # [tokens] uint8
    starts: np.ndarray  # [rows + 1] where each row starts in ids
    example_indices: np.ndarray  # [rows] the example that each row is from
    weights: np.ndarray  # [rows] float32: 1 / windows of its example, so that examples weigh alike
    targets: Tensor | None  # [examples, ...]
    batch_size: int
    """Rows, or groups of them, in one update of the loop: these are kept to about one length."""
    subword_units: SubwordUnits | None = (
        None  # of the distinct words, for systems that spell; ids then are places in it
    )
    features: Tensor | None = None  # [rows or asked, width] what the task picks of a frozen encoder's output
    selected: np.ndarray | None = None  # [asked] places in ids of the tokens that a task asks about, if not about rows
    selected_starts: np.ndarray | None = None  # [rows + 1] where those of each row start; targets are in their order
    target_ids: np.ndarray | None = None  # [tokens] int32: what is to be written of each row, with its end
    target_starts: np.ndarray | None = None  # [rows + 1] where that of each row starts
    characters: SubwordUnits | None = None  # of the distinct words that are asked about
    selected_words: np.ndarray | None = None  # [asked] the place of each in `letters`
    group_starts: np.ndarray | None = None  # [groups + 1] where the rows of each start that one answer is made from
    _orders: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        """What steps draw from: rows or, where an answer takes several of them, groups."""
        return len(self.example_indices) if self.group_starts is None else len(self.group_starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def packed_batch(self, index: np.ndarray) -> TokenBatch:
        """These rows end to end, in as few sizes as makes sense: what is of one size is one program for a GPU."""
        lengths = self.lengths[index]
        starts = np.cumsum(lengths) - lengths
        total = -(-lengths.sum() // TILE) * TILE
        places = np.zeros(total, np.int64)
        places[: lengths.sum()] = np.arange(lengths.sum()) - np.repeat(starts, lengths)
        source = np.zeros(total, np.int64)
        source[: lengths.sum()] = places[: lengths.sum()] + np.repeat(self.starts[index], lengths)

        def gather(flat: np.ndarray) -> Tensor:
            return torch.from_numpy(flat[source].astype(np.int64))[None]

        rows = TokenBatch(
            ids=gather(self.ids),
            lengths=torch.from_numpy(lengths),
            segments=None if self.segments is None else gather(self.segments),
            sequence_starts=torch.from_numpy(starts),
            position_ids=torch.from_numpy(places)[None],
            max_seqlen=1 << int(lengths.max() - 1).bit_length(),
        )
        return rows if self.subword_units is None else rows.with_subword_units(self.subword_units)

    def padded_batch(self, index: np.ndarray, multiple: int = 1) -> TokenBatch:
        """These rows, padded to the longest of them, or to the next multiple of so many tokens."""
        lengths = torch.from_numpy(self.starts[index + 1] - self.starts[index])
        ids = pad_sequences(self.ids, self.starts, index, multiple)
        segments = None if self.segments is None else pad_sequences(self.segments, self.starts, index, multiple)
        rows = TokenBatch(ids=ids, lengths=lengths, segments=segments)
        return rows if self.subword_units is None else rows.with_subword_units(self.subword_units)

    def id_lists(self) -> list[list[int]]:
        """The ids of each row."""
        return [part.tolist() for part in np.split(self.ids, self.starts[1:-1])]

    def select_tokens(self, index: np.ndarray, rows: TokenBatch | None) -> "tuple[TokenSelection | None, np.ndarray]":
        """What is asked about in these rows, and [batch, most] the number of each among all that is asked about.

        Without the rows, of whose output the features are known, places in them mean nothing.
        """
        if self.selected is None or self.selected_starts is None:
            return None, index
        counts = np.diff(self.selected_starts)[index]
        most = max(1, int(counts.max()))
        if rows is None:
            firsts = np.zeros_like(index)
        elif rows.sequence_starts is None:
            firsts = np.arange(len(index)) * rows.ids.shape[1]
        else:
            firsts = rows.sequence_starts.numpy()
        if (rows is None and self.features is not None and self.features.is_cuda) or (
            rows and rows.sequence_starts is not None
        ):
            most = -(-most // WORD_TILE) * WORD_TILE
        place = np.arange(most)
        inside = place < counts[:, None]
        numbers = np.where(inside, self.selected_starts[index][:, None] + place, -1)
        slots = self.selected[numbers] + (firsts - self.starts[index])[:, None]
        asked = TokenSelection(positions=torch.from_numpy(np.where(inside, slots, 0)), counts=torch.from_numpy(counts))
        if self.characters is not None and self.selected_words is not None:
            words, places = np.unique(self.selected_words[numbers], return_inverse=True)
            letters = self.characters.index_select(torch.from_numpy(words))
            asked = replace(asked, character_indices=torch.from_numpy(places), characters=letters)
        return asked, numbers

    def expand_groups(self, drawn: np.ndarray) -> tuple[np.ndarray, Tensor | None]:
        """The rows of what was drawn and, of groups, [groups, most] the place of each one's rows among these, -1 where
        it has fewer than others."""
        if self.group_starts is None:
            return drawn, None
        counts = np.diff(self.group_starts)[drawn]
        starts = np.cumsum(counts) - counts
        index = np.arange(counts.sum()) + np.repeat(self.group_starts[drawn] - starts, counts)
        place = np.arange(counts.max())
        return index, torch.from_numpy(np.where(place < counts[:, None], starts[:, None] + place, -1))

    def step_indices(self, draw: CounterRng, rows: range) -> np.ndarray:
        """What a step draws: epoch follows epoch without a gap, so a batch may end one and begin the next."""
        place = draw.first_example + np.arange(rows.start, rows.stop)
        epoch, place = np.divmod(place, len(self))
        index = np.empty_like(place)
        for number in np.unique(epoch).tolist():
            index[epoch == number] = self.epoch_order(draw.seed, number)[place[epoch == number]]
        return index

    def epoch_order(self, seed: int, epoch: int) -> np.ndarray:
        """All of it in the order of one epoch: shuffled, sorted by length within pools, the batches shuffled again."""
        if (seed, epoch) not in self._orders:
            if len(self._orders) > 3:
                self._orders.clear()
            self._orders[seed, epoch] = self._make_order(seed, epoch)
        return self._orders[seed, epoch]

    def _make_order(self, seed: int, epoch: int) -> np.ndarray:
        random = np.random.default_rng(derive_seed(seed, "epoch", epoch))
        order = random.permutation(len(self))
        pool = np.arange(len(self)) // (POOL * self.batch_size)
        sizes = [
            self.lengths if self.group_starts is None else np.maximum.reduceat(self.lengths, self.group_starts[:-1])
        ]
        if self.target_starts is not None:  # of about one length on both sides
            sizes.append(np.diff(self.target_starts))
        order = order[np.lexsort((*(each[order] for each in sizes), pool))]
        # Where the epoch before ended inside a batch, the first rows of this one fill it up.
        head = min(-epoch * len(self) % self.batch_size, len(self))
        tail = len(self) - (len(self) - head) % self.batch_size
        batches = order[head:tail].reshape(-1, self.batch_size)
        return np.concatenate([order[:head], random.permutation(batches).ravel(), order[tail:]])


def pad_sequences(flat: np.ndarray, starts: np.ndarray, index: np.ndarray, multiple: int = 1) -> Tensor:
    """[batch, time] these of the rows that stand end to end in `flat`, filled up with zeros to the longest of them, or
    to the next multiple of so many."""
    begins = starts[index]
    lengths = starts[index + 1] - begins
    place = np.arange(-(-lengths.max() // multiple) * multiple)
    padding = place >= lengths[:, None]
    grid = flat[np.where(padding, 0, begins[:, None] + place)].astype(np.int64)
    grid[padding] = 0  # any id will do: nothing looks at padding
    return torch.from_numpy(grid)


@dataclass(frozen=True, kw_only=True)
class TokenSelection(Tensors):
    """The tokens that a task asks about, such as each word's first piece, where it does not ask about whole rows."""

    positions: Tensor  # [batch, most] their places among all tokens of the rows, padding included
    counts: Tensor  # [batch] how many each row has: what stands beyond means nothing
    character_indices: Tensor | None = None  # [batch, most] the place of each word in `letters`
    characters: SubwordUnits | None = None  # how the distinct words are spelled

    def gather(self, top: Tensor) -> Tensor:
        """[batch, most, width]: their vectors among those of all tokens."""
        return top.flatten(0, 1)[self.positions]

    @property
    def mask(self) -> Tensor:
        """[batch, most]: whether there is a token, and not only room for one."""
        return torch.arange(self.positions.shape[1], device=self.positions.device) < self.counts[:, None]


@dataclass(frozen=True, kw_only=True)
class TaskBatch(Tensors):
    """Rows, what they are, and how much each counts."""

    inputs: TokenBatch | None  # where features are known, nothing reads them
    targets: Tensor  # [batch, ...]
    weights: Tensor  # [batch]
    features: Tensor | None  # [batch, ..., width]
    selection: TokenSelection | None = None
    group_members: Tensor | None = None  # [groups, most] of `Prepared.members`; targets and shares then are the groups'
