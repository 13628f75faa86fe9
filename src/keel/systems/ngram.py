"""N-grams (Shannon 1948), smoothed by Kneser and Ney (1995) as Chen and Goodman modified it ("An Empirical Study of
Smoothing Techniques for Language Modeling", 1998).

Nothing is learned but counts: a word is as likely as it has been after the last words before. New in the smoothing: a
word that was never seen there falls back on fewer words, and is then judged not by how often it comes but by how many
words it has come after; "Francisco" is frequent, and follows one.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np
import torch
from torch import Tensor, nn

from keel.config import cache_folder
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.token_store import disk_errors
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.nn.encoder import Encoder, Recorder
from keel.systems.finetuning_policy import FineTuningPolicy, NoFineTuning
from keel.systems.static_vectors import LastWords, WordSystem
from keel.training.counter_rng import CounterRng
from keel.training.objective import CustomUpdate, State, Tensors
from keel.training.plan import Train

if TYPE_CHECKING:
    from keel.kernels.ngram_counts import NgramCounts, SentenceSpans

SHARES = 40
"""Rows for each order: a step learns one order, a row of text is a share of its sentences."""
FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of n-grams that come once, twice or more often, where a text is too small to tell."""


NO_VECTORS = "ngram counts words and has no vectors that a task could learn from: take nnlm or word2vec"


@dataclass(frozen=True, kw_only=True)
class Ngram(WordSystem):
    """How far back an n-gram looks."""

    order: int = 5
    """Words of an n-gram: the last one is foretold by those before it."""
    memory: float = 4.0
    """GiB that sorting may take, beside the n-grams themselves; those of a larger text are sorted in parts."""

    name: ClassVar[str] = "ngram"
    is_causal_lm: ClassVar[bool] = True
    count_based: ClassVar[bool] = True
    default_vocab_size: ClassVar[int] = 1_000_000
    pretraining_defaults: ClassVar[Train] = Train(
        optimizer="own",
        epochs=1,
        batch=SHARES,
        lr=1.0,
        warmup=0,
        evaluate_every=1,
        log_every=1,
        checkpoint_every=0,
        device="cpu",
    )

    def __post_init__(self) -> None:
        if self.order < 1:
            raise UsageError(f"order must be 1 or more, not {self.order}")
        if not 2**-30 <= self.memory < math.inf:
            raise UsageError(f"memory must be a number of GiB that makes a byte or more, not {self.memory:g}: try 4")

    @property
    def finetuning_policy(self) -> FineTuningPolicy:
        return NoFineTuning(self, NO_VECTORS)

    @property
    def continued_pretraining_defaults(self) -> NoReturn:
        raise UsageError("n-grams that are counted cannot learn more: start anew with `pretrain ngram` on all text")

    def finetuning_defaults(self, frozen: bool) -> NoReturn:
        raise KeelError(NO_VECTORS)  # exit code 1, as for whoever asks it for one

    def build_encoder(self, vocab_size: int) -> "NgramEncoder":
        return NgramEncoder(vocab_size)

    @property
    def context_description(self) -> str:
        return f"at most {self.order - 1} before it"

    def build_objective(self, encoder: "NgramEncoder", tokenizer: Tokenizer) -> "NgramCounting":
        return NgramCounting(self, encoder, tokenizer)


