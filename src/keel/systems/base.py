"""What every system of the lineage shares: ids go in, vectors come out."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from keel.config import replace
from keel.errors import KeelError, UsageError
from keel.text.tokenizer import Tokenizer
from keel.text.tokens import Tokens
from keel.train.draw import seed_of
from keel.train.loop import Train
from keel.train.objective import Objective, State, Tensors


@dataclass(frozen=True, kw_only=True)
class Rows(Tensors):
    """A batch of id sequences, padded to the longest."""

    ids: Tensor  # [batch, time]
    lengths: Tensor  # [batch]
    segments: Tensor | None = None  # [batch, time]

    @classmethod
    def pad(cls, sequences: list[list[int]], segments: list[list[int]] | None = None, padding: int = 0) -> Self:
        """Rows of unequal sequences."""
        lengths = [len(sequence) for sequence in sequences]
        time = max(lengths, default=0)

        def fill(lists: list[list[int]], value: int) -> Tensor:
            grid = np.full((len(lists), time), value, dtype=np.int64)
            for row, items in zip(grid, lists, strict=True):
                row[: len(items)] = items
            return torch.from_numpy(grid)

        return cls(
            ids=fill(sequences, padding),
            lengths=torch.tensor(lengths),
            segments=None if segments is None else fill(segments, 0),
        )


@dataclass(frozen=True, kw_only=True)
class Output:
    """What an encoder gives for a batch."""

    top: Tensor  # [batch, time, width]
    layers: list[Tensor] = field(default_factory=list)
    """With `all_layers`: the embedded input, then every block's output, each [batch, time, width]."""
    state: State | None = None


class Recorder(Protocol):
    """Is shown what a network computes on the way, such as attention; pass one to look inside."""

    def __call__(self, name: str, layer: int, value: Tensor) -> None: ...


