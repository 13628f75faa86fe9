"""BERT (Devlin et al., 2018): a Transformer encoder that reads left and right context at once.

New then: a masked language model (a cloze test: 15% of the words are hidden and predicted from both sides) and next
sentence prediction, so that one pre-trained body serves every task with one more layer. "Segments" are the paper's
token types, "summary" its pooled output.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.documents import Documents
from keel.data.input_windows import ModelInput
from keel.data.mlm_sampling import sample_masked_positions, sample_pairs, sample_spans
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.kernels import triton_usable
from keel.kernels.cross_entropy import cross_entropy
from keel.kernels.layer_norm import layer_norm
from keel.nn.encoder import Encoder, EncoderOutput, Recorder
from keel.nn.transformer_blocks import (
    ACTIVATIONS,
    Activation,
    Dropout,
    PackedSpans,
    TransformerBlock,
    TransformerStack,
    padding_mask,
    use_kernels,
)
from keel.systems.transformer import TransformerSystem
from keel.training.counter_rng import CounterRng
from keel.training.objective import Objective, Phase, State, Tensors
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class Bert(TransformerSystem):
    """The hyper-parameters of BERT; as they stand, BERT-base."""

    layers: int = 12
    width: int = 768
    attention_dropout: float = 0.1
    activation: Activation = "gelu"
    norm_epsilon: float = 1e-12
    max_positions: int = 512
    """The longest row there are position vectors for."""
    segment_types: int = 2
    """Kinds of segments: A and B."""
    sequence_length: int = 128
    """Tokens in a row of pre-training."""
    final_sequence_length: int = 0
    """Tokens in a row of the last steps, which teach the places beyond `length`; 0 keeps one length."""
    final_share: float = 0.1
    """Share of the steps with rows of the final length."""
    mask_rate: float = 0.15
    """Share of tokens that are hidden and predicted."""
    whole_word_masking: bool = False
    """Hide all pieces of a word together."""
    next_sentence: bool = True
    """Also predict whether B followed A."""

    name: ClassVar[str] = "bert"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 2, "width": 128},
        "mini": {"layers": 4, "width": 256},
        "small": {"layers": 4, "width": 512},
        "medium": {"layers": 8, "width": 512},
        "base": {"layers": 12, "width": 768},
        "large": {"layers": 24, "width": 1024},
    }
    pretraining_defaults: ClassVar[Train] = Train(steps=1_000_000, batch=256, lr=1e-4, warmup=0.01)
    tunable: ClassVar[tuple[str, ...]] = (
        "dropout",
        "attention_dropout",
        "sequence_length",
        "final_sequence_length",
        "final_share",
        "mask_rate",
        "whole_word_masking",
        "next_sentence",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.segment_types < 1:
            raise UsageError(f"segments must be 1 or more, not {self.segment_types}")
        if not 8 <= self.sequence_length <= min(self.max_positions, 4096):
            raise UsageError(
                f"sequence_length {self.sequence_length} must lie between 8 and max_positions ({self.max_positions})"
            )
        if self.final_sequence_length and not self.sequence_length < self.final_sequence_length <= min(
            self.max_positions, 4096
        ):
            raise UsageError(
                f"final_sequence_length {self.final_sequence_length} must lie between length and positions, or be 0"
            )
        if not 0 < self.final_share < 1:
            raise UsageError(f"final_share {self.final_share} must lie between 0 and 1: it is a share of the steps")
        if not 0 < self.mask_rate < 1:
            raise UsageError(f"mask {self.mask_rate} must lie between 0 and 1: it is a share of the tokens")

    @property
    def max_length(self) -> int:
        """Positions beyond the rows of pre-training have vectors that nothing has taught."""
        return max(self.sequence_lengths)

    @property
    def sequence_lengths(self) -> list[int]:
        """Of the rows in each phase of pre-training."""
        return (
            [self.sequence_length, self.final_sequence_length] if self.final_sequence_length else [self.sequence_length]
        )

    @property
    def needs_word_starts(self) -> bool:
        return self.whole_word_masking

    def continued_from(self, parent: Any) -> Self:
        return (
            self
            if self.max_length >= parent.max_length
            else replace(self, sequence_length=parent.max_length, final_sequence_length=0)
        )

    def finetuning_defaults(self, frozen: bool) -> Train:
        """The paper's 5e-5 is for 768 wide; narrower networks want a larger rate."""
        if frozen:
            return Train(epochs=20, batch=32, lr=1e-3)
        return Train(epochs=3, batch=32, lr=5e-5 * max(1.0, 768 / self.width))

    def prediction_slots(self, length: int) -> int:
        """Places for hidden tokens in a row of pre-training: static, so that the head runs on them alone."""
        return max(1, round(self.mask_rate * length + 0.5))

    def build_encoder(self, vocab_size: int) -> "BertEncoder":
        return BertEncoder(self, vocab_size)

    def build_objective(self, encoder: "BertEncoder", tokenizer: Tokenizer) -> "BertPretraining":
        return BertPretraining(self, encoder, tokenizer)

    def build_inputs(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> ModelInput:
        """[CLS] A [SEP], or [CLS] A [SEP] B [SEP] with B in segment 1."""
        ids = [tokenizer.cls_id, *first, tokenizer.sep_id]
        segments = [0] * len(ids)
        if second is not None:
            ids += [*second, tokenizer.sep_id]
            segments += [min(1, self.segment_types - 1)] * (len(second) + 1)
        return ModelInput(ids, segments, 1)


class BertEncoder(Encoder):
    """Words + positions + segments, a norm, a stack of post-norm blocks; [CLS]'s top vector, one layer on, sums up."""

    def __init__(self, system: Bert, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, system.width
        self.words = nn.Embedding(vocab_size, system.width)
        self.positions = nn.Embedding(system.max_positions, system.width)
        self.segments = nn.Embedding(system.segment_types, system.width)
        self.norm = nn.LayerNorm(system.width, eps=system.norm_epsilon)
        self.dropout = Dropout(system.dropout)
        self.stack = TransformerStack(TransformerBlock(**system.block) for _ in range(system.layers))
        self.pooler = nn.Linear(system.width, system.width)
        self.apply(initialize)

    @property
    def accepts_packed(self) -> bool:
        return self.stack.fusible and triton_usable(self.words.weight)

    def embed(self, batch: TokenBatch) -> Tensor:
        # [time, width], or packed [1, tokens, width]
        positions = (
            self.positions.weight[: batch.ids.shape[1]]
            if batch.position_ids is None
            else self.positions(batch.position_ids)
        )
        # Without segments a row is all A: adding one vector costs less than looking it up at every position.
        segments = self.segments.weight[0] if batch.segments is None else self.segments(batch.segments)
        vectors = self.words(batch.ids) + segments + positions
        if not use_kernels(vectors):
            return self.dropout(self.norm(vectors))
        return layer_norm(
            vectors,
            self.norm.weight,
            self.norm.bias,
            epsilon=self.norm.eps,
            dropout=self.dropout.p if self.training else 0.0,
            seed=torch.randint(2**31, (), device=vectors.device) if self.training else None,
            out_dtype=torch.get_autocast_dtype("cuda"),
        )

    def contextualize(
        self,
        vectors: Tensor,
        batch: TokenBatch,
        *,
        state: State | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> EncoderOutput:
        assert batch.sequence_starts is None or self.stack.fusible
        if batch.sequence_starts is not None or (record is None and use_kernels(vectors) and self.stack.fusible):
            top, layers = self.stack.run_fused(vectors, PackedSpans.from_batch(batch), all_layers=all_layers)
        else:
            top, layers = self.stack.run(vectors, padding_mask(batch), all_layers=all_layers, record=record)
        return EncoderOutput(top=top, layers=layers)

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        return output.top[:, 0] if batch.sequence_starts is None else output.top[0, batch.sequence_starts]

    def pooled_features(self, batch: TokenBatch) -> Tensor:
        """In the last block only [CLS] asks and is worked on: the other places would not be read."""
        vectors = self.embed(batch)
        if batch.sequence_starts is not None or (use_kernels(vectors) and self.stack.fusible):
            return self.pool_features(self.contextualize(vectors, batch), batch)
        top, _ = self.stack.run(vectors, padding_mask(batch), query_count=1)
        return top[:, 0]

    def pool_projection(self, features: Tensor) -> Tensor:
        return torch.tanh(self.pooler(features))

    def pooler_parameters(self) -> list[nn.Parameter]:
        return list(self.pooler.parameters())

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)


def initialize(module: nn.Module) -> None:
    """Normal with deviation 0.02 (the paper truncates it at two deviations), biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


@dataclass(frozen=True, kw_only=True)
class BertBatch(Tensors):
    """Rows with hidden tokens, what was hidden, and whether B follows A."""

    rows: TokenBatch
    slots: Tensor  # [batch, slots] places of the hidden tokens
    targets: Tensor  # [batch, slots] the ids that stood there
    weights: Tensor  # [batch, slots] 1 for a slot in use, 0 for a spare one
    not_next: Tensor | None  # [batch] 0: B follows A, 1: B is from another document


class BertPretraining(Objective):
    """Masked language model and next sentence prediction over one encoder."""

    def __init__(self, system: Bert, encoder: BertEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system = system
        self.encoder = encoder
        self.marks = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.pad_id)
        self.vocabulary = encoder.vocab_size
        self.transform = nn.Linear(system.width, system.width)
        self.norm = nn.LayerNorm(system.width, eps=system.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(self.vocabulary))
        self.next = nn.Linear(system.width, 2)
        for head in (self.transform, self.next):
            initialize(head)
        if not system.next_sentence:  # nothing would train them
            encoder.pooler.requires_grad_(False)
            self.next.requires_grad_(False)

    def blocks(self) -> list[nn.Module]:
        return self.encoder.blocks()

    def input_parameters(self) -> list[nn.Parameter]:
        words = self.encoder.words.weight  # the softmax too, and that is above the blocks
        return [weight for weight in self.encoder.input_parameters() if weight is not words]

    def phases(self) -> list[Phase]:
        short, *long = self.system.sequence_lengths
        if not long:
            return [Phase()]
        share = self.system.final_share
        return [Phase(share=1 - share), Phase(share=share, batch_share=short / long[0])]

    def epoch_size(self, data: Documents) -> int:
        return data.window_count(self._room(self.system.sequence_length))

    def _room(self, length: int) -> int:
        """Tokens of text in a row, beside [CLS] and [SEP]."""
        return length - (3 if self.system.next_sentence else 2)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> BertBatch:
        if self.system.next_sentence and len(data.spans) < 2:
            raise KeelError(
                "next sentence prediction needs at least two documents: put a blank line between documents, "
                "or turn it off with --system.next_sentence false"
            )
        numbers = torch.arange(examples.start, examples.stop, device=data.ids.device)
        sample = sample_pairs if self.system.next_sentence else sample_spans
        length = self.system.sequence_lengths[rng.phase]
        text = sample(data, rng, numbers, self._room(length))
        ids, starts_word = text.to_ids(data, length, self.system.whole_word_masking, self.marks)
        slots, weights = sample_masked_positions(
            rng,
            numbers,
            text,
            starts_word,
            share=self.system.mask_rate,
            slots=self.system.prediction_slots(length),
            whole_words=self.system.whole_word_masking,
        )
        targets = ids.gather(1, slots)
        mask = self.marks[2]
        dice = rng.randint("replace", numbers, 10, slots.shape[1])
        noise = rng.randint("noise", numbers, self.vocabulary, slots.shape[1])
        # 80% become [MASK], 10% any token, 10% stay: at fine-tuning there is no [MASK] to wait for.
        shown = torch.where(dice < 8, mask, torch.where(dice == 8, noise, targets))
        ids = ids.scatter(1, slots, torch.where(weights > 0, shown, targets))
        place = torch.arange(length, device=ids.device)
        segments = (place > text.first_length[:, None] + 1) & (place < text.lengths[:, None])
        return BertBatch(
            rows=TokenBatch(
                ids=ids, lengths=text.lengths, segments=segments.long() if self.system.next_sentence else None
            ),
            slots=slots,
            targets=targets,
            weights=weights,
            not_next=text.not_next,
        )

    def counts(self, batch: BertBatch) -> dict[str, Tensor]:
        counts = {"mlm": batch.weights.sum(), "tokens": batch.rows.lengths.sum()}
        if batch.not_next is not None:
            counts["nsp"] = batch.weights.new_full((), len(batch.not_next))  # a fill: the GPU is not waited for
        return counts

    def forward(self, batch: BertBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        output = self.encoder(batch.rows)
        loss = self.word_losses(output.top, batch.slots, batch.targets)
        losses = {"mlm": (loss * batch.weights.flatten()).sum()}  # autocast would take a dot product in bf16
        if batch.not_next is not None:
            related = self.predict_next(self.encoder.pool(output, batch.rows))
            losses["nsp"] = F.cross_entropy(related.float(), batch.not_next, reduction="sum")
        return losses, None

    def predict_masked(self, top: Tensor, slots: Tensor) -> Tensor:
        """[batch, slots, vocabulary]: scores of every word at the chosen places, by the input's own vectors (tied)."""
        return F.linear(self.hidden(top, slots), self.encoder.words.weight, self.bias)

    def hidden(self, top: Tensor, slots: Tensor) -> Tensor:
        """[batch, slots, width]: what the words' own vectors are compared with."""
        chosen = top.gather(1, slots[..., None].expand(-1, -1, top.shape[-1]))
        return self.norm(ACTIVATIONS[self.system.activation](self.transform(chosen)))

    def word_losses(self, top: Tensor, slots: Tensor, targets: Tensor) -> Tensor:
        """[batch x slots]: the cross entropy of each target."""
        if not use_kernels(top):
            logits = self.predict_masked(top, slots)  # [batch, slots, vocabulary]
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        room = -self.vocabulary % 64  # a GPU multiplies in tiles: it gets whole ones, and nobody looks at the rest
        words = F.pad(self.encoder.words.weight.to(top.dtype), (0, 0, 0, room))
        logits = F.linear(self.hidden(top, slots).flatten(0, 1), words, F.pad(self.bias, (0, room)))
        return cross_entropy(logits, targets.flatten(), self.vocabulary)

    def predict_next(self, summary: Tensor) -> Tensor:
        """[batch, 2]: scores of "B follows A" and "B is from elsewhere"."""
        return self.next(summary)
