"""BERT (Devlin et al., 2018): the Transformer's encoder, pre-trained to use left and right context at once.

New then: a masked language model (15% of the tokens are masked and predicted from both sides) and next sentence
prediction, so that one pre-trained encoder serves every task with one more layer.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Count, Dropout, Ge, Gt, Le, Lt
from keel.data.documents import Documents
from keel.data.mlm_sampling import (
    MILLION,
    PairObjective,
    SampledSpans,
    replace_masked,
    sample_masked_positions,
    sample_pairs,
    sample_spans,
)
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.kernels import triton_usable
from keel.kernels.cross_entropy import cross_entropy, cross_entropy_twin
from keel.kernels.dropout import NO_DROPOUT, HashDropout
from keel.kernels.layer_norm import layer_norm
from keel.nn.encoder import Encoder, EncoderObjective, EncoderOutput, ForwardOptions
from keel.nn.multihead_attention import FastDropout, packed_spans, padding_mask, use_kernels
from keel.nn.transformer_blocks import ACTIVATIONS, Activation
from keel.systems.system import System
from keel.systems.transformer import EncoderStack, Layers, TransformerSystem, Width, learned_positions
from keel.systems.transformer_finetuning import EPOCHS, TransformerFineTuning
from keel.training.counter_rng import CounterRng
from keel.training.distributed import gather_tensor, shard_like
from keel.training.objective import Phase, State, Tensors
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class Bert(TransformerSystem):
    """The hyper-parameters of BERT; the defaults are BERT-base."""

    layers: Layers = 12
    width: Width = 768
    attention_dropout: Dropout = 0.1
    activation: Activation = "gelu"
    norm_epsilon: Annotated[float, Gt(0)] = 1e-12
    max_positions: Count = 512
    """Number of position embeddings: the maximum sequence length."""
    segment_types: Count = 2
    """Number of segment embeddings (token types): A and B."""
    sequence_length: Annotated[int, Ge(8), Le(4096)] = 128
    """Sequence length of pre-training, in tokens."""
    final_sequence_length: Annotated[int, Ge(0), Le(4096)] = 0
    """Sequence length of the last steps, which train the position embeddings beyond `sequence_length`; 0 for none."""
    final_share: Annotated[float, Gt(0), Lt(1)] = 0.1
    """Share of the steps with the final sequence length."""
    mask_rate: Annotated[float, Gt(0), Lt(1)] = 0.15
    """Masking rate: share of tokens that are masked and predicted."""
    final_mask_rate: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Masking rate at the end of pre-training, to which it changes linearly from `mask_rate`; 0 for no change. The
    validation loss is measured at the final masking rate."""
    whole_word_masking: bool = False
    """Mask all subwords of a word together."""
    mask_span: Annotated[int, Ge(1), Le(50)] = 1
    """Span masking: maximum length of a masked span, in tokens or, with whole_word_masking, in words; lengths are
    geometric with p = 0.2. SpanBERT has 10 (mean 3.8); 1 masks single tokens or words."""
    pair_objective: PairObjective = "nsp"
    """What is learned from segments A and B. nsp: next sentence prediction, whether B follows A or is from another
    document; sop: sentence-order prediction, whether A and B are swapped; segments: pairs without a loss of their own;
    none: single segments."""
    variant: Literal["bert", "roberta", "distilbert"] = "bert"
    """Inputs and pooled output of a published variant: roberta has two [SEP] between texts and one segment, distilbert
    no segment embeddings and ReLU instead of tanh."""

    name = "bert"
    year = 2018
    folder_only = ("variant",)
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 2, "width": 128},
        "mini": {"layers": 4, "width": 256},
        "small": {"layers": 4, "width": 512},
        "medium": {"layers": 8, "width": 512},
        "base": {"layers": 12, "width": 768},
        "large": {"layers": 24, "width": 1024},
    }
    later_settings = ("final_mask_rate", "mask_span")
    default_frozen_pool = "mean"  # the pooler is trained by nothing, or by next sentence prediction
    epoch_rule = EPOCHS
    pretraining_defaults = Train(steps=1_000_000, batch=256, lr=1e-4, warmup=0.01)
    tunable = (
        "dropout",
        "attention_dropout",
        "sequence_length",
        "final_sequence_length",
        "final_share",
        "mask_rate",
        "final_mask_rate",
        "whole_word_masking",
        "mask_span",
        "pair_objective",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length > self.max_positions:
            what = f"sequence_length {self.max_length} exceeds the {self.max_positions} position embeddings"
            raise UsageError(f"{what}: lower it, or raise max_positions")
        if self.variant == "distilbert" and self.norm_epsilon != 1e-12:
            raise UsageError("norm_epsilon of the variant distilbert is 1e-12: leave it out")
        if 0 < self.final_sequence_length <= self.sequence_length:
            what = f"final_sequence_length {self.final_sequence_length} is not above sequence_length"
            raise UsageError(f"{what} {self.sequence_length}: raise it, or set it to 0")

    @property
    def max_length(self) -> int:
        """Pre-training leaves later position embeddings untrained."""
        return max(self.sequence_lengths)

    @property
    def sequence_lengths(self) -> list[int]:
        """The sequence length of each phase of pre-training."""
        return [length for length in (self.sequence_length, self.final_sequence_length) if length]

    @property
    def needs_word_starts(self) -> bool:
        return self.whole_word_masking

    def continued_from(self, parent: System) -> Self:
        if self.max_length >= parent.max_length:
            return self
        return replace(self, sequence_length=parent.max_length, final_sequence_length=0)

    def finetuning_defaults(self, frozen: bool) -> Train:
        """The paper's learning rate of 5e-5 is for width 768; narrower networks need a higher one."""
        if frozen:
            return Train(epochs=20, batch=32, lr=1e-3)
        return Train(epochs=3, batch=32, lr=max(1.0, 768 / self.width) / 20_000)  # 5e-5 * 6 is not 3e-4

    @property
    def finetuning_policy(self) -> TransformerFineTuning:
        return TransformerFineTuning(self)

    @property
    def embedding_width(self) -> int:
        """Width of word, position and segment embeddings."""
        return self.width

    @property
    def predicts_pairs(self) -> bool:
        """Whether pairs of segments have a loss of their own."""
        return self.pair_objective in ("nsp", "sop")

    @property
    def mask_rates(self) -> tuple[float, float]:
        """The masking rates at the start and at the end of pre-training."""
        return self.mask_rate, self.final_mask_rate or self.mask_rate

    def prediction_slots(self, length: int) -> int:
        """Masked positions per sequence of pre-training: a static number, so that the MLM head runs on them alone; that
        of the larger masking rate, if it changes."""
        return max(1, round(max(self.mask_rates) * length + 0.5))

    def build_encoder(self, vocab_size: int) -> "BertEncoder":
        return BertEncoder(self, vocab_size)

    def build_objective(self, encoder: "BertEncoder", tokenizer: Tokenizer) -> "BertPretraining":
        return BertPretraining(self, encoder, tokenizer)

    def special_tokens(self, tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]]:
        """[CLS] A [SEP], or [CLS] A [SEP] B [SEP] with B in segment 1."""
        separators = 2 if self.variant == "roberta" else 1
        return [tokenizer.cls_id], [tokenizer.sep_id] * separators, [tokenizer.sep_id]

    @property
    def second_segment(self) -> int:
        return min(1, self.segment_types - 1) if self.variant == "bert" else 0


