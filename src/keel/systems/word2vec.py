"""word2vec (Mikolov et al., "Efficient Estimation of Word Representations in Vector Space", 2013).

New then: no hidden layer, so that training scales to billions of words. Skip-gram: the center word predicts its context
words; CBOW: the mean of the context predicts the center. Negative sampling or a hierarchical softmax (Morin & Bengio
2005) replaces the softmax over the vocabulary.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Count, Ge
from keel.data.documents import Documents
from keel.data.tokenizer import Tokenizer
from keel.nn.huffman import HuffmanTree, huffman_tree
from keel.systems.static_vectors import (
    DatasetCache,
    StaticEncoder,
    StaticSystem,
    check_distinct_words,
    sum_over_threads,
)
from keel.systems.system import OWN_UPDATES
from keel.training.counter_rng import CounterRng, derive_seed
from keel.training.objective import CustomUpdate, State, Sums, Tensors


@dataclass(frozen=True, kw_only=True)
class Word2vec(StaticSystem):
    """Hyper-parameters of word2vec; by default skip-gram with five negative samples."""

    architecture: Literal["skipgram", "cbow"] = "skipgram"
    """skipgram: the center word predicts its context words; cbow: the mean of the context predicts the center."""
    loss: Literal["negative", "hierarchical"] = "negative"
    """Negative sampling, or hierarchical softmax over a Huffman tree of the vocabulary."""
    window: Count = 5
    """Maximum context size on either side; the size of each window is sampled uniformly up to it."""
    negatives: Count = 5
    """Negative samples per prediction."""
    sampling_power: float = 0.75
    """Exponent of word frequencies in the distribution of negative samples."""
    subsample: Annotated[float, Ge(0)] = 1e-3
    """Subsampling threshold: more frequent words (as a share of the corpus) are randomly dropped; 0: off."""
    chunk_length: Count = 1000
    """Tokens per training example."""

    name = "word2vec"
    year = 2013
    pretraining_defaults = replace(OWN_UPDATES, epochs=5, batch=32, lr=0.025, log_every=100)
    tunable = ("window", "negatives", "sampling_power", "subsample", "chunk_length", "architecture")

    def build_objective(self, encoder: StaticEncoder, tokenizer: Tokenizer) -> "Word2vecTraining":
        return Word2vecTraining(self, encoder, tokenizer)


@dataclass(frozen=True, kw_only=True)
class ContextWindows(Tensors):
    """Context windows as tensors, one center each, for the reference loss."""

    context: Tensor  # [centers, 2 x window] context words
    context_mask: Tensor  # [centers, 2 x window] 0 for padding
    targets: Tensor  # [centers, targets] the center, then negatives; or the nodes of its Huffman path
    target_mask: Tensor  # [centers, targets] 0 for padding
    labels: Tensor  # [centers, targets] 1 for the center, or where the path goes left


class _CorpusArrays(NamedTuple):
    """A corpus as the kernels read it."""

    ids: np.ndarray
    bounds: np.ndarray  # sentence starts, and the end
    begins: np.ndarray  # document starts
    ends: np.ndarray  # cumulative lengths of the documents


class SamplingTables(NamedTuple):
    """Subsampling probabilities, and the alias table of negative samples (Walker), in 2^32."""

    keep: np.ndarray  # [vocab] uint64: probability to keep a word
    probabilities: np.ndarray  # [vocab] uint32
    aliases: np.ndarray  # [vocab] int32


class _Chunks(NamedTuple):
    """Training examples as the kernel reads them."""

    starts: np.ndarray
    ends: np.ndarray
    states: np.ndarray  # RNG states


class _KernelSettings(NamedTuple):
    window: int
    negatives: int
    block: int  # windows that are updated together
    cbow: bool
    lr: np.float32


_Chunk = tuple[int, int, np.uint64]
"""First word, end, and RNG state of a training example."""


class Word2vecTraining(CustomUpdate):
    """Maximizes log sigmoid(u_o . v_i) + sum over k negatives w of log sigmoid(-u_w . v_i) for input i and output o.

    v are the encoder's vectors, u the `contexts`, used in training only. Hierarchical softmax: the sum of
    log sigmoid(+-u_n . v_i) over the nodes n of the Huffman path of o, where u are the nodes' vectors. As in the
    authors' code, skip-gram takes each context word as input i and the center as output o: over a corpus these are the
    same pairs as in the paper, where the center predicts its context.
    """

    counts_of_tree: Tensor

    def __init__(self, system: Word2vec, encoder: StaticEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder = system, encoder
        self.contexts = nn.Parameter(torch.zeros(encoder.vocab_size, encoder.width))
        self.special_ids = tokenizer.special_ids
        with torch.no_grad():
            encoder.words.weight[self.special_ids] = 0.0  # never trained: an unknown word adds nothing to a mean
        if system.loss == "hierarchical":  # continued pre-training keeps the tree
            self.register_buffer("counts_of_tree", torch.zeros(encoder.vocab_size))
        self._corpora = DatasetCache[_CorpusArrays]()
        self._sampling: SamplingTables | None = None
        self._huffman: HuffmanTree | None = None

    def setup(self, data: Documents) -> None:
        """Count the words of the training corpus for subsampling, negative sampling and the Huffman tree."""
        from keel.kernels.word_counts import count_words

        counts = count_words(*data.document_arrays(), self.encoder.vocab_size)
        counts[self.special_ids] = 0
        check_distinct_words(counts)
        self._sampling = sampling_tables(counts, self.system.subsample, self.system.sampling_power)
        if self.system.loss == "hierarchical" and not self.counts_of_tree.any():
            self.counts_of_tree.copy_(torch.from_numpy(counts))

    def epoch_size(self, data: Documents) -> int:
        return math.ceil(data.size / self.system.chunk_length)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> ContextWindows:
        """The windows of these examples, the same that `update` trains on."""
        from keel.kernels.context_windows import allocate_windows, sample_windows, subsample_words

        text, sampling = self._kernel_inputs(data)
        tree, negatives = self._tree, self._negatives
        found = []
        for first, last, state in self._chunks(data, rng, examples):
            words, sentences = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
            count, state = subsample_words(*text, first, last, sampling.keep, state, words, sentences)
            filled = allocate_windows(last - first, self.system.window, negatives, tree)
            draws = (self.system.window, *sampling[1:], negatives, self.block, tree, np.uint64(state))
            count = sample_windows(words, sentences, count, *draws, *filled)
            found.append([table[:count] for table in filled])
        context, targets, labels, sizes = (
            torch.from_numpy(np.concatenate(column)) for column in zip(*found, strict=True)
        )
        context_mask, target_mask = (
            torch.arange(value.shape[1]) < sizes[:, [column]] for column, value in enumerate((context, targets))
        )
        return ContextWindows(
            context=torch.where(context_mask, context, 0).long(),
            context_mask=context_mask.float(),
            targets=targets.long(),
            target_mask=target_mask.float(),
            labels=labels[:, : targets.shape[1]] * target_mask,
        )

    def counts(self, batch: ContextWindows) -> dict[str, Tensor]:
        centers = (batch.context_mask.sum(1) > 0).sum()
        predictions = batch.context_mask.sum() if self.system.architecture == "skipgram" else centers
        return {self.system.loss: predictions.double(), "centers": centers}

    def forward(self, batch: ContextWindows, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        v = self.encoder.words(batch.context)  # [centers, near, width]
        u = F.embedding(batch.targets, self.contexts)  # [centers, targets, width]
        present = batch.context_mask
        if self.system.architecture == "cbow":
            v = ((v * present[..., None]).sum(1) / present.sum(1, keepdim=True))[:, None]
            present = torch.ones_like(present[:, :1])
        scores = v @ u.transpose(1, 2)  # [centers, near or 1, targets]
        signs = 2 * batch.labels[:, None] - 1
        weights = present[..., None] * batch.target_mask[:, None]
        return {self.system.loss: -(F.logsigmoid(scores * signs) * weights).sum()}, None

    def update(self, data: Documents, rng: CounterRng, examples: range, lr: float, threads: int) -> Sums:
        kernel, chunks = self.bind_kernel(data, np.float32(lr)), list(self._chunks(data, rng, examples))
        shares = [chunks[number::threads] for number in range(min(threads, len(chunks)))]
        loss, predictions = sum_over_threads(lambda share: kernel(*map(np.array, zip(*share, strict=True))), shares)
        words = sum(last - first for first, last, _ in chunks)
        return {self.system.loss: loss}, {self.system.loss: predictions, "words": words}

    def bind_kernel(self, data: Documents, lr: np.float32) -> Callable[..., tuple[float, int]]:
        """The update by chunks, given as arrays of their starts, ends and RNG states: losses and predictions."""
        from keel.kernels.word2vec_updates import update_word2vec

        corpus, sampling = self._kernel_inputs(data)
        inputs, outputs = as_aligned_array(self.encoder.words.weight), as_aligned_array(self.contexts)
        tree, cbow = self._tree, self.system.architecture == "cbow"
        settings = _KernelSettings(self.system.window, self._negatives, self.block, cbow, lr)

        def update(starts: np.ndarray, ends: np.ndarray, states: np.ndarray) -> tuple[float, int]:
            chunks = _Chunks(starts, ends, states)
            return update_word2vec(corpus, sampling, tree, chunks, inputs, outputs, settings)

        return update

    def _chunks(self, data: Documents, rng: CounterRng, examples: range) -> Iterator[_Chunk]:
        size = self.epoch_size(data)
        for row in examples:
            epoch, place = divmod(int(rng.first_example) + row, size)
            first = int(_epoch_order(rng.seed, epoch, size)[place]) * self.system.chunk_length
            seed = derive_seed(rng.seed, int(rng.step), "row", row)
            yield first, min(first + self.system.chunk_length, data.size), np.uint64(seed)

    @property
    def block(self) -> int:
        """Windows that share negatives and are updated together: one in skip-gram, which has several predictions."""
        from keel.kernels.word2vec_updates import BLOCK

        return BLOCK if self.system.architecture == "cbow" and self.system.loss == "negative" else 1

    @property
    def _negatives(self) -> int:
        return self.system.negatives if self.system.loss == "negative" else 0

    def _kernel_inputs(self, data: Documents) -> tuple[_CorpusArrays, SamplingTables]:
        if self._sampling is None:
            self.setup(data)
        assert self._sampling is not None
        return self._corpus_arrays(data), self._sampling

    def _corpus_arrays(self, data: Documents) -> _CorpusArrays:
        def derive() -> _CorpusArrays:
            ids, begins, _ = data.document_arrays()
            return _CorpusArrays(ids, data.starts.numpy(), begins, data.ends.numpy())

        return self._corpora.get(data, derive)

    @property
    def _tree(self) -> HuffmanTree:
        """The Huffman tree of the first training corpus; empty for negative sampling."""
        if self.system.loss == "negative":
            return NO_TREE
        if self._huffman is None:
            # In float32, as in the model folder, so that a loaded model has the same tree.
            self._huffman = huffman_tree(self.counts_of_tree.numpy())
        return self._huffman


NO_TREE = HuffmanTree(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32), np.zeros(0, np.int32))


@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, size: int) -> np.ndarray:
    """Permutation of the examples of an epoch, computed once rather than step by step."""
    return CounterRng(seed=seed, step=0, first_example=epoch * size).epoch_order(torch.arange(size), size)[0].numpy()


def as_aligned_array(parameter: Tensor) -> np.ndarray:
    """A parameter as an array whose rows are whole cache lines; moves its storage the first time."""
    from keel.kernels.simd import round_up_to_lanes

    rows, width = parameter.shape
    size = round_up_to_lanes(width)
    if parameter.stride() != (size, 1) or parameter.data_ptr() % 64:
        wide = torch.zeros(rows, size)
        wide[:, :width] = parameter.data
        parameter.data = wide[:, :width]
    return parameter.data.as_strided((rows, size), (size, 1)).numpy()


def sampling_tables(counts: np.ndarray, subsample: float, power: float) -> SamplingTables:
    """Keep a word of relative frequency f with probability sqrt(t/f) + t/f; sample negatives by counts^power."""
    share = counts / counts.sum()
    keep = np.ones_like(share)
    if subsample:
        ratio = subsample / np.maximum(share, 1e-30)
        keep = np.minimum(1.0, np.sqrt(ratio) + ratio)
    keep = np.where(counts > 0, keep, 0.0)
    weights = np.where(counts > 0, counts.astype(np.float64) ** power, 0.0)
    probabilities, aliases = alias_table(weights)
    return SamplingTables(
        (keep * 2**32).astype(np.uint64),
        np.minimum(probabilities * 2**32, 2**32 - 1).astype(np.uint32),
        aliases.astype(np.int32),
    )


def alias_table(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walker's alias method: sample a column uniformly; keep it with its probability, else take its alias."""
    scaled = weights * (len(weights) / weights.sum())
    probabilities, aliases = np.ones(len(weights)), np.arange(len(weights))
    small = [column for column in range(len(weights)) if scaled[column] < 1]
    large = [column for column in range(len(weights)) if scaled[column] >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        probabilities[low], aliases[low] = scaled[low], high
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            small.append(large.pop())
    return probabilities, aliases
