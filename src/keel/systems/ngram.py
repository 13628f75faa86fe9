"""N-gram language model with modified Kneser-Ney smoothing (Shannon 1948; Kneser and Ney 1995; Chen and Goodman, "An
Empirical Study of Smoothing Techniques for Language Modeling", 1998).

New in the smoothing: an unseen n-gram backs off to a shorter context, where a word counts by the number of distinct
words it follows rather than by its frequency ("Francisco" is frequent, but follows one word).
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from keel.config import Count, Ge, Lt, cache_folder
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.token_store import disk_errors
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.nn.encoder import Encoder, Recorder
from keel.systems.static_vectors import LastWords, WordSystem, check_distinct_words
from keel.systems.system import OWN_UPDATES, CountBased, CountingObjective
from keel.training.counter_rng import CounterRng
from keel.training.objective import State, Sums, Tensors

if TYPE_CHECKING:
    from keel.kernels.ngram_counts import NgramCounts
    from keel.kernels.word_counts import TokenSpans

SHARES = 40
"""Examples per order: a default step estimates one order; an example is a share of the sentences."""
FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of n-grams that occur once, twice or more often, where a corpus is too small to estimate them."""


@dataclass(frozen=True, kw_only=True)
class Ngram(WordSystem, CountBased):
    """Hyper-parameters of the n-gram model."""

    order: Count = 5
    """N-gram order: the last word is predicted from the order - 1 words before it."""
    memory: Annotated[float, Ge(2**-30), Lt(math.inf)] = 4.0
    """Memory for sorting, in GiB, in addition to the n-grams; a larger corpus is sorted in parts on disk."""

    name = "ngram"
    year = 1948
    default_vocab_size = 1_000_000
    pretraining_defaults = replace(OWN_UPDATES, batch=SHARES, evaluate_every=1, checkpoint_every=0)

    def unsupported_reason(self, task: str, *, trained: bool = False) -> str | None:
        if task != "pretrain":
            return "ngram has no word vectors to fine-tune: use nnlm or word2vec"
        return "ngram cannot continue pre-training: run `keel pretrain ngram` on all of the text" if trained else None

    def build_encoder(self, vocab_size: int) -> "NgramEncoder":
        return NgramEncoder(vocab_size)

    @property
    def context_description(self) -> str:
        return f"at most {self.order - 1} before it"

    def build_objective(self, encoder: "NgramEncoder", tokenizer: Tokenizer) -> "NgramCounting":
        return NgramCounting(self, encoder, tokenizer)


