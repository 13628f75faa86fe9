"""fastText's classifier (Joulin, Grave, Bojanowski & Mikolov, "Bag of Tricks for Efficient Text Classification", 2017).

New then: as accurate as networks of many times its cost. A linear classifier on the mean of the vectors of words and
n-grams; hashed word n-grams keep some word order; hierarchical softmax or negative sampling for many labels.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
from keel.nn.linear_training import text_groups
from keel.systems.static_vectors import sum_over_threads
from keel.systems.word2vec import NO_TREE, alias_table
from keel.training.counter_rng import CounterRng, derive_seed
from keel.training.objective import CrossValidation, CustomUpdate, State, Sums, Tensors

LabelLoss = Literal["softmax", "hierarchical", "negative", "one-vs-all"]
"""Loss of the classifier."""
END_OF_LINE, LABEL_PREFIX = "</s>", "__label__"
"""fastText's end-of-line token, and its prefix of labels."""
CANDIDATE_LRS, CANDIDATE_EPOCHS = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0), 20
"""Learning rates that are compared by cross-validation, and for how many epochs; with more epochs they are divided. A
low one stops early: on texts that say little about their labels it yields the most frequent label."""
AUTOTUNE_FOLDS, AUTOTUNE_BELOW = 3, 20_000
"""Folds of the cross-validation, and the number of different texts from which there is none: more overfit less."""
NGRAM_RATE = 0.5
"""Learning rate of n-grams as a share of that of equally rare words: their words are in the text already."""


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


class _Tables(NamedTuple):
    """The weights of a classifier as the kernel updates them."""

    inputs: np.ndarray  # [words, width]
    grams: np.ndarray  # [buckets, width]
    outputs: np.ndarray  # [labels or nodes, width]


class _Rates(NamedTuple):
    """Factors of the learning rate of each row of inputs and of grams; empty: 1."""

    inputs: np.ndarray
    grams: np.ndarray


SAME_RATES = _Rates(np.zeros(0, np.float32), np.zeros(0, np.float32))


