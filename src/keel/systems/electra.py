"""ELECTRA (Clark et al., 2020): BERT's encoder, pre-trained to tell original tokens from plausible replacements.

New then: a small generator, a masked language model, fills the masks with samples, and the encoder, the discriminator,
predicts for every token whether it was replaced (replaced token detection, RTD): it learns from all tokens, not from
15% of them.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Ge, Gt, Le
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.kernels.categorical import sample_categorical, sample_categorical_twin
from keel.nn.encoder import EncoderObjective
from keel.nn.multihead_attention import use_kernels
from keel.nn.transformer_blocks import ACTIVATIONS
from keel.systems.bert import Bert, BertBatch, BertEncoder, BertPretraining, Width, copy_positions, initialize
from keel.training.counter_rng import CounterRng
from keel.training.objective import Phase, State, Tensors
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class Electra(Bert):
    """The hyper-parameters of ELECTRA; the defaults are ELECTRA-Small."""

    width: Width = 256
    embedding_ratio: Annotated[float, Gt(0)] = 0.5
    """Width of the embeddings / width; if it is not 1, a linear layer projects them to the width."""
    generator_ratio: Annotated[float, Gt(0), Le(1)] = 0.25
    """Width of the generator / width, rounded to whole attention heads; it has as many layers."""
    embedding_sharing: Literal["disentangled", "tied"] = "disentangled"
    """How generator and discriminator share word embeddings. tied: one table for both, as published; disentangled:
    the discriminator adds a table of differences and does not change the generator's (DeBERTaV3)."""
    detection_weight: Annotated[float, Ge(0)] = 50.0
    """Weight of the replaced token detection loss; that of the generator is 1."""
    pair_objective: Literal["none", "segments"] = "segments"
    """segments: pairs of segments A and B, without a loss of their own; none: single segments."""
    variant: Literal["bert"] = "bert"
    generator_only: bool = False
    """Whether the network is a generator without a discriminator, a masked language model, as in published folders."""

    name = "electra"
    year = 2020
    folder_only = (*Bert.folder_only, "generator_only")
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "small": {"layers": 12, "width": 256, "embedding_ratio": 0.5, "generator_ratio": 0.25},
        "base": {"layers": 12, "width": 768, "embedding_ratio": 1.0, "generator_ratio": 1 / 3},
        "large": {"layers": 24, "width": 1024, "embedding_ratio": 1.0, "generator_ratio": 0.25},
    }
    pretraining_defaults = Train(steps=1_000_000, batch=128, lr=5e-4, warmup=0.01)
    tunable = (*Bert.tunable, "detection_weight")

    @property
    def embedding_width(self) -> int:
        return round(self.width * self.embedding_ratio)

    @property
    def generator(self) -> Self:
        """The generator's hyper-parameters."""
        width = max(1, round(self.width * self.generator_ratio / self.head_dim)) * self.head_dim
        return replace(self, width=width, embedding_ratio=self.embedding_width / width)

    def finetuning_defaults(self, frozen: bool) -> Train:
        """The paper's: 1e-4 at width 768, 3e-4 at 256, and a layer-wise decay of 0.8."""
        if frozen:
            return super().finetuning_defaults(frozen)
        return Train(epochs=3, batch=32, lr=1e-4 * max(1.0, 768 / self.width), layer_decay=0.8)

    def build_encoder(self, vocab_size: int) -> "ElectraEncoder":
        return ElectraEncoder(self, vocab_size)

    def build_objective(  # pyright: ignore[reportIncompatibleMethodOverride] - of two networks
        self, encoder: "ElectraEncoder", tokenizer: Tokenizer
    ) -> "ElectraPretraining | BertPretraining":
        return (BertPretraining if self.generator_only else ElectraPretraining)(self, encoder, tokenizer)


class ElectraEncoder(BertEncoder):
    """BERT's encoder; embeddings of another width are projected, and the pooled output is a GELU layer on [CLS]."""

    def __init__(self, system: Electra, vocab_size: int):
        super().__init__(system, vocab_size)
        projected = system.embedding_width != system.width
        self.project = nn.Linear(system.embedding_width, system.width) if projected else nn.Identity()
        initialize(self.project)

    def embed_words(self, words: Tensor, batch: TokenBatch) -> Tensor:
        return self.project(super().embed_words(words, batch))

    def pool_projection(self, features: Tensor) -> Tensor:
        return F.gelu(self.pooler(features))


@dataclass(frozen=True, kw_only=True)
class ElectraBatch(Tensors):
    """A batch of the generator, and a random number for each masked position, by which its replacement is sampled."""

    masked: BertBatch
    uniform: Tensor  # [batch, slots], from 0 to 1


