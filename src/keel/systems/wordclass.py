"""Brown clusters (Brown et al., "Class-Based n-gram Models of Natural Language", 1992).

New then: word similarity is learned from text alone. Every word starts as a class, and the pair of classes is merged
that loses the least average mutual information of adjacent classes. The merges down to one class form a binary tree:
the bit path of a word names its class and all coarser ones.
"""

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from keel.config import Ge
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.nn.encoder import Encoder, EncoderOutput
from keel.systems.static_vectors import DatasetCache, WordSystem
from keel.systems.system import OWN_UPDATES, CountBased, CountingObjective
from keel.training.counter_rng import CounterRng
from keel.training.objective import State, Sums, Tensors

EXAMPLE_TOKENS = 1000
"""Tokens of a validation example."""
SORT_CHUNK = 1 << 24
"""Bigrams that are sorted at once."""


@dataclass(frozen=True, kw_only=True)
class Wordclass(WordSystem, CountBased):
    """Hyper-parameters of Brown clustering."""

    classes: Annotated[int, Ge(2)] = 500
    """Number of word classes, the leaves of the tree."""

    name = "wordclass"
    year = 1992
    default_vocab_size = 50_000
    pretraining_defaults = replace(OWN_UPDATES, batch=500, checkpoint_every=0)

    def unsupported_reason(self, task: str, *, trained: bool = False) -> str | None:
        if task == "pretrain" and trained:
            return "wordclass cannot continue pre-training: run `keel pretrain wordclass` on all of the text"
        if task != "pretrain" and not trained:
            return "word classes are clustered from text: run `keel pretrain wordclass CORPUS` first"
        return super().unsupported_reason(task, trained=trained)

    def build_encoder(self, vocab_size: int) -> "WordclassEncoder":
        return WordclassEncoder(vocab_size, self.classes)

    def build_objective(self, encoder: "WordclassEncoder", tokenizer: Tokenizer) -> "BrownClustering":
        return BrownClustering(encoder, tokenizer)


class WordclassEncoder(Encoder):
    """Multi-hot vectors over the tree: 1 for a word's class and each coarser class; a text is the mean of its words.

    The bits of the path would not do, since the meaning of a bit depends on all bits before it. Tree nodes are features
    that a linear head can use, and words are closer the longer the common prefix of their paths.
    """

    def __init__(self, vocab_size: int, classes: int):
        super().__init__()
        self.vocab_size, self.size, self.width = vocab_size, classes, 2 * classes - 2
        self.classes = nn.Buffer(torch.full((vocab_size,), float(classes)))  # of each word; `classes` is none
        self.counts = nn.Buffer(torch.zeros(vocab_size))  # occurrences of each word
        # [classes - 1, 2] the nodes of the n-th merge, which becomes node classes + n; -1 before it
        self.merges = nn.Buffer(torch.full((classes - 1, 2), -1.0))
        self.vectors = nn.Parameter(torch.zeros(classes + 1, self.width))

    @property
    def paths(self) -> list[str]:
        """Bit path of each word from the root; empty for words without a class."""
        bits = [""] * (2 * self.size - 1)
        for number, (left, right) in reversed(list(enumerate(self.merges.long().tolist()))):
            if left >= 0:
                above = bits[self.size + number]
                bits[left], bits[right] = above + "0", above + "1"
        return [bits[number] if number < self.size else "" for number in self.classes.long().tolist()]

    def extra_files(self, tokenizer: Tokenizer) -> dict[str, str]:
        """classes.tsv: bit path, word and count per line, the format of Liang's `paths` files."""
        paths, counts = self.paths, self.counts.long().tolist()
        known = sorted((path, -counts[word], word) for word, path in enumerate(paths) if path)
        lines = (f"{path}\t{tokenizer.token_of(word)}\t{-count}\n" for path, count, word in known)
        return {"classes.tsv": "".join(lines)}

    def build_vectors(self) -> None:
        """Build the vectors from the merges so far."""
        above = np.eye(self.size + 1, 2 * self.size - 1, dtype=bool)
        above[self.size] = False
        for number, (left, right) in enumerate(self.merges.long().tolist()):
            if left >= 0:
                above[:, self.size + number] = above[:, left] | above[:, right]
        with torch.no_grad():
            self.vectors.copy_(torch.from_numpy(above[:, :-1]))  # without the root, which is above all

    def word_embeddings(self) -> Tensor:
        return self.vectors[self.classes.long()]

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.vectors[self.classes[batch.ids].long()]

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        return (output.top * self._shares(batch)[..., None]).sum(1)

    def pooled_features(self, batch: TokenBatch) -> Tensor:
        """The same, from the class distribution of each text."""
        if batch.embeddings is not None:
            return super().pooled_features(batch)
        shares = self.vectors.new_zeros(len(batch.ids), self.size + 1)
        return shares.scatter_add_(1, self.classes[batch.ids].long(), self._shares(batch)) @ self.vectors

    def _shares(self, batch: TokenBatch) -> Tensor:
        inside = torch.arange(batch.ids.shape[1], device=batch.ids.device) < batch.lengths[:, None]
        return inside.to(self.vectors.dtype) / batch.lengths[:, None].clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class WordBigrams(Tensors):
    """Adjacent words."""

    before: Tensor  # [batch, time]
    words: Tensor  # [batch, time]
    present: Tensor  # [batch, time] 1 where both are words of one sentence


