"""Word vectors without context: what one-hot, word2vec, GloVe and fastText share."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from keel.config import Count
from keel.data.input_windows import ModelInput
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.nn.encoder import Encoder
from keel.systems.system import EpochRule, System
from keel.training.objective import Tensors
from keel.training.plan import Train

Derived = TypeVar("Derived")


@dataclass(frozen=True, kw_only=True)
class WordSystem(System):
    """A system that reads words, each independent of its context."""

    default_tokenizer = "words"

    @property
    def max_length(self) -> int:
        """A mean of vectors has no maximum; this bounds the memory of a batch."""
        return 4096

    def finetuning_defaults(self, frozen: bool) -> Train:
        """A high learning rate: a small set has few steps in which vectors and classifier can move."""
        return Train(epochs=20 if frozen else 10, batch=32, lr=1e-2 if frozen else 5e-3)

    def special_tokens(self, tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]]:
        return [], [], []

    def build_inputs(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> ModelInput:
        """The words without special tokens, at least one; a pair is concatenated."""
        return super().build_inputs(tokenizer, first if first or second else [tokenizer.unknown_id], second)


@dataclass(frozen=True, kw_only=True)
class StaticSystem(WordSystem):
    """A system whose encoder is an embedding table."""

    width: Count = 100
    """Embedding size."""

    default_pair_encoding = "siamese"
    epoch_rule = EpochRule(total=16_000, least=4, most=200)
    default_vocab_size = 1_000_000
    default_min_count = 5

    def build_encoder(self, vocab_size: int) -> "StaticEncoder":
        return StaticEncoder(vocab_size, self.width)


class StaticEncoder(Encoder):
    """One vector per word; a text is the mean of its words."""

    default_pool = "sif"

    def __init__(self, vocab_size: int, width: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, width
        # nn.Embedding would initialize the weights a first time, which takes seconds on the meta device.
        self.words = nn.Embedding.from_pretrained(torch.empty(vocab_size, width), freeze=False)
        nn.init.uniform_(self.words.weight, -0.5 / width, 0.5 / width)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.words(batch.ids)


@dataclass(frozen=True, kw_only=True)
class LastWords(Tensors):
    """State of an n-gram model: the last words of each sequence."""

    ids: Tensor  # [batch, words]

    @staticmethod
    def context_at(ids: Tensor, positions: Tensor, bos_id: int, words: int) -> Tensor:
        """[positions, words] the last words up to each flat position of sequences [batch, time]."""
        before = ids.new_full((len(ids), words - 1), bos_id)
        return torch.cat([before, ids], 1).unfold(1, words, 1).flatten(0, 1)[positions]


def check_distinct_words(counts: np.ndarray) -> None:
    """Refuse a corpus of one word, given the occurrences of each word."""
    if np.count_nonzero(counts) < 2:
        raise KeelError("the corpus has fewer than two frequent enough words: use more text or lower --min-count")


def sum_over_threads(one: Callable[[Any], tuple[float, ...]], shares: Sequence[Any]) -> list[float]:
    """Sums of the results of `one` over all shares of the work, each in a thread of its own."""
    results = map(one, shares) if len(shares) == 1 else _thread_pool(len(shares)).map(one, shares)
    return [sum(column) for column in zip(*results, strict=True)]


@cache
def _thread_pool(threads: int) -> ThreadPoolExecutor:
    """Threads that are reused from step to step."""
    return ThreadPoolExecutor(threads, "learn")


class DatasetCache(Generic[Derived]):
    """What an objective derives from each dataset it reads; read-only, so copies of the objective share it.

    It holds the datasets themselves: the id of one that was freed may be that of a new one.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Any, Derived]] = []

    def get(self, data: Any, derive: Callable[[], Derived]) -> Derived:
        for known, derived in self._entries:
            if known is data:
                return derived
        self._entries.append((data, derive()))
        return self._entries[-1][1]

    def values(self) -> list[Derived]:
        return [derived for _, derived in self._entries]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