class NgramEncoder(Encoder):
    """A tree of n-grams: nodes of one order lie side by side, the words themselves first, each by its id.

    Node n goes on in nodes starts[n] to starts[n + 1], by words in rising order.
    """

    def __init__(self, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, 0
        self.words: Tensor
        self.starts: Tensor
        self.backoffs: Tensor
        self.chances = nn.Parameter(torch.empty(0), requires_grad=False)  # [nodes] log p of the last word
        self.register_buffer("words", torch.empty(0, dtype=torch.int32))  # [nodes] the last word
        self.register_buffer("starts", torch.empty(0, dtype=torch.int32))  # [nodes below the highest order + 1]
        self.register_buffer("backoffs", torch.empty(0))  # [nodes below the highest order] log of what others get

    def resize(self, nodes: int, inner: int) -> None:
        """Make room for so many nodes, of which `inner` are below the highest order."""
        if nodes >= 2**31:
            raise KeelError(f"{nodes:,} n-grams are more than a model holds: lower --system.order or give less text")
        self.chances = nn.Parameter(torch.zeros(nodes), requires_grad=False)
        self.words, self.starts = torch.zeros(nodes, dtype=torch.int32), torch.zeros(inner + 1, dtype=torch.int32)
        self.backoffs = torch.zeros(inner)

    @property
    def sizes(self) -> list[int]:
        """How many n-grams of each order there are; of the first, all words."""
        bounds, inner = [0, self.vocab_size], len(self.starts) - 1
        while bounds[-1] < inner:
            bounds.append(int(self.starts[bounds[-1]]))
        return np.diff([*bounds, *[len(self.words)][: inner > 0]]).tolist()

    def trie(self) -> "NgramTrie":
        return NgramTrie(*(t.detach().numpy() for t in (self.words, self.starts, self.chances, self.backoffs)))

    def embed(self, batch: TokenBatch) -> Tensor:
        raise KeelError("ngram has no vectors: it counts words; take nnlm, word2vec or another")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any, **more: Any) -> None:
        """How many n-grams there are is known by those that are stored."""
        names = [f"{prefix}{name}" for name in ("chances", "words", "backoffs", "starts")]
        if set(names) <= state_dict.keys():
            nodes, words, inner, starts = (len(state_dict[name]) for name in names)
            if nodes != words or starts != inner + 1:
                raise KeelError("the tables of n-grams are of different sizes, and so not of one model: get them again")
            self.resize(nodes, inner)
        super()._load_from_state_dict(state_dict, prefix, *rest, **more)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Stay in the CPU's memory, where the kernels read."""
        return self


class NgramTrie(NamedTuple):
    """The same as the kernels read it."""

    words: np.ndarray
    starts: np.ndarray
    chances: np.ndarray
    backoffs: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SentenceBatch(Tensors):
    """Some sentences between their marks, end to end."""

    ids: Tensor  # [tokens]
    inner: Tensor | None = None  # [tokens] whether each is no end of a document, if those are summed up apart


