"""Word classes (Brown et al., "Class-Based n-gram Models of Natural Language", 1992).

New then: which words are alike is learned from text alone. Every word starts as a class of its own, and the two classes
merge whose merger loses the least of what a class tells about the next one (their average mutual information). The
merges that follow, down to one class, are a tree: a word's path through it, in bits, is its class and all coarser ones.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.nn.encoder import Encoder, EncoderOutput
from keel.systems.finetuning_policy import FineTuningPolicy, NoFineTuning
from keel.systems.static_vectors import WordSystem
from keel.training.counter_rng import CounterRng
from keel.training.objective import CustomUpdate, State, Tensors
from keel.training.plan import Train

STRETCH = 1000
"""Words in a row of held-out text."""
CHUNK = 1 << 24
"""Pairs of words that are sorted at once."""


@dataclass(frozen=True, kw_only=True)
class Wordclass(WordSystem):
    """How fine the classes are."""

    classes: int = 500
    """Classes at the bottom of the tree."""

    name: ClassVar[str] = "wordclass"
    default_vocab_size: ClassVar[int] = 50_000
    count_based: ClassVar[bool] = True
    pretraining_defaults: ClassVar[Train] = Train(
        optimizer="own",
        epochs=1,
        batch=500,
        lr=1.0,
        warmup=0,
        evaluate_every=0,
        log_every=1,
        checkpoint_every=0,
        device="cpu",
    )

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise UsageError(f"classes must be 2 or more, not {self.classes}")

    @property
    def continued_pretraining_defaults(self) -> NoReturn:
        raise UsageError("word classes cannot learn more once they are made: start anew with `pretrain wordclass`")

    @property
    def finetuning_policy(self) -> FineTuningPolicy:
        return NoFineTuning(self, "word classes are learned from text: say keel pretrain wordclass CORPUS first")

    def build_encoder(self, vocab_size: int) -> "WordclassEncoder":
        return WordclassEncoder(vocab_size, self.classes)

    def build_objective(self, encoder: "WordclassEncoder", tokenizer: Tokenizer) -> "BrownClustering":
        return BrownClustering(encoder, tokenizer)


class WordclassEncoder(Encoder):
    """A word is a 1 for its class and for every coarser class above that; a row is the mean of its words.

    Its bits alone would not do: what a bit means hangs on all bits before it. Numbered as nodes of the tree, coarse and
    fine classes are features that a linear head can use, and words are the nearer, the longer they go the same way.
    """

    def __init__(self, vocab_size: int, classes: int):
        super().__init__()
        self.vocab_size, self.size, self.width = vocab_size, classes, 2 * classes - 2
        self.classes: Tensor
        self.counts: Tensor
        self.merges: Tensor
        self.register_buffer("classes", torch.full((vocab_size,), float(classes)))  # of each word; the last is none
        self.register_buffer("counts", torch.zeros(vocab_size))  # how often each word came up
        # [classes - 1, 2] which nodes of the tree met in the n-th merge, to be node classes + n; -1 before that
        self.register_buffer("merges", torch.full((classes - 1, 2), -1.0))
        self.vectors = nn.Parameter(torch.zeros(classes + 1, self.width))

    @property
    def paths(self) -> list[str]:
        """Of each word the bits of its way down the tree; nothing for one without a class."""
        bits = [""] * (2 * self.size - 1)
        for number, (left, right) in reversed(list(enumerate(self.merges.long().tolist()))):
            if left >= 0:
                above = bits[self.size + number]
                bits[left], bits[right] = above + "0", above + "1"
        return [bits[number] if number < self.size else "" for number in self.classes.long().tolist()]

    def extra_files(self, tokenizer: Tokenizer) -> dict[str, str]:
        """bits, word and count in a line, as Liang's widely read `paths` files have them."""
        paths, counts = self.paths, self.counts.long().tolist()
        known = sorted((path, -counts[word], word) for word, path in enumerate(paths) if path)
        lines = (f"{path}\t{tokenizer.token_of(word)}\t{-count}\n" for path, count, word in known)
        return {"classes.tsv": "".join(lines)}

    def build_vectors(self) -> None:
        """Make the vectors from the merges there are."""
        above = np.eye(self.size + 1, 2 * self.size - 1, dtype=bool)
        above[self.size] = False
        for number, (left, right) in enumerate(self.merges.long().tolist()):
            if left >= 0:
                above[:, self.size + number] = above[:, left] | above[:, right]
        with torch.no_grad():
            self.vectors.copy_(torch.from_numpy(above[:, :-1]))  # all are under the root, which tells nothing

    def word_embeddings(self) -> Tensor:
        return self.vectors[self.classes.long()]

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.vectors[self.classes[batch.ids].long()]

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        return (output.top * self._shares(batch)[..., None]).sum(1)

    def pooled_features(self, batch: TokenBatch) -> Tensor:
        """The same by the shares of classes in a row, not word by word."""
        shares = self.vectors.new_zeros(len(batch.ids), self.size + 1)
        return shares.scatter_add_(1, self.classes[batch.ids].long(), self._shares(batch)) @ self.vectors

    def _shares(self, rows: TokenBatch) -> Tensor:
        inside = torch.arange(rows.ids.shape[1], device=rows.ids.device) < rows.lengths[:, None]
        return inside.to(self.vectors.dtype) / rows.lengths[:, None].clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class WordBigrams(Tensors):
    """Words side by side."""

    before: Tensor  # [rows, time]
    words: Tensor  # [rows, time]
    present: Tensor  # [rows, time] 1 where both are words of one sentence