class BigramCounts(NamedTuple):
    """Bigram counts of a corpus, in compressed sparse rows by left word and by right word."""

    order: np.ndarray  # [words] ids by falling frequency
    counts: np.ndarray  # [words]
    after: np.ndarray  # [bigrams] followers, those of word n from after_starts[n] on
    after_starts: np.ndarray
    after_counts: np.ndarray
    before: np.ndarray
    before_starts: np.ndarray
    before_counts: np.ndarray


class BrownClustering(CountingObjective):
    """Adds words as classes by falling frequency, merging the best pair of one class too many; then builds the tree.

    The loss is that of Brown's class bigram model, p(w | v) = p(c(w) | c(v)) p(w | c(w)), with add-one smoothing.
    """

    def __init__(self, encoder: WordclassEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.encoder = encoder
        self.special_ids = tokenizer.special_ids
        size = encoder.size + 1  # one too many before each merge
        self.done = nn.Buffer(torch.zeros(1))  # steps of the clustering
        self.slots = nn.Buffer(torch.full((encoder.vocab_size,), -1.0))  # slot of each word, by frequency
        self.nodes = nn.Buffer(torch.full((size,), -1.0))  # tree node of each slot
        self.joint = nn.Buffer(torch.zeros(size, size, dtype=torch.float64))  # bigram counts of classes
        self.shared = nn.Buffer(torch.full_like(self.joint, -1e300))  # see kernels/brown_clustering.py
        self.following = nn.Buffer(torch.zeros(size, size))  # joint, before the tree was built
        self._bigrams = DatasetCache[BigramCounts]()

    def epoch_size(self, data: Documents) -> int:
        """A step per word and per merge of the tree; words of the vocabulary that do not occur take none."""
        return self.encoder.vocab_size + self.encoder.size - 1

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> WordBigrams:
        token = torch.arange(examples.start, examples.stop)[:, None] * EXAMPLE_TOKENS + torch.arange(EXAMPLE_TOKENS)
        position, _ = data.locate_token(token.clamp(max=data.size - 1))
        sentence = torch.searchsorted(data.starts, position, right=True)
        words = data.read(position)
        special = torch.isin(words, torch.tensor(self.special_ids))
        present = (token < data.size) & ~special
        present = present[:, 1:] & present[:, :-1] & (sentence[:, 1:] == sentence[:, :-1])
        return WordBigrams(before=words[:, :-1], words=words[:, 1:], present=present.double())

    def counts(self, batch: WordBigrams) -> dict[str, Tensor]:
        return {"bigram": batch.present.sum()}

    def forward(self, batch: WordBigrams, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        classes, words = self.encoder.classes.long(), self.encoder.counts.double() + 1
        in_class = words.new_zeros(len(self.following)).index_add_(0, classes, words)
        follows = self.following.double() + 1
        log_probs = (follows / follows.sum(1, keepdim=True)).log()[classes[batch.before], classes[batch.words]]
        log_probs = log_probs + (words / in_class[classes]).log()[batch.words]
        return {"bigram": -(log_probs * batch.present).sum()}, None

    def count(self, data: Documents, examples: range) -> Sums:
        """Run the next steps; the sum of losses is the lost mutual information times the number of bigrams."""
        corpus = self._count_bigrams(data)
        words, first = len(corpus.order), int(self.done)
        last = min(first + len(examples), words + self.encoder.size - 1)
        lost = 0.0
        for stop in sorted({min(max(first, words), last), last}):  # the tree is built once all words have a class
            lost += self._run_steps(corpus, first, stop)
            first = stop
            if stop <= words:
                self._set_leaves(corpus)
        self.done.fill_(max(first, last))
        self.encoder.build_vectors()
        return {"lost": lost}, {"lost": float(corpus.after_counts.sum()), "words": float(len(examples))}

    def _run_steps(self, corpus: BigramCounts, first: int, last: int) -> float:
        """Run steps first to last, all of words or all of the tree; return the loss of their merges."""
        from keel.kernels import brown_clustering

        words = len(corpus.order)
        slots, joint = self.slots[:words].long().numpy(), self.joint.long().numpy()
        transposed, shared = np.ascontiguousarray(joint.T), self.shared.numpy()
        merges = np.full((last - first, 3), -1.0)
        alive = np.zeros(len(joint), bool)
        alive[slots[slots >= 0]] = True
        brown_clustering.merge_classes(
            first, last, words, *corpus[2:], slots, joint, transposed, shared, alive,
            brown_clustering.n_log_n_table(1 << 16), merges,
        )  # fmt: skip
        self.slots[:words] = torch.from_numpy(slots)
        self.joint.copy_(torch.from_numpy(joint))
        if first >= words:
            for row, (kept, gone, _) in enumerate(merges[merges[:, 0] >= 0].astype(np.int64), first - words):
                self.encoder.merges[row] = self.nodes[[kept, gone]]
                self.nodes[kept], self.nodes[gone] = self.encoder.size + row, -1
        return float(merges[merges[:, 0] >= 0, 2].sum())

    def _set_leaves(self, corpus: BigramCounts) -> None:
        """Copy the current classes into the encoder as leaves of the tree."""
        words, size = len(corpus.order), self.encoder.size
        slots = self.slots[:words].long()
        leaves = slots[slots >= 0].unique()  # the slots in use, at most `size`
        self.nodes.fill_(-1)
        self.nodes[leaves] = torch.arange(len(leaves), dtype=self.nodes.dtype)
        order = torch.from_numpy(corpus.order)
        self.encoder.classes.fill_(size)
        self.encoder.classes[order] = torch.where(slots >= 0, self.nodes[slots], float(size))
        self.encoder.counts[order] = torch.from_numpy(corpus.counts).to(self.encoder.counts)
        self.following.zero_()
        self.following[: len(leaves), : len(leaves)] = self.joint[leaves][:, leaves].to(self.following)

    def _count_bigrams(self, data: Documents) -> BigramCounts:
        corpus = self._bigrams.get(data, lambda: count_bigrams(data, self.encoder.vocab_size, self.special_ids))
        if len(corpus.order) < self.encoder.size:
            what = f"the corpus has {len(corpus.order):,} distinct words, too few for {self.encoder.size:,} classes"
            raise KeelError(f"{what}: use more text or fewer classes (--system.classes)")
        return corpus


def count_bigrams(data: Documents, vocab_size: int, special_ids: list[int]) -> BigramCounts:
    from keel.kernels.word_counts import count_words, fill_bigram_keys

    ids, begins, ends = data.sentence_arrays()
    counts = count_words(ids, begins, ends, vocab_size)
    counts[special_ids] = 0
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    size = len(order)
    rank = np.full(vocab_size, -1)
    rank[order] = np.arange(size)

    keys, sums = np.zeros((2, 0), np.int64)
    keys_buffer = np.empty(max(min(SORT_CHUNK, int((ends - begins).sum())), int((ends - begins).max())), np.int64)
    sentence = 0
    while sentence < len(begins):
        count, sentence = fill_bigram_keys(ids, begins, ends, sentence, rank, size, keys_buffer)
        new, times = np.unique(keys_buffer[:count], return_counts=True)
        keys, positions = np.unique(np.concatenate([keys, new]), return_inverse=True)
        sums = np.bincount(positions, np.concatenate([sums, times]), len(keys)).astype(np.int64)
    left, right = np.divmod(keys, size)
    transposed = np.argsort(right, kind="stable")
    positions = np.arange(size + 1)
    return BigramCounts(
        order, counts[order], right, np.searchsorted(left, positions), sums,
        left[transposed], np.searchsorted(right[transposed], positions), sums[transposed],
    )  # fmt: skip
