"""A network between any encoder and any task's head: filters or recurrent layers over the vectors of words, beside
which characters may say how each word is spelled (Kim 2014; Huang et al. 2015; Lample et al. 2016; Ma and Hovy 2016).
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
CharacterEncoderKind = Literal["none", "cnn", "lstm"]

BEGIN, END = 256, 257
"""Stand around the bytes of a word."""
LONGEST = 50
"""Bytes of a word that are read: of more, the first and the last ones."""
WINDOWS = (3, 4, 5)
LETTER_WIDTH, LETTER_WINDOW, LETTER_FILTERS = 30, 3, 30
"""Ma and Hovy's."""


def character_units(words: Sequence[str]) -> SubwordUnits:
    """The bytes of each word in UTF-8, with marks around them: any language's letters, and none unknown."""
    half = LONGEST // 2
    written = [word.encode("utf-8", "surrogatepass") for word in words]
    written = [word if len(word) <= LONGEST else word[:half] + word[-half:] for word in written]
    parts = [number for word in written for number in (BEGIN, *word, END)]
    sizes = np.array([len(word) + 2 for word in written], np.int64)
    return SubwordUnits(
        word_ids=torch.arange(len(words)),
        unit_ids=torch.tensor(parts, dtype=torch.int64),
        unit_starts=torch.from_numpy(np.cumsum(sizes) - sizes),
    )


class CharacterEncoder(nn.Module):
    """A vector of each word by its characters: of each filter the strongest answer, or the last states of an LSTM."""

    def __init__(self, kind: CharacterEncoderKind, dropout: float):
        super().__init__()
        self.width = LETTER_FILTERS if kind == "cnn" else 2 * LETTER_WIDTH
        self.letters = nn.Embedding(END + 1, LETTER_WIDTH)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.letters.weight, -((3 / LETTER_WIDTH) ** 0.5), (3 / LETTER_WIDTH) ** 0.5)
        self.reader: ConvolutionFilters | RecurrentLayers
        if kind == "cnn":
            self.reader = ConvolutionFilters(LETTER_WIDTH, {LETTER_WINDOW: LETTER_FILTERS})
        else:
            self.reader = RecurrentLayers("lstm", LETTER_WIDTH, LETTER_WIDTH, 1, bidirectional=True)

    def forward(self, spelling: SubwordUnits) -> Tensor:
        """[words, width]."""
        sizes = spelling.unit_counts
        # The longest there is would have to be asked from a GPU, which would be waited for.
        place = torch.arange(LONGEST + 2 if sizes.is_cuda else int(sizes.max()), device=sizes.device)
        places = (spelling.unit_starts[:, None] + place).clamp(max=len(spelling.unit_ids) - 1)
        vectors = self.dropout(self.letters(spelling.unit_ids[places]))  # [words, longest, letter width]
        if isinstance(self.reader, ConvolutionFilters):
            return torch.tanh(self.reader.max_pool(vectors, sizes))
        top = self.reader(vectors, sizes)[0][-1]
        forwards, backwards = top.chunk(2, -1)
        last = (sizes - 1)[:, None, None].expand(-1, 1, LETTER_WIDTH)
        return torch.cat([forwards.gather(1, last)[:, 0], backwards[:, 0]], -1)


class HeadNetwork(nn.Module):
    """Vectors of words in, vectors of words in their context out; one for each word, or one for all of a row."""

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
        self.letters = None if characters == "none" else CharacterEncoder(characters, dropout)
        self.dropout = nn.Dropout(dropout)
        self.width = inputs + (self.letters.width if self.letters else 0)
        """Of what it gives."""
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
        self, vectors: Tensor, counts: Tensor, words: Tensor | None = None, letters: SubwordUnits | None = None
    ) -> Tensor:
        """[batch, words, width]: of vectors [batch, words, inputs], of which each row has so many; `words` is the place
        of each one in the spelling of the distinct ones."""
        return self.dropout(self._read(vectors, counts, words, letters))

    def max_pooled(self, vectors: Tensor, counts: Tensor) -> Tensor:
        """[batch, width]: of each row one vector, the largest of each number over its words."""
        return self.dropout(max_over_time(self._read(vectors, counts), counts))

    def _read(
        self, x: Tensor, counts: Tensor, words: Tensor | None = None, letters: SubwordUnits | None = None
    ) -> Tensor:
        if self.letters is not None:
            assert words is not None
            assert letters is not None
            x = torch.cat([x, F.embedding(words, self.letters(letters)).to(x.dtype)], -1)
        for layer in self.layers:
            x = self.dropout(x)
            x = F.relu(layer(x, counts)) if isinstance(layer, ConvolutionFilters) else layer(x, counts)[0][-1]
        return x
