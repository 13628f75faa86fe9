"""One-hot words and bags of words (tf-idf: Spärck Jones, "A statistical interpretation of term specificity", 1972).

New then: a word's weight falls with the number of documents that contain it. A word is a one-hot vector, so all words
are equally far apart; a text is the weighted sum of its words, which is hard to beat for topic classification.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.nn.encoder import Encoder, EncoderOutput
from keel.systems.static_vectors import WordSystem
from keel.systems.system import OWN_UPDATES, CountBased, CountingObjective
from keel.training.counter_rng import CounterRng
from keel.training.objective import State, Sums, Tensors
from keel.training.plan import Train

Weighting = Literal["binary", "count", "tfidf"]
MAX_ELEMENTS = 1 << 28
"""Elements of the one-hot vectors of a batch."""


@dataclass(frozen=True, kw_only=True)
class Onehot(WordSystem, CountBased):
    """Hyper-parameters of a bag of words."""

    weighting: Weighting = "tfidf"
    """Weight of a word in a text. binary: 1 if present; count: its term frequency; tfidf: times log inverse document
    frequency, with unit length."""

    name = "onehot"
    year = 1972
    pretraining_defaults = replace(OWN_UPDATES, batch=20_000)
    tunable = ("weighting",)
    dropout = 0.0
    """Dropout of a task head: none, since a word of a short text is too much to lose."""

    @property
    def max_length(self) -> int:
        """A text of any length is one count vector."""
        return 1_000_000

    def finetuning_defaults(self, frozen: bool) -> Train:
        return Train(epochs=8, batch=64, lr=1e-2)

    def from_scratch(self) -> Self:
        """Plain counts, where there is no corpus to count documents in."""
        return replace(self, weighting="count")

    def build_encoder(self, vocab_size: int) -> "OnehotEncoder":
        return OnehotEncoder(vocab_size, self.weighting)

    def build_objective(self, encoder: "OnehotEncoder", tokenizer: Tokenizer) -> "OnehotCounting":
        return OnehotCounting(encoder, tokenizer)


class OnehotEncoder(Encoder):
    """One-hot vectors; a text is its weighted count vector, of unit length with tfidf."""

    def __init__(self, vocab_size: int, weighting: Weighting):
        super().__init__()
        self.vocab_size = self.width = vocab_size
        self.weighting = weighting
        self.weight = nn.Parameter(torch.ones(vocab_size))
        """Weight of each word, which fine-tuning may change."""

    @property
    def sparse(self) -> bool:
        return True

    def embed(self, batch: TokenBatch) -> Tensor:
        if batch.ids.numel() * self.width > MAX_ELEMENTS:
            what = f"one-hot vectors for {batch.ids.numel():,} words of {self.width:,} do not fit into memory"
            raise KeelError(f"{what}: encode texts instead of words, or fewer words at once")
        return F.one_hot(batch.ids, self.width).to(self.weight.dtype)  # [batch, time, vocab]

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        return self._weigh_counts((output.top * self._mask(batch)[..., None]).sum(1))

    def pooled_features(self, batch: TokenBatch) -> Tensor:
        """The same without an intermediate [batch, time, vocab]."""
        counts = self.weight.new_zeros(len(batch.ids), self.width)
        return self._weigh_counts(counts.scatter_add_(1, batch.ids, self._mask(batch)))

    def _mask(self, batch: TokenBatch) -> Tensor:
        position = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        return (position < batch.lengths[:, None]).to(self.weight.dtype)

    def _weigh_counts(self, counts: Tensor) -> Tensor:
        """[batch, vocab] features of [batch, vocab] counts."""
        weighted = (counts.clamp(max=1) if self.weighting == "binary" else counts) * self.weight
        return F.normalize(weighted) if self.weighting == "tfidf" else weighted


@dataclass(frozen=True, kw_only=True)
class WordCountBatch(Tensors):
    """Occurrences of each word in some documents."""

    words: Tensor  # [vocab]


class OnehotCounting(CountingObjective):
    """Counts words and the documents n(w) that contain them: idf(w) = log((1 + n) / (1 + n(w))) + 1.

    The loss is that of the unigram model with add-one smoothing.
    """

    def __init__(self, encoder: OnehotEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.encoder = encoder
        self.special_ids = tokenizer.special_ids
        self.words = nn.Buffer(torch.zeros(encoder.vocab_size))  # occurrences of each word
        self.holders = nn.Buffer(torch.zeros(encoder.vocab_size))  # documents that contain it
        self.documents = nn.Buffer(torch.zeros(1))
        with torch.no_grad():
            encoder.weight[self.special_ids] = 0.0  # unknown words carry no information

    def epoch_size(self, data: Documents) -> int:
        return len(data.spans)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> WordCountBatch:
        return WordCountBatch(words=torch.from_numpy(self._count_words(data, examples)[0]))

    def counts(self, batch: WordCountBatch) -> dict[str, Tensor]:
        return {"unigram": batch.words.sum()}

    def forward(self, batch: WordCountBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        smoothed = self.words.double() + 1
        return {"unigram": -(batch.words * (smoothed / smoothed.sum()).log()).sum()}, None

    def count(self, data: Documents, examples: range) -> Sums:
        documents = range(examples.start, min(examples.stop, len(data.spans)))  # each document once
        words, holders = self._count_words(data, documents)
        self.words += torch.from_numpy(words)
        self.holders += torch.from_numpy(holders)
        self.documents += len(documents)
        with torch.no_grad():
            if self.encoder.weighting == "tfidf":
                self.encoder.weight.copy_(((1 + self.documents) / (1 + self.holders)).log() + 1)
            self.encoder.weight[self.special_ids] = 0.0
        loss = self(WordCountBatch(words=torch.from_numpy(words)))[0]["unigram"]
        return {"unigram": float(loss)}, {"unigram": float(words.sum()), "words": float(words.sum())}

    def _count_words(self, data: Documents, documents: range) -> tuple[np.ndarray, np.ndarray]:
        """[vocab] occurrences of each word in these documents, and the documents that contain it."""
        from keel.kernels.word_counts import count_documents, count_words

        spans = *data.document_arrays(slice(documents.start, documents.stop)), self.encoder.vocab_size
        words, holders = count_words(*spans), count_documents(*spans)
        words[self.special_ids] = holders[self.special_ids] = 0
        return words, holders