class BagTraining(CustomUpdate):
    """SGD on one text at a time for logits W h of its mean vector h: softmax cross-entropy, or the sum of
    -log sigmoid(+-w . h) over the nodes of the label's Huffman path (hierarchical), over the label and its negative
    samples (negative), or over all labels (one-vs-all).

    With `autotune` learning rates are cross-validated, and that of a word or n-gram is multiplied by its
    squared inverse document frequency, (log(N / (1 + n)) + 1)^2 for n of N texts, scaled to a mean idf of 1: the
    updates of SGD on features with weights idf, as in TF-IDF.
    """

    def __init__(self, task: Any, loss: LabelLoss, negatives: int, *, autotune: bool = False):
        super().__init__()
        self.task, self.autotune = task, autotune
        self.rates = SAME_RATES
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
        self.rates = SAME_RATES
        if self._autotunes(data):
            tables, texts = self._tables(), self._as_arrays(data)
            self.rates = _idf_rates(*_document_frequencies(np.arange(len(data)), texts, tables), len(data))

    def cross_validate(self, data: Any, *, epochs: float, batch: int, seed: int) -> CrossValidation | None:
        """Train on all folds but one, for each fold and learning rate; the same with any number of threads."""
        if not self._autotunes(data):
            return None
        groups = text_groups(data.examples, data.example_indices)
        rng = np.random.default_rng(derive_seed(seed, "autotune"))
        folds = rng.permutation(groups.max() + 1)[groups] % AUTOTUNE_FOLDS
        texts, start = self._as_arrays(data), self._tables()

        def measure(setting: tuple[int, float]) -> Tensor:
            """[2, texts] errors and losses on one fold after training on the others; 0 for other texts."""
            (held_out,), (used,) = np.nonzero(folds == setting[0]), np.nonzero(folds != setting[0])
            frequencies = _document_frequencies(used, texts, start)
            tables = _Tables(start.inputs.copy(), start.grams.copy(), np.zeros_like(start.outputs))
            rates, rng = _idf_rates(*frequencies, len(used)), np.random.default_rng(derive_seed(seed, "order"))
            total = max(1, round(epochs * len(used)))
            order = np.concatenate([rng.permutation(used) for _ in range(math.ceil(epochs))])[:total]
            states = rng.integers(0, 2**63, total).astype(np.uint64)
            for first in range(0, total, batch):
                part, lr = slice(first, first + batch), setting[1] * (1 - first / total)
                self._learn(order[part], states[part], texts, tables, rates, lr)
            for table, found in zip(tables[:2], frequencies, strict=True):
                table[found == 0] = 0  # unknown at prediction time
            measured = torch.zeros(2, len(folds), dtype=torch.float64)
            measured[:, held_out] = self._measure(held_out, texts, tables).double()
            return measured

        present = sorted({*folds.tolist()})
        scale = min(1.0, CANDIDATE_EPOCHS / max(1e-12, epochs))
        lrs = tuple(float(f"{lr * scale:.2g}") for lr in CANDIDATE_LRS)
        settings = [(fold, lr) for lr in lrs for fold in present]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            found = torch.stack([*pool.map(measure, settings)]).view(len(lrs), len(present), 2, -1).sum(1)
        errors, losses = found.unbind(1)  # [learning rates, texts]
        return CrossValidation(lrs, errors, losses.sum(1), torch.from_numpy(folds))

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
        texts, tables = self._as_arrays(data), self._tables()
        index = self._index(data, rng, examples)
        states = self._states(rng, examples) if self.negatives else np.zeros(len(index), np.uint64)

        def learn(part: int) -> tuple[float, int, int]:
            mine = np.ascontiguousarray(index[part::threads]), np.ascontiguousarray(states[part::threads])
            return self._learn(*mine, texts, tables, self.rates, lr)

        loss, learned, read = sum_over_threads(learn, range(threads))
        return {"loss": loss}, {"loss": learned, "words": read}

    def _autotunes(self, data: Any) -> bool:
        return self.autotune and 2 <= len(set(data.examples.text_keys())) < AUTOTUNE_BELOW

    def _learn(
        self, index: np.ndarray, states: np.ndarray, texts: _BagArrays, tables: _Tables, rates: _Rates, lr: float
    ) -> tuple[float, int, int]:
        """Update the tables by these texts; the sum of losses, and the numbers of texts and of words."""
        from keel.kernels.fasttext_classifier_updates import update_classifier

        settings = self.negatives, self.loss == "softmax", np.float32(lr)
        return update_classifier(index, states, texts, *tables, rates, self.tree or NO_TREE, self.drawing, *settings)

    def _measure(self, index: np.ndarray, texts: _BagArrays, tables: _Tables) -> Tensor:
        """[2, texts] of these texts: 1 where the label is wrong, and -log p(label)."""
        from keel.kernels.fasttext_classifier_updates import mean_vectors

        means = np.empty((len(index), tables.inputs.shape[1]), np.float32)
        mean_vectors(index, texts, tables.inputs, tables.grams, means)
        scores, labels = torch.from_numpy(means @ tables.outputs.T), torch.from_numpy(texts.classes[index])
        logits = label_log_probs(scores, self.tree) if self.tree else scores
        return torch.stack([(logits.argmax(1) != labels).float(), F.cross_entropy(logits, labels, reduction="none")])

    def _tables(self) -> _Tables:
        encoder = self.task.encoder
        weights = encoder.words.weight, encoder.grams.weight, self.task.classifier.weight
        return _Tables(*(weight.detach().numpy() for weight in weights))

    def _index(self, data: Any, rng: CounterRng, examples: range) -> np.ndarray:
        """The texts of a part of a step."""
        if self._order is None or self._order.size != len(data):
            self._order = EpochOrder(len(data), lambda seed, epoch: epoch_rng(seed, epoch).permutation(len(data)))
        return self._order.step_indices(rng, examples)

    def _as_arrays(self, data: Any) -> "_BagArrays":
        if self._arrays is None or self._arrays[0] is not data:
            self._arrays = (data, self._build_arrays(data))
        return self._arrays[1]

    def _build_arrays(self, data: Any) -> "_BagArrays":
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


def _document_frequencies(index: np.ndarray, texts: _BagArrays, tables: _Tables) -> tuple[np.ndarray, np.ndarray]:
    """The number of these texts that contain each row of inputs, and of grams."""
    from keel.kernels.fasttext_classifier_updates import count_texts

    found = np.zeros(len(tables.inputs), np.int64), np.zeros(len(tables.grams), np.int64)
    count_texts(index, texts, *found)
    return found


def _idf_rates(inputs: np.ndarray, grams: np.ndarray, texts: int) -> _Rates:
    """Squared inverse document frequencies, relative to the mean over all rows of all texts; n-grams have less."""
    frequencies = np.concatenate([inputs, grams])
    idf = np.log(texts / (1 + frequencies)) + 1
    idf[len(inputs) :] *= NGRAM_RATE**0.5
    rates = np.square(idf * frequencies.sum() / max(1e-12, float((idf * frequencies).sum()))).astype(np.float32)
    return _Rates(rates[: len(inputs)].copy(), rates[len(inputs) :].copy())