class NgramEncoder(Encoder):
    """A trie of n-grams: nodes are stored by order, unigrams first, each at its id.

    The children of node n are nodes starts[n] to starts[n + 1], in order of word ids.
    """

    def __init__(self, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, 0
        self.log_probs = nn.Parameter(torch.empty(0), requires_grad=False)  # [nodes] log p of the last word
        self.words = nn.Buffer(torch.empty(0, dtype=torch.int32))  # [nodes] the last word
        self.starts = nn.Buffer(torch.empty(0, dtype=torch.int32))  # [nodes below the highest order + 1]
        self.backoffs = nn.Buffer(torch.empty(0))  # [nodes below the highest order] log back-off weight

    def resize(self, nodes: int, inner: int) -> None:
        """Allocate `nodes` nodes, of which `inner` are below the highest order."""
        if nodes >= 2**31:
            raise KeelError(f"{nodes:,} n-grams are too many for one model: lower --system.order or use less text")
        self.log_probs = nn.Parameter(torch.zeros(nodes), requires_grad=False)
        self.words, self.starts = torch.zeros(nodes, dtype=torch.int32), torch.zeros(inner + 1, dtype=torch.int32)
        self.backoffs = torch.zeros(inner)

    @property
    def sizes(self) -> list[int]:
        """Number of n-grams of each order; of order 1, the vocabulary."""
        bounds, inner = [0, self.vocab_size], len(self.starts) - 1
        while bounds[-1] < inner:
            bounds.append(int(self.starts[bounds[-1]]))
        return np.diff([*bounds, *[len(self.words)][: inner > 0]]).tolist()

    def trie(self) -> "NgramTrie":
        return NgramTrie(*(each.numpy() for each in (self.words, self.starts, self.log_probs.detach(), self.backoffs)))

    def embed(self, batch: TokenBatch) -> Tensor:
        raise KeelError("ngram has no word vectors: use nnlm, word2vec or another system")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any, **more: Any) -> None:
        """Allocate as many n-grams as are stored."""
        names = [f"{prefix}{name}" for name in ("log_probs", "words", "backoffs", "starts")]
        if set(names) <= state_dict.keys():
            nodes, words, inner, starts = (len(state_dict[name]) for name in names)
            if nodes != words or starts != inner + 1:
                raise KeelError("the n-gram tables differ in size, so they are not of one model: restore the folder")
            self.resize(nodes, inner)
        super()._load_from_state_dict(state_dict, prefix, *rest, **more)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Stay on the CPU, where the kernels run."""
        return self


class NgramTrie(NamedTuple):
    """The trie as the kernels read it."""

    words: np.ndarray
    starts: np.ndarray
    log_probs: np.ndarray
    backoffs: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SentenceBatch(Tensors):
    """Sentences between <s> and </s>, concatenated."""

    ids: Tensor  # [tokens]
    inner: Tensor | None = None  # [tokens] False at document ends, if these are counted separately


class NgramCounting(CountingObjective):
    """Interpolated modified Kneser-Ney: p(w | v u) = (c(v u w) - D(c)) / sum_w' c(v u w') + gamma(v u) p(w | u).

    The loss is -log p of every word and sentence end, by the orders estimated so far: each step adds one. Context does
    not cross sentences; all unknown words are one word.
    """

    def __init__(self, system: Ngram, encoder: NgramEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder = system, encoder
        self.bos_id, self.eos_id, self.max_context = tokenizer.cls_id, tokenizer.sep_id, None
        self.words = np.arange(encoder.vocab_size, dtype=np.int32)
        self.words[tokenizer.special_ids] = tokenizer.unknown_id  # written in a text, they are ordinary words
        self.impossible = self.words != np.arange(encoder.vocab_size)
        self.impossible[self.eos_id] = False
        self.discounts = nn.Buffer(torch.zeros(system.order, 3))
        """Discounts of n-grams that occur once, twice and more often; 0 before the order is estimated."""
        self._counted: NgramCounts | None = None
        self._notes: list[str] = []

    @property
    def estimated_orders(self) -> int:
        """Number of orders estimated so far."""
        return int(self.discounts[:, 0].count_nonzero())

    def setup(self, data: Documents) -> None:
        from keel.kernels.ngram_counts import count_ngrams

        folder, vocab_size = cache_folder(), self.encoder.vocab_size
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._counted = count_ngrams(
                _sentences(data), self.words, self.bos_id, self.eos_id, order=self.system.order,
                vocab_size=vocab_size, folder=folder, memory=self.system.memory, threads=torch.get_num_threads(),
            )  # fmt: skip
        if self._counted.parts > 1:
            self._notes.append(
                f"n-grams were sorted in {self._counted.parts} parts on disk, since they take more than "
                f"{self.system.memory:g} GiB (--system.memory)"
            )
        orders = self._counted.orders
        check_distinct_words(np.delete(orders[0].counts, [self.eos_id, self.words[self.bos_id]]))
        inner = sum(len(order.words) for order in orders[:-1])
        self.encoder.resize(inner + len(orders[-1].words), inner)
        trie = self.encoder.trie()
        np.concatenate([order.words for order in orders], out=trie.words)
        sizes = np.concatenate([order.sizes for order in orders[:-1]] or [np.empty(0, np.int32)])
        np.cumsum(sizes, out=trie.starts[1:])
        np.add(trie.starts, vocab_size, out=trie.starts)
        trie.log_probs[:vocab_size] = np.where(self.impossible, -np.inf, -np.log(np.count_nonzero(~self.impossible)))

    def epoch_size(self, data: Documents) -> int:
        return SHARES * self.system.order

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> SentenceBatch:
        return self._with_boundaries(self._share(data, examples)[1])

    def sequential_batch(self, data: Documents, number: int) -> SentenceBatch:
        numbers, sentences = self._share(data, range(number, number + 1))
        text = self._with_boundaries(sentences)
        closing = np.isin(numbers, np.diff(data.spans.numpy()).cumsum() - 1)  # each document's last
        inner = torch.ones_like(text.ids, dtype=torch.bool)
        inner[text.ids == self.eos_id] = torch.from_numpy(~closing[sentences.stops > sentences.begins])
        return SentenceBatch(ids=text.ids, inner=inner)

    def _share(self, data: Documents, examples: range) -> "tuple[np.ndarray, TokenSpans]":
        """The numbers of the sentences of these examples, and the sentences."""
        sentences = _sentences(data)
        first, last = (len(sentences.begins) * n // self.epoch_size(data) for n in (examples.start, examples.stop))
        return np.arange(first, last), sentences.slice(first, last)

    def _with_boundaries(self, sentences: "TokenSpans") -> SentenceBatch:
        from keel.kernels.ngram_counts import add_boundaries

        return SentenceBatch(ids=torch.from_numpy(add_boundaries(sentences, self.words, self.bos_id, self.eos_id)))

    def counts(self, batch: SentenceBatch) -> dict[str, Tensor]:
        words = batch.ids != self.bos_id
        if batch.inner is not None:
            words = torch.stack([words, words & batch.inner], -1)
        return {"ngram": words.sum(0).double()}

    def forward(self, batch: SentenceBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        from keel.kernels.ngram_counts import sum_log_probs

        ids = batch.ids.numpy()
        selected = np.ones(len(ids), bool) if batch.inner is None else batch.inner.numpy()
        total, part = sum_log_probs(ids, selected, self.bos_id, self.estimated_orders, *self.encoder.trie())
        sums = total if batch.inner is None else [total, part]
        return {"ngram": torch.tensor(sums, dtype=torch.float64)}, None

    def count(self, data: Documents, examples: range) -> Sums:
        """Estimate the orders whose last example is among these; the loss is that of the first sentences."""
        found = 0
        for order in range(1, self.system.order + 1):
            if examples.start < order * SHARES <= examples.stop:
                found += self._estimate_order(order)
        batch = self._with_boundaries(_sentences(data).slice(0, 1000))
        loss, words = self(batch)[0]["ngram"], self.counts(batch)["ngram"]
        return {"ngram": float(loss)}, {"ngram": float(words), "ngrams": float(found)}

    def _estimate_order(self, order: int) -> int:
        """Estimate the n-grams of one order, given the order below; return how many there are."""
        from keel.kernels.ngram_counts import estimate_ngrams, estimate_unigrams

        assert self._counted is not None
        orders, trie = self._counted.orders, self.encoder.trie()
        counts = orders[order - 1].counts
        discounts = self._discounts(order, counts)
        if order == 1:
            estimate_unigrams(counts, discounts, self.impossible, trie.log_probs)
        else:
            below = sum(len(each.words) for each in orders[: order - 2])
            offset = below + len(orders[order - 2].words)
            links = orders[order - 1].suffixes
            estimate_ngrams(below, offset, trie.starts, counts, links, discounts, trie.log_probs, trie.backoffs)
        self.discounts[order - 1] = torch.from_numpy(discounts[1:])
        return int(np.count_nonzero(counts))

    def _discounts(self, order: int, counts: np.ndarray) -> np.ndarray:
        """[4] discounts of n-grams that occur 0, 1, 2, or 3 and more times.

        D_k = k - (k + 1) Y n_(k+1) / n_k with Y = n_1 / (n_1 + 2 n_2), where n_k n-grams occur k times.
        """
        n = np.array([np.count_nonzero(counts == times) for times in range(5)], np.float64)
        if n[1:4].all():
            k = np.arange(1, 4)
            found = k - (k + 1) * n[1] / (n[1] + 2 * n[2]) * n[2:] / n[1:4]
            if (found > 0).all():  # D_k <= k always holds
                return np.concatenate([[0.0], found])
        self._notes.append(
            f"the corpus is too small to estimate the discounts of {order}-grams: "
            f"using {FALLBACK[0]}, {FALLBACK[1]:g} and {FALLBACK[2]}"
        )
        return np.array([0.0, *FALLBACK])

    def notes(self) -> list[str]:
        return self._notes

    def new_state(self, batch_size: int) -> LastWords:
        return LastWords(ids=torch.empty(batch_size, 0, dtype=torch.int32))

    def step(
        self, ids: Tensor, state: LastWords | None = None, record: Recorder | None = None
    ) -> tuple[Tensor, LastWords]:
        """[batch, vocab] log p of the next word after these further ids [batch, time], and the new state."""
        from keel.kernels.ngram_counts import next_word_log_probs

        state = state or self.new_state(len(ids))
        context = np.concatenate([state.ids.numpy(), self._read(ids)], 1)
        context = np.ascontiguousarray(context[:, -max(1, self.system.order - 1) :])
        found = np.empty((len(ids), self.encoder.vocab_size), np.float32)
        for log_probs, last in zip(found, context, strict=True):
            begins = np.flatnonzero(last == self.bos_id)
            next_word_log_probs(
                last[begins[-1] if len(begins) else 0 :], self.estimated_orders, *self.encoder.trie(), log_probs
            )
        return torch.from_numpy(found), LastWords(ids=torch.from_numpy(context))

    def logits_at(self, ids: Tensor, positions: Tensor) -> Tensor:
        """[positions, vocab] log p of the next word after these positions of whole sequences [batch, time]."""
        return self.step(self._contexts_at(ids, positions))[0]

    def log_probs_of(self, targets: Tensor, ids: Tensor, positions: Tensor) -> Tensor:
        """[positions] log p of each target after its position: a look-up of single n-grams."""
        from keel.kernels.ngram_counts import word_log_probs

        contexts, found = self._read(self._contexts_at(ids, positions)), np.empty(len(targets), np.float32)
        word_log_probs(targets.numpy(), contexts, self.bos_id, self.estimated_orders, *self.encoder.trie(), found)
        return torch.from_numpy(found)

    def _contexts_at(self, ids: Tensor, positions: Tensor) -> Tensor:
        return LastWords.context_at(ids, positions, self.bos_id, max(1, self.system.order - 1))

    def _read(self, ids: Tensor) -> np.ndarray:
        """Ids as words of a context, where </s> starts a new sentence."""
        ids = ids.cpu()
        return np.where((ids == self.bos_id) | (ids == self.eos_id), self.bos_id, self.words[ids])


def _sentences(data: Documents) -> "TokenSpans":
    from keel.kernels.word_counts import TokenSpans

    return TokenSpans(*data.sentence_arrays())
