"""One-hot words and bags of words (tf-idf: Spärck Jones, "A statistical interpretation of term specificity", 1972).

New then: a word's weight falls with the number of documents that contain it. A word is a one-hot vector, so all words
are equally far apart; a text is the weighted sum of its words, which is hard to beat for topic classification.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Count, Ge
from keel.data.documents import Documents
from keel.data.label_kinds import LabelKind, SingleLabel
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.nn.encoder import Encoder, EncoderOutput
from keel.nn.linear_training import LinearTraining
from keel.systems.static_vectors import WordSystem
from keel.systems.system import OWN_UPDATES, CountBased, CountingObjective, FineTuningPolicy
from keel.training.counter_rng import CounterRng
from keel.training.linear_solver import HELD_OUT_FROM, SparseRows
from keel.training.objective import State, Sums, Tensors
from keel.training.plan import Train

Weighting = Literal["binary", "count", "tfidf"]
MAX_ELEMENTS = 1 << 28
"""Elements of the one-hot vectors of a batch."""
MULTIPLIER = 0x5851F42D4C957F2D
"""Multiplier of the hash of n-grams, as in Knuth's linear congruential generator."""
HALF = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Onehot(WordSystem, CountBased):
    """Hyper-parameters of a bag of words."""

    weighting: Weighting = "tfidf"
    """Weight of a word in a text. binary: 1 if present; count: its term frequency; tfidf: times log inverse document
    frequency, with unit length."""
    sublinear: bool = False
    """Sublinear term frequency: 1 + log(count)."""
    word_ngrams: Count = 1
    """Longest n-grams of tokens: of words or, with --text.tokenizer characters, of characters; 1: no n-grams."""
    ngrams: Annotated[int, Ge(0)] = 0
    """Distinct n-grams that a trained model knows; training sets it."""
    l2: Annotated[float, Ge(0)] = 0.0
    """L2 regularisation of a classifier: 1 / C in scikit-learn, 2 / C for two classes; 0: by cross-validation."""

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
        return Train(epochs=8, batch=64, lr=1e-2) if frozen else self.pretraining_defaults

    def unsupported_reason(self, task: str, *, trained: bool = False) -> str | None:
        if task == "pretrain" and self.word_ngrams > 1:
            return "onehot counts n-grams in labelled texts only: use keel finetune, or leave out --system.word_ngrams"
        return super().unsupported_reason(task, trained=trained)

    @property
    def finetuning_fields(self) -> tuple[str, ...]:
        return ("l2",)

    @property
    def finetuning_policy(self) -> "OnehotFineTuning":
        return OnehotFineTuning(self)

    def from_scratch(self) -> Self:
        """Words and bigrams, as text classification needs them."""
        return replace(self, sublinear=True, word_ngrams=2)

    def build_encoder(self, vocab_size: int) -> "OnehotEncoder":
        return OnehotEncoder(vocab_size, self)

    def build_objective(self, encoder: "OnehotEncoder", tokenizer: Tokenizer) -> "OnehotCounting":
        return OnehotCounting(encoder, tokenizer)


class OnehotFineTuning(FineTuningPolicy):
    """A linear classifier of whole texts is the solution of a convex problem; other heads are trained by gradients."""

    system: Onehot
    solves = True

    @property
    def solves_frozen(self) -> bool:
        return False  # its vectors are sparse, and not cached

    def cross_validates(self, labels: LabelKind, texts: int) -> bool:
        return isinstance(labels, SingleLabel) and not self.system.l2 and 2 <= texts < HELD_OUT_FROM

    def adapt_system(self, kind: LabelKind, *, labels_texts: bool, frozen: bool) -> Onehot:
        return self.system if labels_texts else replace(self.system, word_ngrams=1)  # words one by one

    def fit_to_texts(self, texts: Sequence[str], tokenizer: Tokenizer) -> Onehot:
        ids, lengths = map(torch.from_numpy, tokenizer.encode_flat(list(texts)))
        rows = torch.arange(len(lengths)).repeat_interleave(lengths)
        found = hash_ngrams(ids.long(), rows, self.system.word_ngrams)
        return replace(
            self.system, ngrams=len(torch.cat([ids.new_empty(0), *(each.hashes for each in found)]).unique())
        )

    def custom_update(self, task: Any) -> LinearTraining | None:
        return OnehotTraining(task, self.system.l2) if task.labels_texts else None