class ElectraPretraining(EncoderObjective):
    """Masked language model of the generator ("mlm") and weighted replaced token detection ("rtd")."""

    encoder: ElectraEncoder
    derived = frozenset({"difference.weight"})

    def __init__(self, system: Electra, encoder: ElectraEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system = system
        self.encoder = encoder
        small = system.generator
        self.generator = BertPretraining(small, small.build_encoder(encoder.vocab_size), tokenizer)
        self.transform = nn.Linear(system.width, system.width)
        self.detector = nn.Linear(system.width, 1)
        for head in (self.transform, self.detector):
            initialize(head)
        encoder.pooler.requires_grad_(False)  # without a gradient
        if system.embedding_sharing == "tied":
            self.difference = None
            self.generator.encoder.words = encoder.words
        else:
            self.difference = nn.Embedding(encoder.vocab_size, system.embedding_width)
            nn.init.zeros_(self.difference.weight)
            encoder.words.requires_grad_(False)  # computed by `finish`
            with torch.no_grad():
                encoder.words.weight.copy_(self.generator.encoder.words.weight)

    @torch.no_grad()
    def setup(self, data: Documents) -> None:
        """The differences of a given encoder and generator."""
        if self.difference is not None:
            self.difference.weight.copy_(self.encoder.words.weight - self.generator.encoder.words.weight)

    @torch.no_grad()
    def derive(self) -> None:
        if self.difference is not None:
            difference = self.encoder.words.weight - self.generator.encoder.words.weight
            self.difference.weight = nn.Parameter(difference)

    @torch.no_grad()
    def finish(self) -> None:
        if self.difference is not None:
            self.encoder.words.weight.copy_(self.generator.encoder.words.weight + self.difference.weight)

    @property
    def output_embeddings(self) -> Tensor:
        return self.generator.output_embeddings

    def blocks(self) -> list[nn.Module]:
        return [*self.generator.blocks(), *self.encoder.blocks()]

    def phases(self) -> list[Phase]:
        return self.generator.phases()

    def start_phase(self, number: int) -> None:
        self.generator.trained_length = self.trained_length
        self.generator.start_phase(number)
        copy_positions(self.encoder, max(self.trained_length, self.generator.phase_length(number - 1)))

    def epoch_size(self, data: Documents) -> int:
        return self.generator.epoch_size(data)

    @property
    def follows_progress(self) -> bool:
        return self.generator.follows_progress

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> ElectraBatch:
        masked = self.generator.batch(data, rng, examples)
        numbers = torch.arange(examples.start, examples.stop, device=data.ids.device)
        bits = rng.random_bits("replacement", numbers, masked.targets.shape[1])
        return ElectraBatch(masked=masked, uniform=(bits >> 39).float() * 2.0**-24)

    def counts(self, batch: ElectraBatch) -> dict[str, Tensor]:
        counts = self.generator.counts(batch.masked)
        return {**counts, "rtd": counts["tokens"]}

    def forward(self, batch: ElectraBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        """E[-sum log p_G(x_t | masked)] + weight E[-sum_t log p_D(whether x_t was replaced)]; no gradient flows from
        the discriminator to the generator."""
        masked, generator = batch.masked, self.generator
        logits = generator.mlm_logits(generator.encoder(masked.inputs).top, masked.masked_positions)
        sample = sample_categorical if use_kernels(logits) else sample_categorical_twin
        samples = sample(logits, batch.uniform.flatten(), generator.vocab_size).view_as(masked.targets)
        samples = torch.where(masked.weights > 0, samples, masked.targets)
        inputs = replace(masked.inputs, ids=masked.inputs.ids.scatter(1, masked.masked_positions, samples))
        is_replaced = (samples != masked.targets).float()
        targets = torch.zeros_like(inputs.ids, dtype=torch.float32).scatter(1, masked.masked_positions, is_replaced)
        detected = F.binary_cross_entropy_with_logits(self.detect(inputs).float(), targets, reduction="none")
        inside = torch.arange(targets.shape[1], device=targets.device) < inputs.lengths[:, None]
        rtd = self.system.detection_weight * (detected * inside).sum()
        return {"mlm": generator.mlm_loss(logits, masked), "rtd": rtd}, None

    def encode(self, inputs: TokenBatch) -> Tensor:
        """[batch, time, width] output of the encoder, with the embeddings that are being trained."""
        if self.difference is None:
            words = self.encoder.words(inputs.ids)
        else:  # the generator's embeddings get no gradient from here
            words = F.embedding(inputs.ids, self.output_embeddings.detach()) + self.difference(inputs.ids)
        return self.encoder.contextualize(self.encoder.embed_words(words, inputs), inputs).top

    def detect(self, inputs: TokenBatch) -> Tensor:
        """[batch, time] logits of whether each token was replaced."""
        hidden = self.transform(self.encode(inputs))
        return self.detector(ACTIVATIONS[self.system.activation](hidden)).squeeze(-1)

    def masked_logits(self, inputs: TokenBatch, positions: Tensor) -> Tensor:
        return self.generator.masked_logits(inputs, positions)
