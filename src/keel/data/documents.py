"""Tokens of a corpus as tensors on a device, in documents and sentences, read in shuffled windows or streams."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import Tensor

from keel.data.token_store import Tokens
from keel.errors import KeelError
from keel.training.counter_rng import CounterRng, derive_seed
from keel.training.objective import Tensors


@dataclass(frozen=True, kw_only=True)
class Documents(Tensors):
    """Documents as tensors, each a range of sentences in one array of ids."""

    ids: Tensor  # [tokens] int16 or int32: the unsigned ids on disk, read as signed
    starts: Tensor  # [sentences + 1] where each sentence starts in ids
    spans: Tensor  # [documents, 2] first sentence and the one past the last
    ends: Tensor  # [documents] how many tokens stand up to the end of each document
    size: int  # how many tokens these documents hold
    word_starts: Tensor | None = None  # [tokens / 8] packed bits
    units: Tensor | None = None  # [tokens] uint8, a bit for each level of masking units
    regions: Tensor | None = None  # [languages + 1] the first document of each language, and the number of documents
    _cuts: dict[tuple[int, str], tuple[Tensor, int]] = field(default_factory=dict, repr=False)
    _rings: dict[str, tuple[Tensor, Tensor, Tensor, int]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, tokens: Tokens, least: int = 2) -> Self:
        """Documents of `least` tokens or more: one token is no context."""
        bounds = torch.from_numpy(np.asarray(tokens.documents))
        return cls._over(
            torch.from_numpy(tokens.ids.view(f"i{tokens.ids.itemsize}")),
            torch.from_numpy(np.asarray(tokens.starts)),
            torch.stack([bounds[:-1], bounds[1:]], 1),
            least,
            word_starts=None if tokens.word_starts is None else torch.from_numpy(tokens.word_starts),
            units=None if tokens.units is None else torch.from_numpy(tokens.units),
        )

    def select(self, spans: Tensor) -> Self:
        """These documents [documents, 2] of the same tokens, in this order, with repeats; those of one token are left
        out."""
        return self._over(self.ids, self.starts, spans, word_starts=self.word_starts, units=self.units)

    @classmethod
    def _over(
        cls,
        ids: Tensor,
        starts: Tensor,
        spans: Tensor,
        least: int = 2,
        *,
        word_starts: Tensor | None = None,
        units: Tensor | None = None,
    ) -> Self:
        sizes = starts[spans[:, 1]] - starts[spans[:, 0]]
        spans, sizes = spans[sizes >= least], sizes[sizes >= least]
        if not len(spans):
            raise KeelError("the corpus holds no document of two tokens or more: give it more text")
        ends = sizes.cumsum(0)
        size = int(ends[-1])
        return cls(ids=ids, starts=starts, spans=spans, ends=ends, size=size, word_starts=word_starts, units=units)

    def tokens_before(self, document: Tensor) -> Tensor:
        """Number of tokens before each of these documents."""
        return torch.where(document > 0, self.ends[document - 1], 0)

    def region_of(self, document: Tensor) -> tuple[Tensor | int, Tensor | int]:
        """First token and number of tokens of the language that each of these documents is in; of all without
        languages."""
        if self.regions is None:
            return 0, self.size
        region = torch.searchsorted(self.regions, document, right=True)
        first, last = self.regions[region - 1], self.regions[region]
        begin = self.tokens_before(first)
        return begin, self.ends[last - 1] - begin

    def window_count(self, room: int) -> int:
        """Number of windows of `room` tokens in an epoch."""
        return self._cut(room)[1]

    def epoch_windows(self, rng: CounterRng, rows: Tensor, room: int) -> Tensor:
        """[examples] first token of each example's window; an epoch reads all windows in shuffled order."""
        before, count = self._cut(room)
        index, _ = rng.epoch_order(rows, count)
        document = torch.searchsorted(before, index, right=True) - 1
        return self.tokens_before(document) + (index - before[document]) * _stride(room)

    def _cut(self, room: int) -> tuple[Tensor, int]:
        """[documents] number of windows before each document, and in all; computed once."""
        key = (room, str(self.ends.device))
        if key not in self._cuts:
            sizes = self.ends.diff(prepend=self.ends.new_zeros(1))
            counts = torch.where(sizes > room, -(-sizes // _stride(room)), 1)  # a short document has one
            self._cuts[key] = counts.cumsum(0) - counts, int(counts.sum())
        return self._cuts[key]

    def read_streams(self, rng: CounterRng, rows: Tensor, length: int, *, end: int, backwards: bool = False) -> Tensor:
        """[examples, length + 1] ids for truncated BPTT; the last id is the first one of the same example's next step.

        All text is circular, with `end` after each sentence and once more after each document. The examples of a step
        are parallel streams at equal distances, and every step advances each by `length` tokens.
        """
        size = self.stream_size
        place = rows * size // rng.batch_size + rng.first_example // rng.batch_size * length
        place = (place[:, None] + torch.arange(length + 1, device=rows.device)) % size
        return self._on_ring(size - 1 - place if backwards else place, end)

    def read_stream_window(
        self, number: int, length: int, *, end: int, backwards: bool = False
    ) -> tuple[Tensor, Tensor]:
        """[1, length + 1] ids of the `number`-th window of the same text as one stream, from the `end` before it to its
        end, where the last window is shorter; and weights [1, length, 2] of the predicted tokens.

        The weights are for two sums: of all tokens, and of those that do not end a document.
        """
        size = self.stream_size
        place = torch.arange(number * length, min((number + 1) * length, size) + 1, device=self.ends.device)
        place = (size - 1 - place if backwards else place - 1) % size
        first, last = self.spans.unbind(1)
        after = self.ends + (last - first + 1).cumsum(0)  # the last end token of each document
        inner = ~torch.isin(place[1:], torch.cat([after - 1, after - 2]))
        weights = torch.stack([torch.ones_like(inner), inner], -1).float()
        return self._on_ring(place, end)[None], weights[None]

    def _on_ring(self, place: Tensor, end: int) -> Tensor:
        begins, sizes, ends, _ = self._stream_index()
        sentence = torch.searchsorted(ends, place, right=True)
        inside = place - torch.where(sentence > 0, ends[sentence - 1], 0)
        word = inside < sizes[sentence]
        return torch.where(word, self.read(begins[sentence] + torch.where(word, inside, 0)), end)

    @property
    def stream_size(self) -> int:
        """Tokens and end tokens that `read_streams` reads in an epoch."""
        return self._stream_index()[3]

    def _stream_index(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """[sentences] start in ids, tokens, tokens and end tokens up to its end, and the total; computed once, as it
        synchronizes with a GPU."""
        key = str(self.ends.device)
        if key not in self._rings:
            first, last = self.spans.unbind(1)
            counts = last - first
            sentences = torch.arange(int(counts.sum()), device=first.device)
            sentences += (first - (counts.cumsum(0) - counts)).repeat_interleave(counts)
            sizes = self.starts[sentences + 1] - self.starts[sentences]
            end_tokens = torch.ones_like(sizes)
            end_tokens[counts.cumsum(0) - 1] += 1
            ends = (sizes + end_tokens).cumsum(0)
            self._rings[key] = self.starts[sentences], sizes, ends, int(ends[-1])
        return self._rings[key]

    @property
    def concatenated_size(self) -> int:
        """Number of tokens, and of end tokens after the documents."""
        return self.size + len(self.spans)

    def read_concatenated(self, positions: Tensor, *, end: int) -> Tensor:
        """Ids at these positions of all text, circular, with `end` after each document."""
        positions = positions % self.concatenated_size
        ends = self.ends + torch.arange(1, len(self.ends) + 1, device=positions.device)
        document = torch.searchsorted(ends, positions, right=True)
        left = ends[document] - 1 - positions  # tokens up to the document's end
        stop = self.starts[self.spans[document, 1]]
        return torch.where(left > 0, self.read(stop - left.clamp(min=1)), end)

    def locate_token(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Index in ids of the n-th token, and its document."""
        document = torch.searchsorted(self.ends, token, right=True)
        return self.starts[self.spans[document, 1]] - (self.ends[document] - token), document

    def window_around(self, token: Tensor, room: Tensor | int) -> tuple[Tensor, Tensor, Tensor]:
        """Start of a window that contains the n-th token, the end of its document, and the document.

        The window starts with a sentence if one starts nearby, and early enough to be full before the document ends.
        """
        token, document = self.locate_token(token)
        first, last = self.spans[document].unbind(1)
        stop = self.starts[last]
        begin = self.starts[torch.searchsorted(self.starts, token, right=True) - 1]
        begin = torch.where(token - begin <= room // 4, begin, token)  # inside a sentence too long to go back
        # The first sentence from which the rest of the document fits; inside the one before it if much room were left.
        fitting = self.starts[torch.maximum(first, torch.searchsorted(self.starts, stop - room))]
        filling = torch.where(2 * (stop - fitting) >= room, fitting, torch.maximum(stop - room, self.starts[first]))
        return torch.minimum(begin, filling), stop, document

    def read(self, positions: Tensor) -> Tensor:
        """Ids at these positions, as int64."""
        return self.ids[positions].long() & ((1 << 8 * self.ids.element_size()) - 1)

    def document_arrays(self, documents: slice = slice(None)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For kernels on a CPU: the unsigned ids, and where each of these documents begins and ends in them."""
        begins, ends = (np.ascontiguousarray(self.starts.numpy()[bounds]) for bounds in self.spans[documents].numpy().T)
        return self.ids.numpy().view(f"u{self.ids.element_size()}"), begins, ends

    def sentence_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same for all sentences."""
        first, last = self.spans.numpy().T
        sizes, starts = last - first, self.starts.numpy()
        numbers = np.arange(sizes.sum()) + np.repeat(first - (sizes.cumsum() - sizes), sizes)
        return self.ids.numpy().view(f"u{self.ids.element_size()}"), starts[numbers], starts[numbers + 1]

    def starts_word(self, positions: Tensor) -> Tensor:
        """Whether the token at each position starts a word."""
        if self.word_starts is None:
            raise KeelError("these tokens were built without word boundaries: build them again with words=True")
        return (self.word_starts[positions >> 3] >> (positions & 7)) & 1 == 1

    def unit_codes(self, positions: Tensor) -> Tensor:
        """The levels of which a masking unit starts at each position, as bits (see `MaskingUnits`)."""
        if self.units is None:
            raise KeelError("these tokens were built without masking units: build them again with units=MaskingUnits()")
        return self.units[positions].long()

    def split_held_out(self, share: float, seed: int) -> tuple[Self, Self | None]:
        """Training and held-out documents: whole documents if there are many, else the ends of long ones."""
        documents = len(self.spans)
        if documents >= 100:
            chosen = torch.randperm(documents, generator=torch.Generator().manual_seed(derive_seed(seed, "held out")))
            held = (chosen < max(2, round(share * documents))).to(self.spans.device)
            learned, held_out = self.spans[~held], self.spans[held]
        else:
            first, last = self.spans.unbind(1)
            cut = last - torch.where(last - first >= 20, ((last - first) * share).ceil().long(), 0)
            learned, held_out = torch.stack([first, cut], 1), torch.stack([cut, last], 1)[cut < last]
        held_out = held_out[self.starts[held_out[:, 1]] - self.starts[held_out[:, 0]] > 1]
        if share <= 0 or len(held_out) < min(2, documents):  # sentence pairs need two documents
            return self, None
        return self.select(learned), self.select(held_out)


def _stride(room: int) -> int:
    """Distance of windows: less than the room by as much as `window_around` may move back to a sentence start."""
    return room - room // 4
