"""One-hot words and bags of them (tf-idf: Spärck Jones, "A statistical interpretation of term specificity", 1972).

Before vectors were learned a word was a 1 at its own place among N, a text the sum of its words, a rare word worth more
than a frequent one. No word is nearer to one than to another; for telling topics apart it is hard to beat.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.nn.encoder import Encoder, EncoderOutput
from keel.systems.finetuning_policy import FineTuningPolicy
from keel.systems.static_vectors import WordSystem
from keel.training.counter_rng import CounterRng
from keel.training.objective import CustomUpdate, State, Tensors
from keel.training.plan import Train

Weights = Literal["binary", "count", "tfidf"]
MOST = 1 << 28
"""Numbers in the one-hot vectors of a batch, if somebody asks for these."""


@dataclass(frozen=True, kw_only=True)
class Onehot(WordSystem):
    """What a word weighs in a text."""

    weighting: Weights = "tfidf"
    """one if it is there, count as often as it is there, or tfidf: the more, the fewer documents have it."""

    name: ClassVar[str] = "onehot"
    pretraining_defaults: ClassVar[Train] = Train(
        optimizer="own", epochs=1, batch=20_000, lr=1.0, warmup=0, evaluate_every=0, log_every=1, device="cpu"
    )
    tunable: ClassVar[tuple[str, ...]] = ("weighting",)
    count_based: ClassVar[bool] = True
    dropout: ClassVar[float] = 0.0
    """Of the head of a task: a word of a short text is too much to lose."""

    @property
    def max_length(self) -> int:
        """A text of any length is one row of counts."""
        return 1_000_000

    def finetuning_defaults(self, frozen: bool) -> Train:
        return Train(epochs=8, batch=64, lr=1e-2)

    @property
    def finetuning_policy(self) -> "OnehotFineTuning":
        return OnehotFineTuning(self)

    def build_encoder(self, vocab_size: int) -> "OnehotEncoder":
        return OnehotEncoder(vocab_size, self.weighting)

    def build_objective(self, encoder: "OnehotEncoder", tokenizer: Tokenizer) -> "OnehotCounting":
        return OnehotCounting(encoder, tokenizer)


class OnehotFineTuning(FineTuningPolicy):
    """Without text to count documents in, a word weighs as often as it comes."""

    def from_scratch_system(self) -> Onehot:
        return Onehot(weighting="count")


class OnehotEncoder(Encoder):
    """A word is a 1 at its place; a text is how often it has each word, by the words' weights.

    With tfidf a row has length one.
    """

    def __init__(self, vocab_size: int, weights: Weights):
        super().__init__()
        self.vocab_size = self.width = vocab_size
        self.weights = weights
        self.weight = nn.Parameter(torch.ones(vocab_size))
        """Of each word: what tuning may change."""

    @property
    def sparse(self) -> bool:
        return True

    def embed(self, batch: TokenBatch) -> Tensor:
        if batch.ids.numel() * self.width > MOST:
            what = f"one-hot vectors for {batch.ids.numel():,} words of {self.width:,} do not fit into memory"
            raise KeelError(f"{what}: ask for one vector a text, or give fewer words at once")
        return F.one_hot(batch.ids, self.width).to(self.weight.dtype)

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        return self._weigh((output.top * self._inside(batch)[..., None]).sum(1))

    def pooled_features(self, batch: TokenBatch) -> Tensor:
        """The same without [batch, time, vocabulary] in between."""
        counts = self.weight.new_zeros(len(batch.ids), self.width)
        return self._weigh(counts.scatter_add_(1, batch.ids, self._inside(batch)))

    def _inside(self, batch: TokenBatch) -> Tensor:
        place = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        return (place < batch.lengths[:, None]).to(self.weight.dtype)

    def _weigh(self, counts: Tensor) -> Tensor:
        """[batch, vocabulary] counts as features."""
        weighed = (counts.clamp(max=1) if self.weights == "binary" else counts) * self.weight
        return F.normalize(weighed) if self.weights == "tfidf" else weighed


@dataclass(frozen=True, kw_only=True)
class WordCounts(Tensors):
    """How often each word stands in some text."""

    words: Tensor  # [vocabulary]


class OnehotCounting(CustomUpdate):
    """Counts words and the documents n(w) that hold them: idf(w) = log((1 + n) / (1 + n(w))) + 1.

    The loss is that of guessing every word by its frequency alone (add-one smoothing), the unigram model.
    """

    nondeterministic: ClassVar[bool] = False

    def __init__(self, encoder: OnehotEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.encoder = encoder
        self.specials = tokenizer.special_ids
        self.words: Tensor
        self.holders: Tensor
        self.documents: Tensor
        self.register_buffer("words", torch.zeros(encoder.vocab_size))  # how often each comes up
        self.register_buffer("holders", torch.zeros(encoder.vocab_size))  # in how many documents
        self.register_buffer("documents", torch.zeros(1))
        with torch.no_grad():
            encoder.weight[self.specials] = 0.0  # an unknown word says nothing

    def epoch_size(self, data: Documents) -> int:
        return len(data.spans)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> WordCounts:
        return WordCounts(words=torch.from_numpy(self._count(data, examples)[0]))

    def counts(self, batch: WordCounts) -> dict[str, Tensor]:
        return {"unigram": batch.words.sum()}

    def forward(self, batch: WordCounts, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        smoothed = self.words.double() + 1
        return {"unigram": -(batch.words * (smoothed / smoothed.sum()).log()).sum()}, None

    def update(
        self, data: Documents, rng: CounterRng, examples: range, lr: float, threads: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        first = int(rng.first_example)
        counted = range(first, min(first + len(examples), len(data.spans)))  # a second time would tell nothing new
        words, holders = self._count(data, counted)
        self.words += torch.from_numpy(words)
        self.holders += torch.from_numpy(holders)
        self.documents += len(counted)
        with torch.no_grad():
            if self.encoder.weights == "tfidf":
                self.encoder.weight.copy_(((1 + self.documents) / (1 + self.holders)).log() + 1)
            self.encoder.weight[self.specials] = 0.0
        found = self(WordCounts(words=torch.from_numpy(words)))[0]["unigram"]
        return {"unigram": float(found)}, {"unigram": float(words.sum()), "words": float(words.sum())}

    def _count(self, data: Documents, documents: range) -> tuple[np.ndarray, np.ndarray]:
        """[vocabulary] how often each word stands in these documents, and in how many of them; marks left out."""
        from keel.kernels.word_counts import count_documents, count_words

        ids, bounds = data.ids.numpy(), data.starts.numpy()
        begins, ends = bounds[data.spans[documents.start : documents.stop].numpy().T]
        stretches = ids.view(f"u{ids.itemsize}"), begins, ends, self.encoder.vocab_size
        words, holders = count_words(*stretches), count_documents(*stretches)
        words[self.specials] = holders[self.specials] = 0
        return words, holders