class NgramCounting(CustomUpdate):
    """Interpolated modified Kneser-Ney: p(w | v..) = (c - D(c)) / sum of c + what D spared p(w | one word less).

    The loss is -log p of every word and every end of a sentence, by the orders that are learned so far: each step adds
    one. A sentence is foretold from its own start, unknown words are one word.
    """

    nondeterministic: ClassVar[bool] = False

    def __init__(self, system: Ngram, encoder: NgramEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder = system, encoder
        self.bos_id, self.eos_id, self.max_context = tokenizer.cls_id, tokenizer.sep_id, None
        self.words = np.arange(encoder.vocab_size, dtype=np.int32)
        self.words[tokenizer.special_ids] = tokenizer.unknown_id  # written out in a text, they are no marks
        self.never = self.words != np.arange(encoder.vocab_size)
        self.never[self.eos_id] = False
        self.discounts: Tensor
        # [order, 3] D of n-grams that come once, twice and more often; 0 before that order is learned
        self.register_buffer("discounts", torch.zeros(system.order, 3))
        self._counted: NgramCounts | None = None
        self._remarks: list[str] = []

    @property
    def learned(self) -> int:
        """How many orders are learned."""
        return int(self.discounts[:, 0].count_nonzero())

    def setup(self, data: Documents) -> None:
        from keel.kernels.ngram_counts import SentenceBoundaries, count_ngrams

        folder, vocabulary = cache_folder(), self.encoder.vocab_size
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._counted = count_ngrams(
                _sentences(data), self.words, SentenceBoundaries(self.bos_id, self.eos_id), order=self.system.order,
                vocab_size=vocabulary, folder=folder, memory=self.system.memory, threads=torch.get_num_threads(),
            )  # fmt: skip
        if self._counted.parts > 1:
            what = f"the places of all words take more than {self.system.memory:g} GiB"
            self._remarks.append(f"{what}: they were sorted in {self._counted.parts} parts, on disk")
        orders = self._counted.orders
        met = np.delete(orders[0].counts, [self.eos_id, self.words[self.bos_id]])
        if np.count_nonzero(met) < 2:
            remedy = "give it more text, or lower --min-count"
            raise KeelError(f"the corpus holds fewer than two words that come up often enough: {remedy}")
        inner = sum(len(order.words) for order in orders[:-1])
        self.encoder.resize(inner + len(orders[-1].words), inner)
        tree = self.encoder.trie()
        np.concatenate([order.words for order in orders], out=tree.words)
        sizes = np.concatenate([order.sizes for order in orders[:-1]] or [np.empty(0, np.int32)])
        np.cumsum(sizes, out=tree.starts[1:])
        np.add(tree.starts, vocabulary, out=tree.starts)
        tree.chances[:vocabulary] = np.where(self.never, -np.inf, -np.log(np.count_nonzero(~self.never)))

    def epoch_size(self, data: Documents) -> int:
        return SHARES * self.system.order

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> SentenceBatch:
        sentences = _sentences(data)
        first, last = (len(sentences.begins) * row // self.epoch_size(data) for row in (examples.start, examples.stop))
        return self._text(sentences.slice(first, last))

    def sequential_batch(self, data: Documents, number: int) -> SentenceBatch:
        sentences = _sentences(data)
        first, last = (len(sentences.begins) * row // self.epoch_size(data) for row in (number, number + 1))
        sentences = sentences.slice(first, last)
        text = self._text(sentences)
        closing = np.isin(np.arange(first, last), np.diff(data.spans.numpy()).cumsum() - 1)  # each document's last
        inner = torch.ones_like(text.ids, dtype=torch.bool)
        inner[text.ids == self.eos_id] = torch.from_numpy(~closing[sentences.stops > sentences.begins])
        return SentenceBatch(ids=text.ids, inner=inner)

    def _text(self, sentences: "SentenceSpans") -> SentenceBatch:
        from keel.kernels.ngram_counts import SentenceBoundaries

        return SentenceBatch(
            ids=torch.from_numpy(sentences.with_boundaries(self.words, SentenceBoundaries(self.bos_id, self.eos_id)))
        )

    def counts(self, batch: SentenceBatch) -> dict[str, Tensor]:
        words = batch.ids != self.bos_id
        if batch.inner is not None:
            words = torch.stack([words, words & batch.inner], -1)
        return {"ngram": words.sum(0).double()}

    def forward(self, batch: SentenceBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        from keel.kernels.ngram_counts import sum_log_probs

        ids = batch.ids.numpy()
        chosen = np.ones(len(ids), bool) if batch.inner is None else batch.inner.numpy()
        total, part = sum_log_probs(ids, chosen, self.bos_id, self.learned, *self.encoder.trie())
        sums = total if batch.inner is None else [total, part]
        return {"ngram": torch.tensor(sums, dtype=torch.float64)}, None

    def update(
        self, data: Documents, rng: CounterRng, examples: range, lr: float, threads: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Learn the orders whose last row is among these; the loss is that of the first sentences."""
        first, found = int(rng.first_example), 0
        for order in range(1, self.system.order + 1):
            if first < order * SHARES <= first + len(examples):
                found += self._learn(order)
        batch = self._text(_sentences(data).slice(0, 1000))
        loss, words = self(batch)[0]["ngram"], self.counts(batch)["ngram"]
        return {"ngram": float(loss)}, {"ngram": float(words), "ngrams": float(found)}

    def _learn(self, order: int) -> int:
        """Weigh the n-grams of one order, given those one shorter; how many there are."""
        from keel.kernels.ngram_counts import estimate_ngrams, estimate_unigrams

        assert self._counted is not None
        orders, tree = self._counted.orders, self.encoder.trie()
        counts = orders[order - 1].counts
        discounts = self._discounts(order, counts)
        if order == 1:
            estimate_unigrams(counts, discounts, self.never, tree.chances)
        else:
            below = sum(len(each.words) for each in orders[: order - 2])
            offset = below + len(orders[order - 2].words)
            links = orders[order - 1].suffixes
            estimate_ngrams(below, offset, tree.starts, counts, links, discounts, tree.chances, tree.backoffs)
        self.discounts[order - 1] = torch.from_numpy(discounts[1:])
        return int(np.count_nonzero(counts))

    def _discounts(self, order: int, counts: np.ndarray) -> np.ndarray:
        """[4] what is taken from an n-gram that comes 0, 1, 2, or 3 times and more.

        D_k = k - (k + 1) Y n_(k+1) / n_k with Y = n_1 / (n_1 + 2 n_2), where n_k n-grams come k times.
        """
        n = np.array([np.count_nonzero(counts == times) for times in range(5)], np.float64)
        if n[1:4].all():
            k = np.arange(1, 4)
            found = k - (k + 1) * n[1] / (n[1] + 2 * n[2]) * n[2:] / n[1:4]
            if (found > 0).all():  # none is above k
                return np.concatenate([[0.0], found])
        what = f"the text is too small to tell what to take from the counts of {order}-grams"
        self._remarks.append(f"{what}: {FALLBACK[0]}, {FALLBACK[1]:g} and {FALLBACK[2]} from 1, 2 and more")
        return np.array([0.0, *FALLBACK])

    def notes(self) -> list[str]:
        return self._remarks

    def new_state(self, batch_size: int) -> LastWords:
        return LastWords(ids=torch.empty(batch_size, 0, dtype=torch.int32))

    def step(
        self, ids: Tensor, state: LastWords | None = None, record: Recorder | None = None
    ) -> tuple[Tensor, LastWords]:
        """[rows, vocabulary] log p of what comes after these further ids [rows, time], and the last words read."""
        from keel.kernels.ngram_counts import next_word_log_probs

        state, ids = state or self.new_state(len(ids)), ids.cpu()
        read = np.where(ids == self.bos_id, self.bos_id, self.words[ids])
        read = np.where(ids == self.eos_id, self.bos_id, read)  # after a sentence another one starts
        context = np.concatenate([state.ids.numpy(), read], 1)
        context = np.ascontiguousarray(context[:, -max(1, self.system.order - 1) :])
        found = np.empty((len(ids), self.encoder.vocab_size), np.float32)
        for row, last in zip(found, context, strict=True):
            begins = np.flatnonzero(last == self.bos_id)
            next_word_log_probs(last[begins[-1] if len(begins) else 0 :], self.learned, *self.encoder.trie(), row)
        return torch.from_numpy(found), LastWords(ids=torch.from_numpy(context))

    def logits_at(self, ids: Tensor, places: Tensor) -> Tensor:
        """[places, vocabulary] scores of what follows these places of whole rows [rows, time]."""
        return self.step(LastWords.context_at(ids, places, self.bos_id, max(1, self.system.order - 1)))[0]


def _sentences(data: Documents) -> "SentenceSpans":
    from keel.kernels.ngram_counts import SentenceSpans

    ids, bounds = data.ids.numpy(), data.starts.numpy()
    first, last = data.spans.numpy().T
    sizes = last - first
    numbers = np.arange(sizes.sum()) + np.repeat(first - (sizes.cumsum() - sizes), sizes)
    return SentenceSpans(ids.view(f"u{ids.itemsize}"), bounds[numbers], bounds[numbers + 1])
