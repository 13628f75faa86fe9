"""The classifier of fastText (Joulin, Grave, Bojanowski & Mikolov, "Bag of Tricks for Efficient Text Classification",
2017).

New then: as good as networks of many times its cost. A text is the bag of its words and n-grams, the mean of their
vectors, under a linear layer. Pairs and triples of words, hashed as n-grams of letters are, bring some of their order
back; a tree over the labels, or a few drawn ones, spares a softmax over many.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.token_batch import SubwordUnits, TokenBatch
from keel.nn.huffman import HuffmanTree, huffman_tree
from keel.systems.word2vec import alias_table
from keel.training.counter_rng import CounterRng, derive_seed
from keel.training.objective import CustomUpdate, State, Tensors

LabelLoss = Literal["softmax", "hierarchical", "negative", "one-vs-all"]
"""How the labels of a text are told from the others."""
END_OF_LINE, LABEL_PREFIX = "</s>", "__label__"
"""fastText's word for the end of a line, and what it knows labels by."""


def build_bags(
    places: np.ndarray,
    starts: np.ndarray,
    end: int,
    spelling: SubwordUnits,
    words: Sequence[str],
    longest: int,
    buckets: int,
) -> tuple[np.ndarray, np.ndarray, SubwordUnits]:
    """Rows of words, with the mark of the end and stretches of two to `longest` words, in a spelling with these."""
    from keel.kernels.fasttext_classifier_updates import add_word_ngrams, word_hashes

    written = [word.encode("utf-8", "surrogatepass") for word in words]
    ends = np.cumsum(np.fromiter(map(len, written), np.int64, len(written)))
    hashes = word_hashes(np.frombuffer(b"".join(written), np.uint8), ends)
    present = np.diff(ends, prepend=0) > 0
    rows, starts, found = add_word_ngrams(places, starts, end, hashes, present, longest, buckets)
    more = torch.from_numpy(found)
    joined = SubwordUnits(
        word_ids=torch.cat([spelling.word_ids, spelling.word_ids.new_full((len(more),), -1)]),
        unit_ids=torch.cat([spelling.unit_ids, more]),
        unit_starts=torch.cat([spelling.unit_starts, len(spelling.unit_ids) + torch.arange(len(more))]),
    )
    return rows, starts, joined


@lru_cache(maxsize=8)
def label_tree(counts: tuple[int, ...]) -> HuffmanTree:
    """The tree of the hierarchical softmax over labels that came so often, as fastText builds it."""
    tree = huffman_tree(np.array(counts, np.int64))
    return tree._replace(signs=-tree.signs)  # the lighter of two branches is the "no"


def label_log_probs(scores: Tensor, tree: HuffmanTree) -> Tensor:
    """[..., labels] log chances by the [..., nodes] scores of a tree's nodes: a label's is the product on its walk."""
    signs = torch.from_numpy(tree.signs).to(scores)
    steps = scores[..., torch.from_numpy(tree.nodes).long().to(scores.device)] * signs  # [..., labels, depth]
    return (F.logsigmoid(steps) * signs.abs()).sum(-1)


@dataclass(frozen=True, kw_only=True)
class BagBatch(Tensors):
    """Texts with what they are, for those who want to see the loss."""

    rows: TokenBatch
    targets: Tensor  # [batch] classes, or [batch, labels] ones and zeros
    negatives: Tensor  # [batch, negatives] classes that the true one is told from


class _AliasTable(NamedTuple):
    """How other classes are drawn: Walker's alias method, in 2^32."""

    probabilities: np.ndarray
    aliases: np.ndarray


class _BagArrays(NamedTuple):
    """Texts and what they are, as the kernel reads them."""

    firsts: np.ndarray  # [texts + 1] where each text's words start
    ids: np.ndarray  # [words] places in the spelling
    words: np.ndarray  # [spelling] the row of each word's own vector, or -1
    parts: np.ndarray  # the rows of n-grams
    starts: np.ndarray  # [spelling + 1] where each word's parts start
    classes: np.ndarray  # [texts] the label of each, if it is one
    targets: np.ndarray  # [texts, labels] ones and zeros, if they are several