class BertEncoder(Encoder):
    """Word, position and segment embeddings, then the Transformer's encoder; the pooled output is a tanh layer on the
    top vector of [CLS]."""

    def __init__(self, system: Bert, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, system.width
        self.words = nn.Embedding(vocab_size, system.embedding_width)
        self.build_input_layers(system)
        self.dropout = FastDropout(system.dropout)
        self.stack = EncoderStack.build(system)
        self.pooler = self.build_pooler(system)
        self.pooler_activation = torch.relu if system.variant == "distilbert" else torch.tanh
        self.apply(initialize)

    def build_input_layers(self, system: Bert) -> None:
        """The layers that have weights between word embeddings and blocks."""
        self.positions: nn.Embedding | None = nn.Embedding(system.max_positions, system.embedding_width)
        has_segments = system.variant != "distilbert"
        self.segments = nn.Embedding(system.segment_types, system.embedding_width) if has_segments else None
        self.norm = nn.LayerNorm(system.embedding_width, eps=system.norm_epsilon)

    def build_pooler(self, system: Bert) -> nn.Module:
        """The layer of the pooled output."""
        return nn.Linear(system.width, system.width)

    @property
    def accepts_packed(self) -> bool:
        return self.stack.fusible and triton_usable(self.words.weight)

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.embed_words(self.words(batch.ids), batch)

    def embed_words(self, words: Tensor, batch: TokenBatch) -> Tensor:
        """The input embeddings of these word vectors [batch, time, width]."""
        vectors = words
        if self.segments is not None:
            # Without segments all is A: adding one vector is cheaper than looking it up at every position.
            segments = self.segments.weight[0] if batch.segments is None else self.segments(batch.segments)
            vectors = vectors + segments
        if self.positions is not None:
            vectors = vectors + learned_positions(self.positions, batch)
        if not use_kernels(vectors):
            return self.dropout(self.norm(vectors))
        dropout = NO_DROPOUT
        if self.training:
            dropout = HashDropout(self.dropout.p, torch.randint(2**31, (), device=vectors.device))
        return layer_norm(vectors, self.norm, dropout, out_dtype=torch.get_autocast_dtype("cuda"))

    def contextualize(
        self, vectors: Tensor, batch: TokenBatch, options: ForwardOptions = ForwardOptions()
    ) -> EncoderOutput:
        assert batch.sequence_starts is None or self.stack.fusible
        fused = options.record is None and use_kernels(vectors) and self.stack.fusible
        if fused or batch.sequence_starts is not None:
            top, layers = self.stack.run_fused(vectors, packed_spans(batch), all_layers=options.all_layers)
        else:
            top, layers = self.stack(vectors, padding_mask(batch), options)
        return EncoderOutput(top=top, layers=layers)

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        return output.top[:, 0] if batch.sequence_starts is None else output.top[0, batch.sequence_starts]

    def pooled_features(self, batch: TokenBatch) -> Tensor:
        """The last block computes the position of [CLS] only."""
        vectors = self.input_embeddings(batch)
        if batch.sequence_starts is not None or (use_kernels(vectors) and self.stack.fusible):
            return self.pool_features(self.contextualize(vectors, batch), batch)
        top, _ = self.stack(vectors, padding_mask(batch), query_count=1)
        return top[:, 0]

    def pool_projection(self, features: Tensor) -> Tensor:
        return self.pooler_activation(self.pooler(features))

    def pooler_parameters(self) -> list[nn.Parameter]:
        return list(self.pooler.parameters())


def initialize(module: nn.Module) -> None:
    """Truncated normal with standard deviation 0.02, cut at two deviations; zero biases."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


@torch.no_grad()
def copy_positions(encoder: BertEncoder, trained: int) -> None:
    """Let position embeddings that are not trained yet start as copies of those that are."""
    if encoder.positions is None:
        return
    weight = encoder.positions.weight
    whole = gather_tensor(weight)
    weight.copy_(shard_like(whole[torch.arange(len(whole), device=whole.device) % trained], weight))


@dataclass(frozen=True, kw_only=True)
class BertBatch(Tensors):
    """Sequences with masked tokens, the tokens to predict, and whether B follows A."""

    inputs: TokenBatch
    masked_positions: Tensor  # [batch, slots]
    targets: Tensor  # [batch, slots] the original ids
    weights: Tensor  # [batch, slots] 1 for a slot in use, 0 for a spare one
    not_next: Tensor | None  # [batch] 0: B follows A, 1: it does not


class BertPretraining(EncoderObjective):
    """Masked language model ("mlm") and next sentence ("nsp") or sentence-order prediction ("sop") over one encoder."""

    encoder: BertEncoder

    def __init__(self, system: Bert, encoder: BertEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system = system
        self.encoder = encoder
        self.cls_id, self.sep_id = tokenizer.cls_id, tokenizer.sep_id
        self.mask_id, self.pad_id = tokenizer.mask_id, tokenizer.pad_id
        self.vocab_size = encoder.vocab_size
        self.build_heads(system)

    def build_heads(self, system: Bert) -> None:
        """The layers above the encoder."""
        self.transform = nn.Linear(system.width, system.embedding_width)
        self.norm = nn.LayerNorm(system.embedding_width, eps=system.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(self.vocab_size))
        self.next = nn.Linear(system.width, 2)
        for head in (self.transform, self.next):
            initialize(head)
        if not system.predicts_pairs:  # they get no gradient
            self.encoder.pooler.requires_grad_(False)
            self.next.requires_grad_(False)

    @property
    def mlm_layers(self) -> tuple[nn.Module, nn.Module]:
        """The first and the last layer between the encoder and the softmax over words."""
        return self.transform, self.norm

    @property
    def output_embeddings(self) -> Tensor:
        return self.encoder.words.weight

    def phases(self) -> list[Phase]:
        short, *long = self.system.sequence_lengths
        if not long:
            return [Phase()]
        share = self.system.final_share
        return [Phase(share=1 - share), Phase(share=share, batch_share=short / long[0])]

    def phase_length(self, number: int) -> int:
        """The sequence length of a phase."""
        return self.system.sequence_lengths[number]

    def start_phase(self, number: int) -> None:
        copy_positions(self.encoder, max(self.trained_length, self.phase_length(number - 1)))

    def epoch_size(self, data: Documents) -> int:
        return data.window_count(self._text_length(self.system.sequence_length))

    def _text_length(self, length: int) -> int:
        """Tokens of text in a sequence, without [CLS] and [SEP]."""
        return length - (2 if self.system.pair_objective == "none" else 3)

    @property
    def follows_progress(self) -> bool:
        return bool(self.system.final_mask_rate)

    def mask_rate_at(self, rng: CounterRng) -> int | Tensor:
        """The masking rate of a step in millionths: r_0 + (r_1 - r_0) step / steps, from `mask_rate` r_0 to
        `final_mask_rate` r_1; outside of a run, as in evaluation, r_1."""
        first, last = (round(share * MILLION) for share in self.system.mask_rates)
        if first == last or (isinstance(rng.steps, int) and rng.steps == 0):
            return last
        return (first * (rng.steps - rng.step) + last * rng.step) // rng.steps

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> BertBatch:
        system = self.system
        if system.pair_objective == "nsp" and len(data.spans) < 2:
            raise KeelError(
                "next sentence prediction needs at least two documents: put a blank line between documents, "
                "or choose another --system.pair_objective, such as sop"
            )
        numbers = torch.arange(examples.start, examples.stop, device=data.ids.device)
        length = self.phase_length(rng.phase)
        if system.pair_objective == "none":
            spans = sample_spans(data, rng, numbers, self._text_length(length))
        else:
            spans = sample_pairs(data, rng, numbers, self._text_length(length), system.pair_objective)
        source, in_text = spans.locate(length)
        special_ids = {"cls_id": self.cls_id, "sep_id": self.sep_id, "pad_id": self.pad_id}
        ids = spans.to_ids(data, source, in_text, **special_ids)
        positions, weights = self.sample_masked(data, rng, numbers, spans, source)
        targets = ids.gather(1, positions)
        masked = replace_masked(
            rng,
            numbers,
            targets,
            mask_id=self.mask_id,
            vocab_size=self.vocab_size,
            spans_at=positions if system.mask_span > 1 else None,
        )
        ids = ids.scatter(1, positions, torch.where(weights > 0, masked, targets))
        position = torch.arange(length, device=ids.device)
        in_b = (position > spans.first_length[:, None] + 1) & (position < spans.lengths[:, None])
        return BertBatch(
            inputs=TokenBatch(ids=ids, lengths=spans.lengths, segments=in_b.long() if spans.paired else None),
            masked_positions=positions,
            targets=targets,
            weights=weights,
            not_next=spans.not_next,
        )

    def sample_masked(
        self, data: Documents, rng: CounterRng, examples: Tensor, spans: SampledSpans, source: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[batch, slots] positions to mask and their weights; `source` [batch, length] is the index of each token in
        the corpus."""
        system, words = self.system, None
        if system.whole_word_masking:
            words = spans.starts_with_bounds(data.starts_word(source))
        length = source.shape[1]
        return sample_masked_positions(
            rng,
            examples,
            spans,
            words,
            length=length,
            mask_rate=self.mask_rate_at(rng),
            slots=system.prediction_slots(length),
            mask_span=system.mask_span,
        )

    def counts(self, batch: BertBatch) -> dict[str, Tensor]:
        counts = {"mlm": batch.weights.sum(), "tokens": batch.inputs.lengths.sum()}
        if batch.not_next is not None:
            counts[self.system.pair_objective] = batch.weights.new_full((), len(batch.not_next))  # no wait for the GPU
        return counts

    def forward(self, batch: BertBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        output = self.encoder(batch.inputs)
        losses = {"mlm": self.mlm_loss(self.mlm_logits(output.top, batch.masked_positions), batch)}
        if batch.not_next is not None:
            logits = self.predict_next(self.encoder.pool(output, batch.inputs))
            losses[self.system.pair_objective] = F.cross_entropy(logits.float(), batch.not_next, reduction="sum")
        return losses, None

    def predict_masked(self, top: Tensor, positions: Tensor) -> Tensor:
        """[batch, slots, vocabulary] logits at `positions` [batch, slots], by the tied word embeddings."""
        return F.linear(self.mlm_features(top, positions), self.output_embeddings, self.bias)

    def mlm_features(self, top: Tensor, positions: Tensor) -> Tensor:
        """[batch, slots, width]: the input of the softmax."""
        return self.mlm_transform(top.gather(1, positions[..., None].expand(-1, -1, top.shape[-1])))

    def mlm_transform(self, vectors: Tensor) -> Tensor:
        """[..., width]: LayerNorm(activation(W x + b))."""
        return self.norm(ACTIVATIONS[self.system.activation](self.transform(vectors)))

    def mlm_logits(self, top: Tensor, positions: Tensor) -> Tensor:
        """[batch x slots, vocabulary] logits at `positions`; on a GPU with further columns that are padding."""
        if not use_kernels(top):
            return self.predict_masked(top, positions).flatten(0, 1)
        padding = -self.vocab_size % 64  # whole tiles for the GPU's matrix products
        words = F.pad(self.output_embeddings.to(top.dtype), (0, 0, 0, padding))
        return F.linear(self.mlm_features(top, positions).flatten(0, 1), words, F.pad(self.bias, (0, padding)))

    def mlm_loss(self, logits: Tensor, batch: BertBatch) -> Tensor:
        """Sum of the cross-entropies of the masked tokens; the backward pass may overwrite the logits."""
        loss = cross_entropy if use_kernels(logits) else cross_entropy_twin
        losses = loss(logits, batch.targets.flatten(), self.vocab_size)
        return (losses * batch.weights.flatten()).sum()  # autocast would run a dot product in bf16

    def masked_logits(self, inputs: TokenBatch, positions: Tensor) -> Tensor:
        return self.predict_masked(self.encoder(inputs).top, positions)

    def predict_next(self, pooled: Tensor) -> Tensor:
        """[batch, 2] logits of "B follows A" and "B does not follow A"."""
        return self.next(pooled)
