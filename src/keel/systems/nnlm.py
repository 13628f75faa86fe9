"""NNLM (Bengio et al., "A Neural Probabilistic Language Model", 2003).

New then: word vectors, learned by a feed-forward network that predicts the next word from the words before it. Options
replace its costly softmax: noise-contrastive estimation (Gutmann and Hyvärinen 2010; Mnih and Teh 2012), negative
sampling (Mikolov 2013), hierarchical softmax (Morin and Bengio 2005).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Count, Ge
from keel.data.documents import Documents
from keel.data.tokenizer import Tokenizer
from keel.nn.encoder import Recorder
from keel.nn.huffman import huffman_tree
from keel.systems.static_vectors import LastWords, StaticEncoder, StaticSystem, check_distinct_words
from keel.training.counter_rng import CounterRng
from keel.training.objective import Objective, State, Tensors
from keel.training.plan import Train

MAX_LOGITS = 1 << 25
"""Logits of the full softmax that are held in memory at once."""


@dataclass(frozen=True, kw_only=True)
class Nnlm(StaticSystem):
    """Hyper-parameters of the NNLM; by default a 5-gram model with a full softmax."""

    order: Annotated[int, Ge(2)] = 5
    """N-gram order: the last word is predicted from the order - 1 words before it."""
    hidden: Count = 100
    """Size of the hidden layer."""
    direct_connections: bool = False
    """Direct connections from the word vectors to the output layer."""
    loss: Literal["softmax", "negative", "nce", "hierarchical"] = "softmax"
    """Training loss: full softmax, negative sampling, noise-contrastive estimation, or hierarchical softmax."""
    negatives: Count = 10
    """Negative samples per word, for negative sampling and NCE."""
    sampling_power: float = 0.75
    """Exponent of word frequencies in the noise distribution."""
    chunk_length: Count = 32
    """Tokens per training example."""

    name = "nnlm"
    year = 2003
    pretraining_defaults = Train(epochs=5, batch=32, lr=1e-3, warmup=100, log_every=100)
    tunable = ("negatives", "chunk_length")
    default_vocab_size = 30_000  # the softmax is over all of them

    @property
    def context_description(self) -> str:
        return f"at most {self.order - 1} before it"

    def build_objective(self, encoder: StaticEncoder, tokenizer: Tokenizer) -> "NnlmTraining":
        return NnlmTraining(self, encoder, tokenizer)


@dataclass(frozen=True, kw_only=True)
class NgramBatch(Tensors):
    """N-grams: words to predict, their contexts and negative samples."""

    context: Tensor  # [batch, time, order - 1]
    words: Tensor  # [batch, time]
    present: Tensor  # [batch, time] 0 for padding
    negatives: Tensor  # [batch, time, negatives], or empty


class NnlmTraining(Objective):
    """y = b + W x + U tanh(d + H x), where x are the concatenated vectors of the context (W x: direct connections).

    In evaluation the loss is always "softmax": -log p(word) by the full distribution, for perplexity.
    """

    def __init__(self, system: Nnlm, encoder: StaticEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder = system, encoder
        self.bos_id = tokenizer.cls_id
        """Stands before the first word of a document."""
        self.eos_id = self.max_context = None
        self.special_ids = tokenizer.special_ids
        inputs = (system.order - 1) * system.width
        self.project = nn.Linear(inputs, system.hidden)
        self.output = nn.Linear(system.hidden + inputs * system.direct_connections, encoder.vocab_size)
        """Output vectors of the words, or of the inner nodes of the Huffman tree."""
        nn.init.uniform_(encoder.words.weight, -0.1, 0.1)
        nn.init.normal_(self.output.weight, std=0.01)
        nn.init.zeros_(self.output.bias)
        self.counts_of_words = nn.Buffer(torch.zeros(encoder.vocab_size))
        self._derived: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def setup(self, data: Documents) -> None:
        """Count words for the noise distribution and the Huffman tree; a trained model keeps its counts."""
        if self.counts_of_words.any():
            return
        from keel.kernels.word_counts import count_words

        counts = count_words(*data.document_arrays(), self.encoder.vocab_size)
        check_distinct_words(np.delete(counts, self.special_ids))
        self.counts_of_words.copy_(torch.from_numpy(counts))
        self._derived.clear()
        if self.system.loss == "hierarchical":
            return
        unigram = (self.counts_of_words + 1) / (self.counts_of_words + 1).sum()
        with torch.no_grad():  # start from the unigram distribution
            self.output.bias.copy_(unigram.log())
            if self.system.loss == "negative":
                self.output.bias.sub_(self._log_expected(unigram.device))

    def epoch_size(self, data: Documents) -> int:
        return math.ceil(data.size / self.system.chunk_length)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> NgramBatch:
        indices = torch.arange(examples.start, examples.stop, device=data.ids.device)
        index, _ = rng.epoch_order(indices, self.epoch_size(data))
        order, length = self.system.order, self.system.chunk_length
        token = index[:, None] * length + torch.arange(1 - order, length, device=indices.device)
        position, document = data.locate_token(token.clamp(0, data.size - 1))
        ids = data.read(position).unfold(1, order, 1)  # [batch, time, order]
        same = document.unfold(1, order, 1)
        before = (same[..., :-1] == same[..., -1:]) & (token.unfold(1, order, 1)[..., :-1] >= 0)
        negatives = ids.new_zeros(*ids.shape[:2], 0)
        if self.system.loss in ("negative", "nce"):
            bits = rng.random_bits("noise", indices, length * self.system.negatives) >> 10  # 53 of them
            negatives = torch.searchsorted(self._noise(indices.device)[0], bits, right=True).view(*ids.shape[:2], -1)
        return NgramBatch(
            context=torch.where(before, ids[..., :-1], self.bos_id),
            words=ids[..., -1],
            present=(token[:, order - 1 :] < data.size).float(),
            negatives=negatives,
        )

    def counts(self, batch: NgramBatch) -> dict[str, Tensor]:
        words = batch.present.sum()
        return {self.system.loss: words, "softmax": words, "words": words}

    def forward(self, batch: NgramBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        features = self.features(batch.context)
        if not self.training or self.system.loss in ("softmax", "hierarchical"):
            losses = -self.log_probs(features, batch.words)
        else:
            losses = self._sampled_loss(features, batch.words, batch.negatives)
        name = self.system.loss if self.training else "softmax"
        return {name: (losses * batch.present).sum()}, None

    def features(self, context: Tensor) -> Tensor:
        """[..., features] of contexts [..., order - 1]: the hidden layer, and x with direct connections."""
        x = self.encoder.words(context).flatten(-2)
        hidden = torch.tanh(self.project(x))
        return torch.cat([hidden, x], -1) if self.system.direct_connections else hidden

    def new_state(self, batch_size: int) -> LastWords:
        shape = batch_size, self.system.order - 1
        return LastWords(ids=torch.full(shape, self.bos_id, device=self.output.weight.device))

    def step(
        self, ids: Tensor, state: LastWords | None = None, record: Recorder | None = None
    ) -> tuple[Tensor, LastWords]:
        """[batch, vocab] logits of the next word after these further ids [batch, time], and the new state."""
        before = (state or self.new_state(len(ids))).ids
        context = torch.cat([before, ids.to(before.device)], 1)[:, 1 - self.system.order :]
        scores = self.output(self.features(context))
        if self.system.loss == "hierarchical":
            nodes, signs = self._tree(scores.device)
            scores = (F.logsigmoid(scores[:, nodes] * signs) * signs.abs()).sum(-1)
        elif self.system.loss == "negative":
            scores = scores + self._log_expected(scores.device)
        return scores, LastWords(ids=context)

    def logits_at(self, ids: Tensor, positions: Tensor) -> Tensor:
        """[positions, vocab] logits of the next word after these positions of whole sequences [batch, time]."""
        return self.step(LastWords.context_at(ids, positions, self.bos_id, self.system.order - 1))[0]

    def log_probs(self, features: Tensor, words: Tensor) -> Tensor:
        """[...] log p(word | context) by the full distribution."""
        if self.system.loss == "hierarchical":
            nodes, signs = (table[words] for table in self._tree(words.device))  # [..., depth]
            return (F.logsigmoid(self._scores(features, nodes) * signs) * signs.abs()).sum(-1)
        # The optimum of negative sampling is log(p / (k q)), so log(k q) is added.
        shift = self._log_expected(words.device) if self.system.loss == "negative" else 0.0
        flat, targets = features.flatten(0, -2), words.flatten()
        chunk = max(1, MAX_LOGITS // self.encoder.vocab_size)
        found = [
            -F.cross_entropy((self.output(part) + shift).float(), target, reduction="none")
            for part, target in zip(flat.split(chunk), targets.split(chunk), strict=True)
        ]
        return torch.cat(found).view(words.shape)

    def _sampled_loss(self, features: Tensor, words: Tensor, negatives: Tensor) -> Tensor:
        """[...] -log sigmoid(t(word)) - sum over k negative samples w of log sigmoid(-t(w)).

        t is the logit s (negative sampling), or s - log(k q(w)) (NCE), which makes exp(s) a normalized probability.
        """
        targets = torch.cat([words[..., None], negatives], -1)
        scores = self._scores(features, targets)
        if self.system.loss == "nce":
            scores = scores - self._log_expected(words.device)[targets]
        return -F.logsigmoid(scores[..., 0]) - F.logsigmoid(-scores[..., 1:]).sum(-1)

    def _scores(self, features: Tensor, indices: Tensor) -> Tensor:
        """[..., k] logits of these rows of the output layer only."""
        weights = F.embedding(indices, self.output.weight)  # [..., k, features]
        return (weights @ features[..., None])[..., 0] + self.output.bias[indices]

    def _log_expected(self, device: torch.device) -> Tensor:
        """[vocab] log(k q(w)), the log of the expected number of w among k samples."""
        return self._noise(device)[1] + math.log(self.system.negatives)

    def _noise(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """[vocab] the cumulative noise distribution in 2^53, and log q(w)."""
        if device not in self._derived:
            counts = self.counts_of_words.double().cpu()
            weights = counts**self.system.sampling_power
            limits = (weights.cumsum(0) / weights.sum() * 2**53).long()
            limits[-1] = 2**53
            # A word with count 0 is never sampled, but may occur as a target.
            logs = (self.system.sampling_power * counts.clamp(min=0.01).log() - weights.sum().log()).float()
            self._derived[device] = limits.to(device), logs.to(device)
        return self._derived[device]

    def _tree(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """[vocab, depth] the nodes of the Huffman path of each word, and the directions as signs."""
        if device not in self._derived:
            tree = huffman_tree(self.counts_of_words.cpu().numpy())
            nodes, signs = torch.from_numpy(tree.nodes).long(), torch.from_numpy(tree.signs)
            self._derived[device] = nodes.to(device), signs.to(device)
        return self._derived[device]
