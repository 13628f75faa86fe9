"""A network between encoder and task head: CNN or recurrent layers over word vectors, which may be extended by
character features (Kim 2014; Huang et al. 2015; Lample et al. 2016; Ma and Hovy 2016).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.token_batch import SubwordUnits
from keel.nn.convolution import ConvolutionFilters, max_over_time
from keel.nn.recurrent import Cell, RecurrentLayers

HeadNetworkKind = Literal["none", "cnn", "rnn", "gru", "lstm"]
CharacterEncoderKind = Literal["none", "cnn", "lstm", "bigrams"]

BEGIN, END = 256, 257
"""Character ids of the begin and end of a word, beside its bytes."""
MAX_BYTES = 50
"""Maximum bytes per word: of longer words, the first and last half as many."""
WINDOWS = (3, 4, 5)
CHARACTER_DIM, CHARACTER_WINDOW, CHARACTER_FILTERS = 30, 3, 30
"""As in Ma and Hovy."""
BIGRAM_BUCKETS, BIGRAM_DIM = 1 << 16, 50
MULTIPLIER = 0x5851F42D4C957F2D
"""Multiplier of hashes modulo 2^64, that of Knuth's linear congruential generator."""


def character_units(words: Sequence[str]) -> SubwordUnits:
    """The UTF-8 bytes of each word between BEGIN and END: no character of any language is unknown."""
    half = MAX_BYTES // 2
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    encoded = [word if len(word) <= MAX_BYTES else word[:half] + word[-half:] for word in encoded]
    units = [unit for word in encoded for unit in (BEGIN, *word, END)]
    sizes = np.array([len(word) + 2 for word in encoded], np.int64)
    return SubwordUnits(
        word_ids=torch.arange(len(words)),
        unit_ids=torch.tensor(units, dtype=torch.int64),
        unit_starts=torch.from_numpy(np.cumsum(sizes) - sizes),
    )


class CharacterEncoder(nn.Module):
    """Character-level word vectors: max-pooled CNN filters, or the last states of a BiLSTM."""

    def __init__(self, kind: CharacterEncoderKind, dropout: float):
        super().__init__()
        self.width = CHARACTER_FILTERS if kind == "cnn" else 2 * CHARACTER_DIM
        self.embedding = nn.Embedding(END + 1, CHARACTER_DIM)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embedding.weight, -((3 / CHARACTER_DIM) ** 0.5), (3 / CHARACTER_DIM) ** 0.5)
        self.reader: ConvolutionFilters | RecurrentLayers
        if kind == "cnn":
            self.reader = ConvolutionFilters(CHARACTER_DIM, {CHARACTER_WINDOW: CHARACTER_FILTERS})
        else:
            self.reader = RecurrentLayers("lstm", CHARACTER_DIM, CHARACTER_DIM, 1, bidirectional=True)

    def forward(self, units: SubwordUnits) -> Tensor:
        """[words, width]."""
        sizes = units.unit_counts
        # On a GPU, the maximum of the sizes would synchronize.
        position = torch.arange(MAX_BYTES + 2 if sizes.is_cuda else int(sizes.max()), device=sizes.device)
        index = (units.unit_starts[:, None] + position).clamp(max=len(units.unit_ids) - 1)
        vectors = self.dropout(self.embedding(units.unit_ids[index]))  # [words, characters, CHARACTER_DIM]
        if isinstance(self.reader, ConvolutionFilters):
            return torch.tanh(self.reader.max_pool(vectors, sizes))
        top = self.reader(vectors, sizes)[0][-1]
        forwards, backwards = top.chunk(2, -1)
        last = (sizes - 1)[:, None, None].expand(-1, 1, CHARACTER_DIM)
        return torch.cat([forwards.gather(1, last)[:, 0], backwards[:, 0]], -1)


