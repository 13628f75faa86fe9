"""Word vectors without context: what one-hot, word2vec, GloVe and fastText share."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from keel.data.input_windows import ModelInput
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.nn.encoder import Encoder
from keel.systems.system import System
from keel.training.objective import Tensors
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class WordSystem(System):
    """A system that knows words by themselves, whatever stands around them."""

    default_tokenizer: ClassVar[str] = "words"

    @property
    def max_length(self) -> int:
        """A mean of vectors has no end; this bounds the memory of a batch."""
        return 4096

    def finetuning_defaults(self, frozen: bool) -> Train:
        return Train(epochs=20 if frozen else 10, batch=32, lr=1e-2 if frozen else 1e-3)

    def build_inputs(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> ModelInput:
        """The words as they are; of a pair one after the other, the second in segment 1."""
        if first and not second:
            return ModelInput(first, [0] * len(first), 0)
        ids = first + (second or [])
        ids = ids or [tokenizer.unknown_id]
        return ModelInput(ids, [0] * min(len(first), len(ids)) + [1] * (len(ids) - min(len(first), len(ids))), 0)


@dataclass(frozen=True, kw_only=True)
class StaticSystem(WordSystem):
    """A system whose encoder is a table of vectors."""

    width: int = 100
    """Of the vectors."""

    default_vocab_size: ClassVar[int] = 1_000_000
    default_min_count: ClassVar[int] = 5

    def build_encoder(self, vocab_size: int) -> "StaticEncoder":
        return StaticEncoder(vocab_size, self.width)


@dataclass(frozen=True, kw_only=True)
class LastWords(Tensors):
    """As much of what was read as the next word depends on: the state of those who look back a few words."""

    ids: Tensor  # [rows, words]

    @staticmethod
    def context_at(ids: Tensor, places: Tensor, opening: int, words: int) -> Tensor:
        """[places, words] the last ones up to each of these places of rows [rows, time], counted through all rows."""
        before = ids.new_full((len(ids), words - 1), opening)
        return torch.cat([before, ids], 1).unfold(1, words, 1).flatten(0, 1)[places]


class StaticEncoder(Encoder):
    """A vector for each word whatever stands around it; a row is the mean of its words."""

    def __init__(self, vocab_size: int, width: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, width
        # nn.Embedding would draw numbers of its own, for nothing; without memory to draw into, that takes seconds.
        self.words = nn.Embedding.from_pretrained(torch.empty(vocab_size, width), freeze=False)
        nn.init.uniform_(self.words.weight, -0.5 / width, 0.5 / width)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.words(batch.ids)