class BagTraining(CustomUpdate):
    """The loss of a linear layer W on a bag's mean h, one text at a time: -log softmax(W h) at the true label; or
    -log sigmoid(+-w h), summed over the nodes on the label's walk through a tree, over the label and some drawn ones,
    or over all labels, each for itself."""

    def __init__(self, task: Any, loss: LabelLoss, negatives: int, counts: Sequence[int]):
        super().__init__()
        self.task = task
        self.loss, self.negatives = loss, negatives if loss == "negative" else 0
        if task.labels.kind != "one":
            self.loss, self.negatives = "one-vs-all", 0
        self.tree = label_tree(tuple(counts)) if self.loss == "hierarchical" else None
        self.drawing = _AliasTable(np.zeros(0, np.uint64), np.zeros(0, np.int64))
        if self.negatives:
            chances, others = alias_table(np.maximum(np.asarray(counts, np.float64), 1) ** 0.5)
            self.drawing = _AliasTable((chances * 2**32).astype(np.uint64), others)
        nn.init.zeros_(task.classifier.weight)
        self._arrays: tuple[Any, _BagArrays] | None = None
        self._order: tuple[int, int, np.ndarray] = (0, -1, np.zeros(0, np.int64))

    def epoch_size(self, data: Any) -> int:
        return len(data)

    def batch(self, data: Any, rng: CounterRng, examples: range) -> BagBatch:
        """These texts, and the very draws that `update` learns from."""
        from keel.kernels.fasttext_classifier_updates import sample_labels

        index = self._index(data, rng, examples)
        drawn = np.zeros((len(index), 1 + self.negatives), np.int64)
        if self.negatives:
            for row, text, state in zip(drawn, index, self._states(rng, examples), strict=True):
                sample_labels(int(data.targets[data.example_indices[text]]), *self.drawing, state, row)
        return BagBatch(
            rows=data.padded_batch(index),
            targets=data.targets[data.example_indices[index]],
            negatives=torch.from_numpy(drawn[:, 1:].copy()),
        )

    def counts(self, batch: BagBatch) -> dict[str, Tensor]:
        return {"loss": torch.tensor(float(len(batch.targets)))}

    def forward(self, batch: BagBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        scores = F.linear(self.task.encoder.pooled_features(batch.rows), self.task.classifier.weight)
        if self.task.labels.kind == "several":
            return {"loss": F.binary_cross_entropy_with_logits(scores, batch.targets.to(scores), reduction="sum")}, None
        if self.tree:
            return {"loss": F.nll_loss(label_log_probs(scores, self.tree), batch.targets, reduction="sum")}, None
        if self.negatives:
            true, drawn = scores.gather(1, batch.targets[:, None]), scores.gather(1, batch.negatives)
            return {"loss": -F.logsigmoid(true).sum() - F.logsigmoid(-drawn).sum()}, None
        if self.loss == "one-vs-all":
            wanted = F.one_hot(batch.targets, scores.shape[1]).to(scores)
            return {"loss": F.binary_cross_entropy_with_logits(scores, wanted, reduction="sum")}, None
        return {"loss": F.cross_entropy(scores, batch.targets, reduction="sum")}, None

    def update(
        self, data: Any, rng: CounterRng, examples: range, lr: float, threads: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        from keel.kernels import fasttext_classifier_updates

        if self._arrays is None or self._arrays[0] is not data:
            self._arrays = (data, self._as_arrays(data))
        texts, encoder = self._arrays[1], self.task.encoder
        index = self._index(data, rng, examples)
        states = self._states(rng, examples) if self.negatives else np.zeros(len(index), np.uint64)
        tables = [encoder.words.weight, encoder.grams.weight, self.task.classifier.weight]
        inputs, grams, outputs = (table.detach().numpy() for table in tables)
        tree = self.tree or HuffmanTree(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32), np.zeros(0, np.int32))

        def learn(part: int) -> tuple[float, int, int]:
            mine = np.ascontiguousarray(index[part::threads]), np.ascontiguousarray(states[part::threads])
            return fasttext_classifier_updates.update_classifier(
                *mine,
                *texts,
                inputs,
                grams,
                outputs,
                *tree,
                *self.drawing,
                self.negatives,
                self.loss == "softmax",
                np.float32(lr),
            )

        if threads == 1:
            results = [learn(0)]
        else:
            with ThreadPoolExecutor(threads) as pool:
                results = list(pool.map(learn, range(threads)))
        loss, learned, read = (sum(column) for column in zip(*results, strict=True))
        return {"loss": loss}, {"loss": learned, "words": read}

    def _index(self, data: Any, rng: CounterRng, examples: range) -> np.ndarray:
        """Which texts a step draws: all of them once an epoch, in an order of its own."""
        place = int(rng.first_example) + np.arange(examples.start, examples.stop)
        epochs, place = np.divmod(place, len(data))
        index = np.empty_like(place)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            if self._order[:2] != (rng.seed, epoch):
                random = np.random.default_rng(derive_seed(rng.seed, "epoch", epoch))
                self._order = (rng.seed, epoch, random.permutation(len(data)))
            index[epochs == epoch] = self._order[2][place[epochs == epoch]]
        return index

    def _as_arrays(self, data: Any) -> "_BagArrays":
        spelling, targets = data.subword_units, data.targets[torch.from_numpy(data.example_indices)]
        one = self.task.labels.kind == "one"
        return _BagArrays(
            firsts=data.starts,
            ids=data.ids,
            words=spelling.word_ids.numpy(),
            parts=spelling.unit_ids.int().numpy(),
            starts=np.append(spelling.unit_starts.numpy(), len(spelling.unit_ids)),
            classes=targets.numpy() if one else np.zeros(len(data), np.int64),
            targets=np.zeros((0, 0), np.float32) if one else targets.float().view(len(data), -1).numpy(),
        )

    def _states(self, rng: CounterRng, examples: range) -> np.ndarray:
        return rng.random_bits("row", torch.arange(examples.start, examples.stop))[:, 0].numpy().astype(np.uint64)