class BigramEncoder(nn.Module):
    """Embeddings of the two bigrams that a word forms with its neighbours, hashed into buckets: with characters as
    words, what hand-made features of Chinese taggers are (Chen et al. 2015)."""

    def __init__(self, dropout: float):
        super().__init__()
        self.width = 2 * BIGRAM_DIM
        self.embedding = nn.Embedding(BIGRAM_BUCKETS, BIGRAM_DIM)
        self.dropout = nn.Dropout(dropout)  # beside that of the network: most bigrams are rare
        nn.init.uniform_(self.embedding.weight, -((3 / BIGRAM_DIM) ** 0.5), (3 / BIGRAM_DIM) ** 0.5)

    def forward(self, words: Tensor, counts: Tensor, units: SubwordUnits) -> Tensor:
        """[batch, words, width]; `words` [batch, words] index into those of `units`."""
        owners = torch.arange(len(units.unit_starts), device=words.device).repeat_interleave(units.unit_counts)
        position = torch.arange(len(owners), device=words.device) - units.unit_starts[owners]
        # Modulo 2^64; powers of 31 would give characters whose last bytes differ by -31 and 1 the same hash.
        powers = MULTIPLIER ** (position % 12)
        hashes = torch.zeros_like(units.unit_starts).index_add_(0, owners, (units.unit_ids + 1) * powers)
        inside = torch.arange(words.shape[1], device=words.device) < counts[:, None]
        padded = F.pad(hashes[words] * inside, (1, 1))  # [batch, words + 2]; 0: no neighbour
        mixed = (padded[:, :-1] * 1_000_003 + padded[:, 1:]) * MULTIPLIER
        vectors = self.dropout(self.embedding((mixed >> 40) % BIGRAM_BUCKETS))  # [batch, words + 1, BIGRAM_DIM]
        return torch.cat([vectors[:, :-1], vectors[:, 1:]], -1)


class HeadNetwork(nn.Module):
    """Word vectors to contextual word vectors, or to one vector per sequence."""

    def __init__(
        self,
        inputs: int,
        *,
        kind: HeadNetworkKind,
        width: int,
        layers: int,
        dropout: float,
        characters: CharacterEncoderKind,
    ) -> None:
        super().__init__()
        self.characters: CharacterEncoder | BigramEncoder | None = None
        if characters != "none":
            bigrams = characters == "bigrams"
            self.characters = BigramEncoder(dropout) if bigrams else CharacterEncoder(characters, dropout)
        self.dropout = nn.Dropout(dropout)
        self.width = inputs + (self.characters.width if self.characters else 0)
        """Width of the output."""
        self.layers = nn.ModuleList()
        if kind == "cnn":
            for _ in range(layers):
                self.layers.append(filters := ConvolutionFilters(self.width, dict.fromkeys(WINDOWS, width)))
                self.width = filters.width
        elif kind != "none":
            cell: Cell = kind
            self.layers.append(
                stack := RecurrentLayers(cell, self.width, width, layers, bidirectional=True, dropout=dropout)
            )
            self.width = stack.width

    def forward(
        self, vectors: Tensor, counts: Tensor, words: Tensor | None = None, characters: SubwordUnits | None = None
    ) -> Tensor:
        """[batch, words, width] of vectors [batch, words, inputs], `counts` [batch] per sequence; `words` is the
        index of each word among the distinct ones that `characters` describes."""
        return self.dropout(self._contextualize(vectors, counts, words, characters))

    def max_pooled(self, vectors: Tensor, counts: Tensor) -> Tensor:
        """[batch, width]: max pooling over the words."""
        return self.dropout(max_over_time(self._contextualize(vectors, counts), counts))

    def _contextualize(
        self, x: Tensor, counts: Tensor, words: Tensor | None = None, characters: SubwordUnits | None = None
    ) -> Tensor:
        if self.characters is not None:
            assert words is not None
            assert characters is not None
            if isinstance(self.characters, BigramEncoder):
                more = self.characters(words, counts, characters)
            else:
                more = F.embedding(words, self.characters(characters))
            x = torch.cat([x, more.to(x.dtype)], -1)
        for layer in self.layers:
            x = self.dropout(x)
            x = F.relu(layer(x, counts)) if isinstance(layer, ConvolutionFilters) else layer(x, counts)[0][-1]
        return x
