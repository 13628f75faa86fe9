"""fastText's classifier (Joulin, Grave, Bojanowski & Mikolov, "Bag of Tricks for Efficient Text Classification", 2017).

New then: as accurate as networks of many times its cost. A linear classifier on the mean of the vectors of words and
n-grams; hashed word n-grams keep some word order; hierarchical softmax or negative sampling for many labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.collation import EpochOrder, epoch_rng
from keel.data.label_kinds import MultiLabel, SingleLabel
from keel.data.token_batch import SubwordUnits, TokenBatch
from keel.nn.huffman import HuffmanTree, huffman_tree
from keel.systems.static_vectors import sum_over_threads
from keel.systems.word2vec import NO_TREE, alias_table
from keel.training.counter_rng import CounterRng
from keel.training.objective import CustomUpdate, State, Sums, Tensors

LabelLoss = Literal["softmax", "hierarchical", "negative", "one-vs-all"]
"""Loss of the classifier."""
END_OF_LINE, LABEL_PREFIX = "</s>", "__label__"
"""fastText's end-of-line token, and its prefix of labels."""


def build_bags(
    positions: np.ndarray,
    starts: np.ndarray,
    end: int,
    units: SubwordUnits,
    words: Sequence[str],
    longest: int,
    buckets: int,
) -> tuple[np.ndarray, np.ndarray, SubwordUnits]:
    """Bags of words with the end-of-line token and word n-grams up to `longest`, and the units with these n-grams."""
    from keel.kernels.fasttext_classifier_updates import add_word_ngrams, word_hashes

    written = [word.encode("utf-8", "surrogatepass") for word in words]
    ends = np.cumsum(np.fromiter(map(len, written), np.int64, len(written)))
    hashes = word_hashes(np.frombuffer(b"".join(written), np.uint8), ends)
    present = np.diff(ends, prepend=0) > 0
    bags, starts, found = add_word_ngrams(positions, starts, end, hashes, present, longest, buckets)
    more = torch.from_numpy(found)
    joined = SubwordUnits(
        word_ids=torch.cat([units.word_ids, units.word_ids.new_full((len(more),), -1)]),
        unit_ids=torch.cat([units.unit_ids, more]),
        unit_starts=torch.cat([units.unit_starts, len(units.unit_ids) + torch.arange(len(more))]),
    )
    return bags, starts, joined


@lru_cache(maxsize=8)
def label_tree(counts: tuple[int, ...]) -> HuffmanTree:
    """Huffman tree of labels with these counts, as fastText builds it."""
    tree = huffman_tree(np.array(counts, np.int64))
    return tree._replace(signs=-tree.signs)  # the lighter branch is the negative one


def label_log_probs(scores: Tensor, tree: HuffmanTree) -> Tensor:
    """[..., labels] log p(label), the sum of log sigmoid(sign x score) over its path, from [..., nodes] scores."""
    signs = torch.from_numpy(tree.signs).to(scores)
    steps = scores[..., torch.from_numpy(tree.nodes).long().to(scores.device)] * signs  # [..., labels, depth]
    return (F.logsigmoid(steps) * signs.abs()).sum(-1)


@dataclass(frozen=True, kw_only=True)
class BagBatch(Tensors):
    """Texts and their labels as tensors, for the reference loss."""

    bags: TokenBatch
    targets: Tensor  # [batch] labels, or [batch, labels] multi-hot
    negatives: Tensor  # [batch, negatives] sampled labels


class _AliasTable(NamedTuple):
    """Distribution of negative samples: Walker's alias method, in 2^32."""

    probabilities: np.ndarray
    aliases: np.ndarray


class _BagArrays(NamedTuple):
    """Texts and labels as the kernel reads them."""

    bag_starts: np.ndarray  # [texts + 1] where the words of each text start
    ids: np.ndarray  # [words] indices of units
    words: np.ndarray  # [units] row of the word vector, or -1
    parts: np.ndarray  # rows of the n-gram vectors
    starts: np.ndarray  # [units + 1] where the n-grams of each unit start
    classes: np.ndarray  # [texts] label, if single-label
    targets: np.ndarray  # [texts, labels] multi-hot, if multi-label


