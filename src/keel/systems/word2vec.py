"""word2vec (Mikolov et al., "Efficient Estimation of Word Representations in Vector Space", 2013).

New then: no hidden layer at all, so that billions of words can be read. Skip-gram lets every word near a center
foretell it, CBOW their mean; and telling the true word from a few drawn ones (negative sampling), or walking down a
tree to it (hierarchical softmax, Morin & Bengio 2005), takes the place of a softmax over the whole vocabulary. What is
left is a vector for each word, the same in every sentence.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.documents import Documents
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.nn.huffman import HuffmanTree, huffman_tree
from keel.systems.static_vectors import StaticEncoder, StaticSystem
from keel.training.counter_rng import CounterRng, derive_seed
from keel.training.objective import CustomUpdate, State, Tensors
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class Word2vec(StaticSystem):
    """The hyper-parameters of word2vec; as they stand, skip-gram with five negatives."""

    architecture: Literal["skipgram", "cbow"] = "skipgram"
    """Whether each near word foretells the center, or their mean does."""
    loss: Literal["negative", "hierarchical"] = "negative"
    """Whether a word is told from drawn ones, or found by yes and no on the way down a Huffman tree of all words."""
    window: int = 5
    """Words on either side of a center, at most: the distance is drawn anew for each."""
    negatives: int = 5
    """Drawn words that the true one is told from."""
    sampling_power: float = 0.75
    """They are drawn by their frequency to this power."""
    subsample: float = 1e-3
    """Share of the text above which a word is passed over ever more often; 0 reads every word."""
    chunk_length: int = 1000
    """Words in a row of training."""

    name: ClassVar[str] = "word2vec"
    pretraining_defaults: ClassVar[Train] = Train(
        optimizer="own", epochs=5, batch=32, lr=0.025, warmup=0, evaluate_every=0, log_every=100, device="cpu"
    )
    tunable: ClassVar[tuple[str, ...]] = (
        "window",
        "negatives",
        "sampling_power",
        "subsample",
        "chunk_length",
        "architecture",
    )

    def __post_init__(self) -> None:
        for name in ("width", "window", "negatives", "chunk_length"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.subsample < 0:
            raise UsageError(f"subsample must not be below 0, as {self.subsample} is")

    def build_objective(self, encoder: StaticEncoder, tokenizer: Tokenizer) -> "Word2vecTraining":
        return Word2vecTraining(self, encoder, tokenizer)


@dataclass(frozen=True, kw_only=True)
class ContextWindows(Tensors):
    """Windows written out, one center each, for those who want to see the loss."""

    context: Tensor  # [centers, 2 x window] words around each center
    context_mask: Tensor  # [centers, 2 x window] 1 where there is one
    targets: Tensor  # [centers, targets] the center, then drawn words; or the nodes of the tree on the way down to it
    target_mask: Tensor  # [centers, targets] 1 where there is one
    labels: Tensor  # [centers, targets] 1 where yes is right: for the center, or where the way goes left


class _CorpusArrays(NamedTuple):
    """A corpus as the kernels read it."""

    ids: np.ndarray
    bounds: np.ndarray  # where sentences start, and the end
    begins: np.ndarray  # where each document starts
    ends: np.ndarray  # words up to each document's end

    def __deepcopy__(self, memo: dict[int, Any]) -> "_CorpusArrays":
        return self  # nobody writes into it


class SamplingTables(NamedTuple):
    """How words are drawn."""

    keep: np.ndarray  # [vocabulary] uint64: the chance to stay in the text, in 2^32
    probabilities: np.ndarray  # [vocabulary] uint32: Walker's alias method, in 2^32
    aliases: np.ndarray  # [vocabulary] int32


_Chunk = tuple[int, int, np.uint64]
"""Of a row the numbers of its first word and the one past the last, and the state of its draws."""


class Word2vecTraining(CustomUpdate):
    """log sigmoid(u_o . v_i) + sum over k drawn words w of log sigmoid(-u_w . v_i), to be made large (item 15).

    v are the encoder's vectors, u the `contexts`, which only training needs. By hierarchical softmax it is the sum of
    log sigmoid(+-u_n . v_i) over the nodes n on the way to the word, and u are the nodes' vectors.
    """

    counts_of_tree: Tensor

    def __init__(self, system: Word2vec, encoder: StaticEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder = system, encoder
        self.contexts = nn.Parameter(torch.zeros(encoder.vocab_size, encoder.width))
        self.specials = tokenizer.special_ids
        with torch.no_grad():
            encoder.words.weight[self.specials] = 0.0  # never met in training: an unknown word adds nothing to a mean
        if system.loss == "hierarchical":  # a model that goes on with other text keeps its tree
            self.register_buffer("counts_of_tree", torch.zeros(encoder.vocab_size))
        self._texts: dict[int, _CorpusArrays] = {}
        self._chances: SamplingTables | None = None
        self._grown: HuffmanTree | None = None

    def setup(self, data: Documents) -> None:
        """Count the words of what is learned from: by that they are drawn, whatever is read, and their tree grows."""
        from keel.kernels.word_counts import count_words

        text = self._text(data)
        stops = text.begins + np.diff(text.ends, prepend=0)
        counts = count_words(text.ids, text.begins, stops, self.encoder.vocab_size)
        counts[self.specials] = 0
        if (counts > 0).sum() < 2:
            remedy = "give it more text, or lower --min-count"
            raise KeelError(f"the corpus holds fewer than two words that come up often enough: {remedy}")
        self._chances = sampling_tables(counts, self.system.subsample, self.system.sampling_power)
        if self.system.loss == "hierarchical" and not self.counts_of_tree.any():
            self.counts_of_tree.copy_(torch.from_numpy(counts))

    def epoch_size(self, data: Documents) -> int:
        return math.ceil(data.size / self.system.chunk_length)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> ContextWindows:
        """The windows of these rows: the very same that `update` learns from."""
        from keel.kernels.context_windows import allocate_windows, sample_windows, subsample_words

        text, chances = self._prepared(data)
        tree, negatives = self._tree, self._negatives
        found = []
        for first, last, state in self._chunks(data, rng, examples):
            words, sentences = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
            count, state = subsample_words(*text, first, last, chances.keep, state, words, sentences)
            filled = allocate_windows(last - first, self.system.window, negatives, tree)
            draws = (self.system.window, *chances[1:], negatives, self.block, tree, np.uint64(state))
            count = sample_windows(words, sentences, count, *draws, *filled)
            found.append([table[:count] for table in filled])
        near, targets, truths, sizes = (torch.from_numpy(np.concatenate(column)) for column in zip(*found, strict=True))
        present, compared = (
            torch.arange(value.shape[1]) < sizes[:, [column]] for column, value in enumerate((near, targets))
        )
        return ContextWindows(
            context=torch.where(present, near, 0).long(),
            context_mask=present.float(),
            targets=targets.long(),
            target_mask=compared.float(),
            labels=truths[:, : targets.shape[1]] * compared,
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

    def update(
        self, data: Documents, rng: CounterRng, examples: range, lr: float, threads: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        from keel.kernels.word2vec_updates import update_word2vec

        text, chances = self._prepared(data)
        tree = self._tree
        inputs, outputs = as_aligned_array(self.encoder.words.weight), as_aligned_array(self.contexts)
        bag = self.system.architecture == "cbow"

        def one(places: Sequence[_Chunk]) -> tuple[float, int]:
            firsts, lasts, states = (np.array(column) for column in zip(*places, strict=True))
            return update_word2vec(
                *text, *chances, tree, firsts, lasts, states, inputs, outputs, self.system.window, self._negatives,
                self.block, bag, np.float32(lr),
            )  # fmt: skip

        return self._run_threads(list(self._chunks(data, rng, examples)), threads, one)

    def _run_threads(
        self, places: Sequence[_Chunk], threads: int, one: Callable[[Sequence[_Chunk]], tuple[float, int]]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """What `update` gives, if each thread learns from its share of the places by `one`: losses and predictions."""
        shares = [places[number::threads] for number in range(min(threads, len(places)))]
        found = list(map(one, shares) if threads == 1 else _thread_pool(threads).map(one, shares))
        loss, predictions = (sum(column) for column in zip(*found, strict=True))
        words = sum(last - first for first, last, _ in places)
        return {self.system.loss: loss}, {self.system.loss: predictions, "words": words}

    def _chunks(self, data: Documents, rng: CounterRng, examples: range) -> Iterator[_Chunk]:
        size = self.epoch_size(data)
        for row in examples:
            epoch, place = divmod(int(rng.first_example) + row, size)
            first = int(_epoch_order(rng.seed, epoch, size)[place]) * self.system.chunk_length
            seed = derive_seed(rng.seed, int(rng.step), "row", row)
            yield first, min(first + self.system.chunk_length, data.size), np.uint64(seed)

    @property
    def block(self) -> int:
        """How many windows share what was drawn and learn at once: in skip-gram one has enough predictions to do so."""
        from keel.kernels.word2vec_updates import BLOCK

        return BLOCK if self.system.architecture == "cbow" and self.system.loss == "negative" else 1

    @property
    def _negatives(self) -> int:
        return self.system.negatives if self.system.loss == "negative" else 0

    def _prepared(self, data: Documents) -> tuple[_CorpusArrays, SamplingTables]:
        """These documents as the kernels read them, and how words are drawn."""
        if self._chances is None:
            self.setup(data)
        assert self._chances is not None
        return self._text(data), self._chances

    def _text(self, data: Documents) -> _CorpusArrays:
        if id(data) not in self._texts:
            ids, bounds = data.ids.numpy(), data.starts.numpy()
            begins = np.ascontiguousarray(bounds[data.spans[:, 0].numpy()])
            self._texts[id(data)] = _CorpusArrays(ids.view(f"u{ids.itemsize}"), bounds, begins, data.ends.numpy())
        return self._texts[id(data)]

    @property
    def _tree(self) -> HuffmanTree:
        """The tree of all words, none for negative sampling; by the counts of what was first learned from."""
        if self.system.loss == "negative":
            return NO_TREE
        if self._grown is None:
            # In float32, as folders keep numbers: the tree of a model that was saved is the same.
            self._grown = huffman_tree(self.counts_of_tree.numpy())
        return self._grown


NO_TREE = HuffmanTree(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32), np.zeros(0, np.int32))


@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, size: int) -> np.ndarray:
    """The rows of an epoch in its own order: all at once costs little more than those of a step."""
    return CounterRng(seed=seed, step=0, first_example=epoch * size).epoch_order(torch.arange(size), size)[0].numpy()


@cache
def _thread_pool(threads: int) -> ThreadPoolExecutor:
    """Threads that wait for the next step instead of being made for it."""
    return ThreadPoolExecutor(threads, "learn")


def as_aligned_array(parameter: Tensor) -> np.ndarray:
    """The numbers of a parameter, each row in whole cache lines: it is moved to such a place when first asked for."""
    from keel.kernels.simd import round_up_to_lanes

    rows, width = parameter.shape
    size = round_up_to_lanes(width)
    if parameter.stride() != (size, 1) or parameter.data_ptr() % 64:
        wide = torch.zeros(rows, size)
        wide[:, :width] = parameter.data
        parameter.data = wide[:, :width]
    return parameter.data.as_strided((rows, size), (size, 1)).numpy()


def sampling_tables(counts: np.ndarray, subsample: float, power: float) -> SamplingTables:
    """Keep a word with chance sqrt(t/f) + t/f for its share f of the text; draw it by counts^power."""
    share = counts / counts.sum()
    keep = np.ones_like(share)
    if subsample:
        ratio = subsample / np.maximum(share, 1e-30)
        keep = np.minimum(1.0, np.sqrt(ratio) + ratio)
    keep = np.where(counts > 0, keep, 0.0)
    weights = np.where(counts > 0, counts.astype(np.float64) ** power, 0.0)
    chances, others = alias_table(weights)
    return SamplingTables(
        (keep * 2**32).astype(np.uint64),
        np.minimum(chances * 2**32, 2**32 - 1).astype(np.uint32),
        others.astype(np.int32),
    )


def alias_table(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walker's alias method: draw a place evenly, stay there with its chance, else go to its other."""
    scaled = weights * (len(weights) / weights.sum())
    chances, others = np.ones(len(weights)), np.arange(len(weights))
    small = [place for place in range(len(weights)) if scaled[place] < 1]
    large = [place for place in range(len(weights)) if scaled[place] >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        chances[low], others[low] = scaled[low], high
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            small.append(large.pop())
    return chances, others
