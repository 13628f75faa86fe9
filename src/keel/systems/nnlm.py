"""The neural language model (Bengio et al., "A Neural Probabilistic Language Model", 2003).

New then: words have vectors, learned while a network foretells the next word from those before it. Its cost is the
softmax over all words. What others put in its place is here by choice: noise-contrastive estimation (Gutmann and
Hyvärinen 2010; Mnih and Teh 2012), negative sampling (Mikolov 2013), a tree of words (Morin and Bengio 2005).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.documents import Documents
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.nn.encoder import Recorder
from keel.nn.huffman import huffman_tree
from keel.systems.static_vectors import LastWords, StaticEncoder, StaticSystem
from keel.training.counter_rng import CounterRng
from keel.training.objective import Objective, State, Tensors
from keel.training.plan import Train

ROOM = 1 << 25
"""Scores that are held at once when all words are weighed up."""


@dataclass(frozen=True, kw_only=True)
class Nnlm(StaticSystem):
    """The hyper-parameters of the network; as they stand, a 5-gram model with the whole softmax."""

    order: int = 5
    """Words of an n-gram: the last one is foretold by those before it."""
    hidden: int = 100
    """Width of the hidden layer."""
    direct_connections: bool = False
    """Whether the words' vectors also reach the output past the hidden layer."""
    loss: Literal["softmax", "negative", "nce", "hierarchical"] = "softmax"
    """How a word is told from the others: from all, from drawn ones (two ways), or step by step down a tree."""
    negatives: int = 10
    """Drawn words that the true one is told from."""
    sampling_power: float = 0.75
    """They are drawn by their frequency to this power."""
    chunk_length: int = 32
    """Words in a row of training."""

    name: ClassVar[str] = "nnlm"
    pretraining_defaults: ClassVar[Train] = Train(epochs=5, batch=32, lr=1e-3, warmup=100, log_every=100)
    is_causal_lm: ClassVar[bool] = True
    tunable: ClassVar[tuple[str, ...]] = ("negatives", "chunk_length")
    default_vocab_size: ClassVar[int] = 30_000  # all of them are weighed up for every word foretold

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("order", 2), ("hidden", 1), ("negatives", 1), ("chunk_length", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be {least} or more, not {getattr(self, name)}")

    @property
    def context_description(self) -> str:
        return f"at most {self.order - 1} before it"

    def build_objective(self, encoder: StaticEncoder, tokenizer: Tokenizer) -> "NnlmTraining":
        return NnlmTraining(self, encoder, tokenizer)


@dataclass(frozen=True, kw_only=True)
class NgramBatch(Tensors):
    """Words to foretell, and what to foretell them from."""

    context: Tensor  # [rows, length, order - 1]
    words: Tensor  # [rows, length]
    present: Tensor  # [rows, length] 1 where there is one
    negatives: Tensor  # [rows, length, negatives], or none


class NnlmTraining(Objective):
    """scores = b + U tanh(d + H x) (+ W x, `direct`), where x are the vectors of the words before, side by side.

    In evaluation the loss is always "softmax": -log p(word) by the whole distribution, whose exponential is the
    perplexity.
    """

    def __init__(self, system: Nnlm, encoder: StaticEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder = system, encoder
        self.bos_id = tokenizer.cls_id
        """Stands before the first word of a document."""
        self.eos_id = self.max_context = None
        self.specials = tokenizer.special_ids
        inputs = (system.order - 1) * system.width
        self.project = nn.Linear(inputs, system.hidden)
        self.output = nn.Linear(system.hidden + inputs * system.direct_connections, encoder.vocab_size)
        """A row for each word, or for each inner node of the tree."""
        nn.init.uniform_(encoder.words.weight, -0.1, 0.1)
        nn.init.normal_(self.output.weight, std=0.01)
        nn.init.zeros_(self.output.bias)
        self.counts_of_words: Tensor
        self.register_buffer("counts_of_words", torch.zeros(encoder.vocab_size))
        self._derived: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def setup(self, data: Documents) -> None:
        """Count the words: the noise and the tree stand on their frequency. A trained model keeps its own."""
        if self.counts_of_words.any():
            return
        from keel.kernels.word_counts import count_words

        ids, bounds = data.ids.numpy(), data.starts.numpy()
        begins, ends = bounds[data.spans.numpy().T]
        counts = count_words(ids.view(f"u{ids.itemsize}"), begins, ends, self.encoder.vocab_size)
        if np.delete(counts, self.specials).astype(bool).sum() < 2:
            remedy = "give it more text, or lower --min-count"
            raise KeelError(f"the corpus holds fewer than two words that come up often enough: {remedy}")
        self.counts_of_words.copy_(torch.from_numpy(counts))
        self._derived.clear()
        if self.system.loss == "hierarchical":
            return
        share = (self.counts_of_words + 1) / (self.counts_of_words + 1).sum()
        with torch.no_grad():  # without any context a word is as likely as it is frequent
            self.output.bias.copy_(share.log())
            if self.system.loss == "negative":
                self.output.bias.sub_(self._expected(share.device))

    def epoch_size(self, data: Documents) -> int:
        return math.ceil(data.size / self.system.chunk_length)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> NgramBatch:
        numbers = torch.arange(examples.start, examples.stop, device=data.ids.device)
        index, _ = rng.epoch_order(numbers, self.epoch_size(data))
        order, length = self.system.order, self.system.chunk_length
        token = index[:, None] * length + torch.arange(1 - order, length, device=numbers.device)
        place, document = data.locate_token(token.clamp(0, data.size - 1))
        ids = data.read(place).unfold(1, order, 1)  # [rows, length, order]
        same = document.unfold(1, order, 1)
        before = (same[..., :-1] == same[..., -1:]) & (token.unfold(1, order, 1)[..., :-1] >= 0)
        drawn = ids.new_zeros(*ids.shape[:2], 0)
        if self.system.loss in ("negative", "nce"):
            bits = rng.random_bits("noise", numbers, length * self.system.negatives) >> 10  # 53 of them
            drawn = torch.searchsorted(self._noise(numbers.device)[0], bits, right=True).view(*ids.shape[:2], -1)
        return NgramBatch(
            context=torch.where(before, ids[..., :-1], self.bos_id),
            words=ids[..., -1],
            present=(token[:, order - 1 :] < data.size).float(),
            negatives=drawn,
        )

    def counts(self, batch: NgramBatch) -> dict[str, Tensor]:
        words = batch.present.sum()
        return {self.system.loss: words, "softmax": words, "words": words}

    def forward(self, batch: NgramBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        features = self.features(batch.context)
        if not self.training or self.system.loss in ("softmax", "hierarchical"):
            losses = -self.log_probs(features, batch.words)
        else:
            losses = self._contrasts(features, batch.words, batch.negatives)
        name = self.system.loss if self.training else "softmax"
        return {name: (losses * batch.present).sum()}, None

    def features(self, context: Tensor) -> Tensor:
        """[..., features]: the hidden layer, and the words' own vectors if these are `direct`."""
        x = self.encoder.words(context).flatten(-2)
        hidden = torch.tanh(self.project(x))
        return torch.cat([hidden, x], -1) if self.system.direct_connections else hidden

    def new_state(self, batch_size: int) -> LastWords:
        shape = batch_size, self.system.order - 1
        return LastWords(ids=torch.full(shape, self.bos_id, device=self.output.weight.device))

    def step(
        self, ids: Tensor, state: LastWords | None = None, record: Recorder | None = None
    ) -> tuple[Tensor, LastWords]:
        """[rows, vocabulary] scores of what comes after these further ids [rows, time], and the last words read."""
        before = (state or self.new_state(len(ids))).ids
        context = torch.cat([before, ids.to(before.device)], 1)[:, 1 - self.system.order :]
        scores = self.output(self.features(context))
        if self.system.loss == "hierarchical":
            nodes, signs = self._tree(scores.device)
            scores = (F.logsigmoid(scores[:, nodes] * signs) * signs.abs()).sum(-1)
        elif self.system.loss == "negative":
            scores = scores + self._expected(scores.device)
        return scores, LastWords(ids=context)

    def logits_at(self, ids: Tensor, places: Tensor) -> Tensor:
        """[places, vocabulary] scores of what follows these places of whole rows [rows, time]."""
        return self.step(LastWords.context_at(ids, places, self.bos_id, self.system.order - 1))[0]

    def log_probs(self, features: Tensor, words: Tensor) -> Tensor:
        """[...]: log p(word), among all words, of each word after its context."""
        if self.system.loss == "hierarchical":
            nodes, signs = (table[words] for table in self._tree(words.device))  # [..., depth]
            return (F.logsigmoid(self._scores(features, nodes) * signs) * signs.abs()).sum(-1)
        # At its best a score of negative sampling is log(p / (k q)): k q has to be put in again.
        shift = self._expected(words.device) if self.system.loss == "negative" else 0.0
        flat, targets = features.flatten(0, -2), words.flatten()
        pieces = max(1, ROOM // self.encoder.vocab_size)
        found = [
            -F.cross_entropy((self.output(part) + shift).float(), target, reduction="none")
            for part, target in zip(flat.split(pieces), targets.split(pieces), strict=True)
        ]
        return torch.cat(found).view(words.shape)

    def _contrasts(self, features: Tensor, words: Tensor, drawn: Tensor) -> Tensor:
        """[...]: -log sigmoid(t(word)) - sum over k drawn words w of log sigmoid(-t(w)).

        t is the score s itself (negative sampling), or for noise-contrastive estimation s - log(k q(w)), by which
        exp(s) learns to be the probability of the word: no sum over all words is needed to make it one.
        """
        targets = torch.cat([words[..., None], drawn], -1)
        scores = self._scores(features, targets)
        if self.system.loss == "nce":
            scores = scores - self._expected(words.device)[targets]
        return -F.logsigmoid(scores[..., 0]) - F.logsigmoid(-scores[..., 1:]).sum(-1)

    def _scores(self, features: Tensor, rows: Tensor) -> Tensor:
        """[..., k]: the scores of these rows of the output layer alone."""
        weights = F.embedding(rows, self.output.weight)  # [..., k, features]
        return (weights @ features[..., None])[..., 0] + self.output.bias[rows]

    def _expected(self, device: torch.device) -> Tensor:
        """[vocabulary]: log(k q(w)), how often a word is to be expected among k drawn ones."""
        return self._noise(device)[1] + math.log(self.system.negatives)

    def _noise(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """[vocabulary]: where each word's share of 2^53 ends, and log q(w) of each."""
        if device not in self._derived:
            counts = self.counts_of_words.double().cpu()
            weights = counts**self.system.sampling_power
            limits = (weights.cumsum(0) / weights.sum() * 2**53).long()
            limits[-1] = 2**53
            # A word that never came up is never drawn, but may be met all the same.
            logs = (self.system.sampling_power * counts.clamp(min=0.01).log() - weights.sum().log()).float()
            self._derived[device] = limits.to(device), logs.to(device)
        return self._derived[device]

    def _tree(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """[vocabulary, depth]: the nodes on the way to each word, and the signs of the turns."""
        if device not in self._derived:
            tree = huffman_tree(self.counts_of_words.cpu().numpy())
            self._derived[device] = (
                torch.from_numpy(tree.nodes).long().to(device),
                torch.from_numpy(tree.signs).to(device),
            )
        return self._derived[device]