class BigramCounts(NamedTuple):
    """Words by their frequency, and which stand side by side how often."""

    order: np.ndarray  # [words] ids, the most frequent first
    counts: np.ndarray  # [words]
    after: np.ndarray  # [pairs] which words follow, those that follow word n from after_starts[n] on
    after_starts: np.ndarray
    after_counts: np.ndarray
    before: np.ndarray
    before_starts: np.ndarray
    before_counts: np.ndarray


class BrownClustering(CustomUpdate):
    """Words become classes in the order of their frequency; of one class too many the best two merge; then all do.

    The loss is that of Brown's bigram model, p(w | v) = p(class of w | class of v) p(w | its class), smoothed by one.
    """

    nondeterministic: ClassVar[bool] = False

    def __init__(self, encoder: WordclassEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.encoder = encoder
        self.specials = tokenizer.special_ids
        size = encoder.size + 1  # one too many, for a moment
        self.done: Tensor
        self.slots: Tensor
        self.nodes: Tensor
        self.joint: Tensor
        self.shared: Tensor
        self.following: Tensor
        self.register_buffer("done", torch.zeros(1))  # rows of the work
        self.register_buffer("slots", torch.full((encoder.vocab_size,), -1.0))  # of the words by frequency
        self.register_buffer("nodes", torch.full((size,), -1.0))  # what each slot is in the tree
        self.register_buffer("joint", torch.zeros(size, size, dtype=torch.float64))  # counts of classes side by side
        self.register_buffer("shared", torch.full((size, size), -1e300, dtype=torch.float64))  # see the kernel
        self.register_buffer("following", torch.zeros(size, size))  # joint, before the tree was made
        self._kept: dict[int, BigramCounts] = {}

    def epoch_size(self, data: Documents) -> int:
        """A word each and, for the tree, a merge each; no more words come up than there are."""
        return self.encoder.vocab_size + self.encoder.size - 1

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> WordBigrams:
        token = torch.arange(examples.start, examples.stop)[:, None] * STRETCH + torch.arange(STRETCH)
        place, _ = data.locate_token(token.clamp(max=data.size - 1))
        sentence = torch.searchsorted(data.starts, place, right=True)
        words = data.read(place)
        special = torch.isin(words, torch.tensor(self.specials))
        present = (token < data.size) & ~special
        present = present[:, 1:] & present[:, :-1] & (sentence[:, 1:] == sentence[:, :-1])
        return WordBigrams(before=words[:, :-1], words=words[:, 1:], present=present.double())

    def counts(self, batch: WordBigrams) -> dict[str, Tensor]:
        return {"bigram": batch.present.sum()}

    def forward(self, batch: WordBigrams, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        classes, words = self.encoder.classes.long(), self.encoder.counts.double() + 1
        in_class = words.new_zeros(len(self.following)).index_add_(0, classes, words)
        follows = self.following.double() + 1
        chances = (follows / follows.sum(1, keepdim=True)).log()[classes[batch.before], classes[batch.words]]
        chances = chances + (words / in_class[classes]).log()[batch.words]
        return {"bigram": -(chances * batch.present).sum()}, None

    def update(
        self, data: Documents, rng: CounterRng, examples: range, lr: float, threads: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """The sum of losses is what merges lost of the mutual information, times the number of pairs of words."""
        corpus = self._prepared(data)
        words, first = len(corpus.order), int(self.done)
        last = min(first + len(examples), words + self.encoder.size - 1)
        lost = 0.0
        for stop in sorted({min(max(first, words), last), last}):  # the tree begins when all words have a class
            lost += self._work(corpus, first, stop)
            first = stop
            if stop <= words:
                self._settle(corpus)
        self.done.fill_(max(first, last))
        self.encoder.build_vectors()
        return {"lost": lost}, {"lost": float(corpus.after_counts.sum()), "words": float(len(examples))}

    def _work(self, corpus: BigramCounts, first: int, last: int) -> float:
        """Rows first to last, all of words or all of the tree; what their merges lost."""
        from keel.kernels import brown_clustering

        words = len(corpus.order)
        slots, joint = self.slots[:words].long().numpy(), self.joint.long().numpy()
        turned, shared = np.ascontiguousarray(joint.T), self.shared.numpy()
        merges = np.full((last - first, 3), -1.0)
        alive = np.zeros(len(joint), bool)
        alive[slots[slots >= 0]] = True
        brown_clustering.merge_classes(
            first, last, words, *corpus[2:], slots, joint, turned, shared, alive,
            brown_clustering.n_log_n_table(1 << 16), merges,
        )  # fmt: skip
        self.slots[:words] = torch.from_numpy(slots)
        self.joint.copy_(torch.from_numpy(joint))
        if first >= words:
            for row, (kept, gone, _) in enumerate(merges[merges[:, 0] >= 0].astype(np.int64), first - words):
                self.encoder.merges[row] = self.nodes[[kept, gone]]
                self.nodes[kept], self.nodes[gone] = self.encoder.size + row, -1
        return float(merges[merges[:, 0] >= 0, 2].sum())

    def _settle(self, corpus: BigramCounts) -> None:
        """Give the classes as they are to the encoder: leaves of a tree that is still to come."""
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

    def _prepared(self, data: Documents) -> BigramCounts:
        """The words of a corpus and their neighbours, counted once."""
        if id(data) not in self._kept:
            self._kept = {id(data): count_bigrams(data, self.encoder.vocab_size, self.specials)}
            words = len(self._kept[id(data)].order)
            if words < self.encoder.size:
                what = f"the corpus has {words:,} words that come up, too few for {self.encoder.size:,} classes"
                raise KeelError(f"{what}: give it more text, or ask for fewer classes (--system.classes)")
        return self._kept[id(data)]


def count_bigrams(data: Documents, vocabulary: int, specials: list[int]) -> BigramCounts:
    from keel.kernels.word_counts import count_words, fill_bigram_keys

    ids, bounds = data.ids.numpy(), data.starts.numpy()
    ids = ids.view(f"u{ids.itemsize}")
    first, last = data.spans.numpy().T
    inside = np.zeros(len(bounds) + 1, np.int64)
    np.add.at(inside, first, 1)
    np.add.at(inside, last, -1)
    sentences = np.flatnonzero(inside.cumsum())
    begins, ends = bounds[sentences], bounds[sentences + 1]
    counts = count_words(ids, begins, ends, vocabulary)
    counts[specials] = 0
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    size = len(order)
    rank = np.full(vocabulary, -1)
    rank[order] = np.arange(size)

    keys, sums = np.zeros((2, 0), np.int64)
    room = np.empty(max(min(CHUNK, int((ends - begins).sum())), int((ends - begins).max())), np.int64)
    sentence = 0
    while sentence < len(begins):
        count, sentence = fill_bigram_keys(ids, begins, ends, sentence, rank, size, room)
        new, times = np.unique(room[:count], return_counts=True)
        keys, places = np.unique(np.concatenate([keys, new]), return_inverse=True)
        sums = np.bincount(places, np.concatenate([sums, times]), len(keys)).astype(np.int64)
    left, right = np.divmod(keys, size)
    turned = np.argsort(right, kind="stable")
    places = np.arange(size + 1)
    return BigramCounts(
        order, counts[order], right, np.searchsorted(left, places), sums,
        left[turned], np.searchsorted(right[turned], places), sums[turned],
    )  # fmt: skip