class Encoder(nn.Module):
    """Ids to vectors. A static word vector is an encoder with no blocks."""

    vocabulary: int
    """How many ids it knows."""
    width: int
    """Of the vectors it gives."""

    def embed(self, rows: Rows) -> Tensor:
        """[batch, time, width]: words, positions and whatever else a row's ids mean before any context."""
        raise NotImplementedError

    def contextualize(
        self,
        vectors: Tensor,
        rows: Rows,
        *,
        state: State | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> Output:
        """The vectors after every block has seen their neighbours."""
        raise NotImplementedError

    def summary(self, output: Output, rows: Rows) -> Tensor:
        """[batch, width]: one vector for each row, the way this system makes it."""
        raise NotImplementedError

    def blocks(self) -> list[nn.Module]:
        return []

    def forward(self, rows: Rows, *, all_layers: bool = False, record: Recorder | None = None) -> Output:
        return self.contextualize(self.embed(rows), rows, all_layers=all_layers, record=record)


@dataclass(frozen=True)
class Framed:
    """One text or pair with the marks that a system puts around it."""

    ids: list[int]
    segments: list[int]
    first: int
    """Where the first text's ids start; the second's follow at `second`."""
    second: int


@dataclass(frozen=True, kw_only=True)
class System:
    """The hyper-parameters of one system; subclasses name their paper's."""

    name: ClassVar[str]
    sizes: ClassVar[dict[str, dict[str, Any]]] = {}
    train: ClassVar[Train]
    """The paper's own way to train it."""
    tunable: ClassVar[tuple[str, ...]] = ()
    """The fields that may change when a trained model goes on learning; the others are its shape."""

    @classmethod
    def sized(cls, size: str, **fields: Any) -> Self:
        """The published shape of that name, with single fields changed."""
        if size not in cls.sizes:
            raise UsageError(f"{cls.name} has no size {size!r}: choose one of {', '.join(cls.sizes) or '(none)'}")
        return replace(cls(), **cls.sizes[size], **fields)

    @property
    def longest(self) -> int:
        """The longest row that the encoder takes."""
        raise NotImplementedError

    @property
    def needs_words(self) -> bool:
        """Whether pre-training asks where words start."""
        return False

    def tuning(self, frozen: bool) -> Train:
        """How to fine-tune it, or the head alone on a frozen encoder."""
        raise NotImplementedError

    def encoder(self, vocabulary: int) -> Encoder:
        """A new encoder for that many ids, with random weights."""
        raise NotImplementedError

    def objective(self, encoder: Any, tokenizer: Tokenizer) -> Objective:
        """What this system is pre-trained by."""
        raise NotImplementedError

    def frame(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> Framed:
        """One or two texts as one row, with this system's marks."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Documents(Tensors):
    """Tokens as tensors: some documents, each a range of sentences, in one long row of ids."""

    ids: Tensor  # [tokens] int16 or int32: the unsigned ids on disk, read as signed
    starts: Tensor  # [sentences + 1] where each sentence starts in ids
    spans: Tensor  # [documents, 2] first sentence and the one past the last
    ends: Tensor  # [documents] how many tokens stand up to the end of each document
    size: int  # how many tokens these documents hold
    word_starts: Tensor | None = None  # [tokens / 8] packed bits

    @classmethod
    def of(cls, tokens: Tokens) -> Self:
        bounds = torch.from_numpy(np.asarray(tokens.documents))
        return cls._over(
            torch.from_numpy(tokens.ids.view(f"i{tokens.ids.itemsize}")),
            torch.from_numpy(np.asarray(tokens.starts)),
            torch.stack([bounds[:-1], bounds[1:]], 1),
            None if tokens.word_starts is None else torch.from_numpy(tokens.word_starts),
        )

    @classmethod
    def _over(cls, ids: Tensor, starts: Tensor, spans: Tensor, word_starts: Tensor | None) -> Self:
        sizes = starts[spans[:, 1]] - starts[spans[:, 0]]
        spans, sizes = spans[sizes > 1], sizes[sizes > 1]  # one token is no context
        if not len(spans):
            raise KeelError("the corpus holds no document of two tokens or more: give it more text")
        ends = sizes.cumsum(0)
        return cls(ids=ids, starts=starts, spans=spans, ends=ends, size=int(ends[-1]), word_starts=word_starts)

    def read(self, places: Tensor) -> Tensor:
        """The ids at these places, as int64."""
        return self.ids[places].long() & ((1 << 8 * self.ids.element_size()) - 1)

    def starts_word(self, places: Tensor) -> Tensor:
        """Whether the token at each place starts a word."""
        if self.word_starts is None:
            raise KeelError("these tokens were built without word bounds: build them again with words=True")
        return (self.word_starts[places >> 3] >> (places & 7)) & 1 == 1

    def split(self, share: float, seed: int) -> tuple[Self, Self | None]:
        """What to learn from and what to hold out: whole documents if they are many, else the ends of long ones."""
        documents = len(self.spans)
        if documents >= 100:
            held = torch.zeros(documents, dtype=torch.bool)
            chosen = torch.randperm(documents, generator=torch.Generator().manual_seed(seed_of(seed, "held out")))
            held[chosen[: max(2, round(share * documents))]] = True
            learned, apart = self.spans[~held], self.spans[held]
        else:
            first, last = self.spans.unbind(1)
            cut = last - torch.where(last - first >= 20, ((last - first) * share).ceil().long(), 0)
            learned, apart = torch.stack([first, cut], 1), torch.stack([cut, last], 1)[cut < last]
        apart = apart[self.starts[apart[:, 1]] - self.starts[apart[:, 0]] > 1]
        if share <= 0 or len(apart) < min(2, documents):  # pairs are drawn from two documents, held out as well
            return self, None
        return (self._over(self.ids, self.starts, learned, self.word_starts),
                self._over(self.ids, self.starts, apart, self.word_starts))  # fmt: skip