class BagTraining(CustomUpdate):
    """SGD on one text at a time for logits W h of its mean vector h: softmax cross-entropy, or the sum of
    -log sigmoid(+-w . h) over the nodes of the label's Huffman path (hierarchical), over the label and its negative
    samples (negative), or over all labels (one-vs-all)."""

    def __init__(self, task: Any, loss: LabelLoss, negatives: int):
        super().__init__()
        self.task = task
        self.loss, self.negatives = loss, negatives if loss == "negative" else 0
        if not isinstance(task.labels.kind, SingleLabel):
            self.loss, self.negatives = "one-vs-all", 0
        self.tree = label_tree(task.labels.counts) if self.loss == "hierarchical" else None
        self.drawing = _AliasTable(np.zeros(0, np.uint64), np.zeros(0, np.int64))
        if self.negatives:
            probabilities, aliases = alias_table(np.maximum(np.array(task.labels.counts, np.float64), 1) ** 0.5)
            self.drawing = _AliasTable((probabilities * 2**32).astype(np.uint64), aliases)
        self._arrays: tuple[Any, _BagArrays] | None = None
        self._order: EpochOrder | None = None

    def setup(self, data: Any) -> None:
        """Start from a classifier of zeros, as fastText does."""
        nn.init.zeros_(self.task.classifier.weight)

    def epoch_size(self, data: Any) -> int:
        return len(data)

    def batch(self, data: Any, rng: CounterRng, examples: range) -> BagBatch:
        """These texts, with the same negative samples as in `update`."""
        from keel.kernels.fasttext_classifier_updates import sample_labels

        index = self._index(data, rng, examples)
        negatives = np.zeros((len(index), 1 + self.negatives), np.int64)
        if self.negatives:
            for row, text, state in zip(negatives, index, self._states(rng, examples), strict=True):
                sample_labels(int(data.targets[data.example_indices[text]]), *self.drawing, state, row)
        return BagBatch(
            bags=data.padded_batch(index),
            targets=data.targets[data.example_indices[index]],
            negatives=torch.from_numpy(negatives[:, 1:].copy()),
        )

    def counts(self, batch: BagBatch) -> dict[str, Tensor]:
        return {"loss": torch.tensor(float(len(batch.targets)))}

    def forward(self, batch: BagBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        scores = F.linear(self.task.encoder.pooled_features(batch.bags), self.task.classifier.weight)
        if isinstance(self.task.labels.kind, MultiLabel):
            return {"loss": F.binary_cross_entropy_with_logits(scores, batch.targets.to(scores), reduction="sum")}, None
        if self.tree:
            return {"loss": F.nll_loss(label_log_probs(scores, self.tree), batch.targets, reduction="sum")}, None
        if self.negatives:
            true, negatives = scores.gather(1, batch.targets[:, None]), scores.gather(1, batch.negatives)
            return {"loss": -F.logsigmoid(true).sum() - F.logsigmoid(-negatives).sum()}, None
        if self.loss == "one-vs-all":
            labels = F.one_hot(batch.targets, scores.shape[1]).to(scores)
            return {"loss": F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")}, None
        return {"loss": F.cross_entropy(scores, batch.targets, reduction="sum")}, None

    def update(self, data: Any, rng: CounterRng, examples: range, lr: float, threads: int) -> Sums:
        from keel.kernels.fasttext_classifier_updates import update_classifier

        if self._arrays is None or self._arrays[0] is not data:
            self._arrays = (data, self._as_arrays(data))
        texts, encoder = self._arrays[1], self.task.encoder
        index = self._index(data, rng, examples)
        states = self._states(rng, examples) if self.negatives else np.zeros(len(index), np.uint64)
        tables = [encoder.words.weight, encoder.grams.weight, self.task.classifier.weight]
        inputs, grams, outputs = (table.detach().numpy() for table in tables)
        tree = self.tree or NO_TREE

        def learn(part: int) -> tuple[float, int, int]:
            mine = np.ascontiguousarray(index[part::threads]), np.ascontiguousarray(states[part::threads])
            settings = self.negatives, self.loss == "softmax", np.float32(lr)
            return update_classifier(*mine, texts, inputs, grams, outputs, tree, self.drawing, *settings)

        loss, learned, read = sum_over_threads(learn, range(threads))
        return {"loss": loss}, {"loss": learned, "words": read}

    def _index(self, data: Any, rng: CounterRng, examples: range) -> np.ndarray:
        """The texts of a part of a step."""
        if self._order is None or self._order.size != len(data):
            self._order = EpochOrder(len(data), lambda seed, epoch: epoch_rng(seed, epoch).permutation(len(data)))
        return self._order.step_indices(rng, examples)

    def _as_arrays(self, data: Any) -> "_BagArrays":
        units, targets = data.subword_units, data.targets[torch.from_numpy(data.example_indices)]
        one = isinstance(self.task.labels.kind, SingleLabel)
        return _BagArrays(
            bag_starts=data.starts,
            ids=data.ids,
            words=units.word_ids.numpy(),
            parts=units.unit_ids.int().numpy(),
            starts=np.append(units.unit_starts.numpy(), len(units.unit_ids)),
            classes=targets.numpy() if one else np.zeros(len(data), np.int64),
            targets=np.zeros((0, 0), np.float32) if one else targets.float().view(len(data), -1).numpy(),
        )

    def _states(self, rng: CounterRng, examples: range) -> np.ndarray:
        return rng.random_bits("row", torch.arange(examples.start, examples.stop))[:, 0].numpy().astype(np.uint64)