class HashedNgrams(NamedTuple):
    """All n-grams of some texts of one length n."""

    n: int
    hashes: Tensor  # [ngrams] 48 bits
    first: Tensor  # [ngrams] position of the first token


def hash_ngrams(ids: Tensor, rows: Tensor, longest: int) -> list[HashedNgrams]:
    """The n-grams of 2 to `longest` tokens; `rows` [tokens] is the text of each token."""
    found, state = [], ids
    for n in range(2, longest + 1):
        state = state[:-1] * MULTIPLIER + ids[n - 1 :] + n  # int64, modulo 2^64
        first = (rows[n - 1 :] == rows[: len(state)]).nonzero()[:, 0]
        mixed = (state[first] ^ (state[first] >> 32)) * MULTIPLIER
        found.append(HashedNgrams(n, (mixed ^ (mixed >> 29)) % HALF**2, first))
    return found


class OnehotEncoder(Encoder):
    """One-hot vectors; a text is its weighted count vector of words and n-grams, of unit length with tfidf."""

    def __init__(self, vocab_size: int, system: Onehot):
        super().__init__()
        self.system = system
        self.vocab_size = vocab_size
        self.width = vocab_size + system.ngrams
        self.weight = nn.Parameter(torch.ones(self.width))
        """Weight of each word, then of each n-gram; 0 for what carries no information."""
        # Integers below 2^24 are exact in float32, so they are saved like any weight.
        self.ngrams = nn.Buffer(torch.full((system.ngrams, 2), HALF - 1.0)) if system.ngrams else None
        """Hashes of the known n-grams, sorted: the upper and the lower 24 bits of each."""

    @property
    def sparse(self) -> bool:
        return True

    def embed(self, batch: TokenBatch) -> Tensor:
        if batch.ids.numel() * self.width > MAX_ELEMENTS:
            what = f"one-hot vectors for {batch.ids.numel():,} words of {self.width:,} do not fit into memory"
            raise KeelError(f"{what}: encode texts instead of words, or fewer words at once")
        return F.one_hot(batch.ids, self.width).to(self.weight.dtype)  # [batch, time, vocab]

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        if self.ngrams is not None:  # the words alone do not tell which were neighbours
            return self.pooled_features(batch)
        return self._weigh_counts((output.top * self._mask(batch)[..., None]).sum(1))

    def pooled_features(self, batch: TokenBatch) -> Tensor:
        """The same without an intermediate [batch, time, vocab]."""
        counts = self.weight.new_zeros(len(batch.ids), self.width)
        counts.scatter_add_(1, batch.ids, self._mask(batch))
        if self.ngrams is not None:
            inside = self._mask(batch).bool()
            rows, columns = self._ngrams(batch.ids[inside], inside.nonzero()[:, 0])
            counts.index_put_((rows, columns), self.weight.new_ones(len(rows)), accumulate=True)
        return self._weigh_counts(counts)

    def inference_features(self, batch: TokenBatch) -> Tensor:
        if batch.ids.is_cuda or torch.is_autocast_enabled("cpu"):  # no sparse products in bf16
            return self.pooled_features(batch)
        inside = self._mask(batch).bool()
        starts = torch.cat([batch.lengths.new_zeros(1), batch.lengths.cumsum(0)])
        return self.sparse_features(batch.ids[inside], starts).matrix

    def sparse_features(self, ids: Tensor, starts: Tensor) -> SparseRows:
        """`pooled_features` [texts, width] of concatenated texts, without its zeros."""
        rows = torch.arange(len(starts) - 1).repeat_interleave(starts.diff())
        ngram_rows, columns = self._ngrams(ids, rows)
        positions = torch.cat([rows, ngram_rows]) * self.width + torch.cat([ids, columns])
        positions, counts = positions.unique(return_counts=True)
        rows, columns = positions // self.width, positions % self.width
        values = self._term_frequency(counts.float()) * self.weight.detach()[columns]
        if self.system.weighting == "tfidf":
            norms = torch.zeros(len(starts) - 1).index_add_(0, rows, values.square()).sqrt()
            values = values / norms.clamp(min=1e-12)[rows]
        sizes = torch.bincount(rows, minlength=len(starts) - 1)
        return SparseRows(torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), columns, values, self.width)

    def _ngrams(self, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[ngrams] text and column of each known n-gram; `rows` [tokens] is the text of each token."""
        if self.ngrams is None:
            return rows[:0], ids[:0]
        found_rows, columns = [], []
        vocabulary = self.ngrams[:, 0].long() * HALF + self.ngrams[:, 1].long()
        for _, hashes, first in hash_ngrams(ids, rows, self.system.word_ngrams):
            positions = torch.searchsorted(vocabulary, hashes).clamp(max=len(vocabulary) - 1)
            known = vocabulary[positions] == hashes
            found_rows.append(rows[first[known]])
            columns.append(self.vocab_size + positions[known])
        return torch.cat(found_rows), torch.cat(columns)

    def _mask(self, batch: TokenBatch) -> Tensor:
        position = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        return (position < batch.lengths[:, None]).to(self.weight.dtype)

    def _weigh_counts(self, counts: Tensor) -> Tensor:
        """[batch, vocab] features of [batch, vocab] counts."""
        weighted = self._term_frequency(counts) * self.weight
        return F.normalize(weighted) if self.system.weighting == "tfidf" else weighted

    def _term_frequency(self, counts: Tensor) -> Tensor:
        if self.system.weighting == "binary":
            return counts.clamp(max=1)
        return (1 + counts.clamp(min=1).log()) * (counts > 0) if self.system.sublinear else counts


class OnehotTraining(LinearTraining):
    """Logistic regression on the texts' features; a new encoder first collects n-grams and document frequencies."""

    def setup(self, data: Any) -> None:
        encoder, (ids, starts) = self.task.encoder, self._tokens(data)
        if not bool((encoder.weight == 1).all()):  # they are known from pre-training
            return
        rows = torch.arange(len(starts) - 1).repeat_interleave(starts.diff())
        found = hash_ngrams(ids, rows, encoder.system.word_ngrams) if encoder.system.ngrams else []
        with torch.no_grad():
            lengths = torch.ones(encoder.width)  # of the n-gram in each column
            if found:
                hashes, columns = torch.cat([each.hashes for each in found]).unique(return_inverse=True)
                orders = torch.cat([each.hashes.new_full((len(each.hashes),), each.n) for each in found])
                encoder.ngrams[: len(hashes)] = torch.stack([hashes // HALF, hashes % HALF], 1).float()
                lengths[encoder.vocab_size + columns] = orders.float()
            encoder.weight[self.task.tokenizer.special_ids] = 0.0
            if encoder.system.weighting == "tfidf":
                holders = torch.bincount(encoder.sparse_features(ids, starts).columns, minlength=encoder.width)
                idf = (len(starts) / (1 + holders)).log() + 1
                # The words of an n-gram are counted already: without the root, rare n-grams outweigh them.
                encoder.weight.mul_(torch.where(holders > 0, idf / lengths.sqrt(), 0.0))

    def features(self, data: Any) -> SparseRows:
        return self.task.encoder.sparse_features(*self._tokens(data))

    @staticmethod
    def _tokens(data: Any) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(data.ids).long(), torch.from_numpy(data.starts).long()


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
            if self.encoder.system.weighting == "tfidf":
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
