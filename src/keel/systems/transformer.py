"""Transformer (Vaswani et al., "Attention Is All You Need", 2017): no recurrence, every place looks at all others.

New then: multi-head scaled dot-product attention as the only way by which words meet, so that a whole sentence is
computed in parallel. One stack reads; another writes, whose places see those before them ("masked") and all that was
read ("cross"). Both are made of what is in blocks.py; this file has what puts them together.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.input_windows import ModelInput
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.nn.encoder import Decoder, Encoder, EncoderOutput, Recorder
from keel.nn.kv_cache import KVCache, LayerCache
from keel.nn.transformer_blocks import (
    Activation,
    Dropout,
    MultiHeadAttention,
    Record,
    TransformerBlock,
    TransformerStack,
    padding_mask,
)
from keel.systems.finetuning_policy import FineTuningPolicy
from keel.systems.system import EncoderDecoderSystem, System
from keel.training.objective import State, Tensors
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class TransformerSystem(System):
    """A system made of blocks: the shape of its stack, as in the Transformer's base model unless it says otherwise."""

    layers: int = 6
    """Blocks."""
    width: int = 512
    """Of every vector between the blocks."""
    head_dim: int = 64
    """Of one attention head: there are width / head_dim heads."""
    mlp_ratio: float = 4.0
    """The feed-forward layer is this many times as wide."""
    dropout: float = 0.1
    """On embeddings and on the output of every sub-layer."""
    attention_dropout: float = 0.0
    """On the attention weights."""
    activation: Activation = "relu"
    """Between the two feed-forward layers."""
    norm_epsilon: float = 1e-5
    """Inside the layer norms."""

    def __post_init__(self) -> None:
        for name, most in (("layers", 1000), ("width", 65_536), ("head_dim", 65_536)):
            if not 1 <= getattr(self, name) <= most:
                raise UsageError(f"{name} must lie between 1 and {most}, not at {getattr(self, name)}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must lie between 0 and 1, not at {getattr(self, name)}")
        if self.mlp_ratio <= 0 or self.norm_epsilon <= 0:
            raise UsageError("mlp_ratio and norm_epsilon must be above 0")
        if self.width % self.head_dim:
            raise UsageError(f"width {self.width} is no multiple of head_dim {self.head_dim}: change one of them")

    @property
    def finetuning_policy(self) -> FineTuningPolicy:
        return FineTuningPolicy(self, ("dropout", "attention_dropout"))

    @property
    def heads(self) -> int:
        return self.width // self.head_dim

    @property
    def hidden(self) -> int:
        return round(self.width * self.mlp_ratio)

    @property
    def block(self) -> dict[str, Any]:
        """The settings of each block."""
        return {
            "width": self.width,
            "heads": self.heads,
            "hidden": self.hidden,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": self.activation,
            "epsilon": self.norm_epsilon,
        }


ROOM = 8
"""Places by which what is kept of written text grows: copies stay short where rows change their order at each step."""


@dataclass(frozen=True, kw_only=True)
class Transformer(EncoderDecoderSystem, TransformerSystem):
    """The hyper-parameters of the Transformer; as they stand, the paper's base model."""

    layers: int = 6
    """Blocks that read."""
    decoder_layers: int = 6
    """Blocks that write."""
    position_encoding: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    """How places are told apart: by waves of many lengths, by a vector learned for each, or not at all."""
    pre_norm: bool = False
    """Whether norms come before the sub-layers, which makes deep stacks easier to train, not after as published."""
    label_smoothing: float = 0.1
    max_positions: int = 256
    """The longest row, read or written."""

    name: ClassVar[str] = "transformer"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {  # Wu et al. 2021, for some 30,000 pairs
            **dict.fromkeys(("layers", "decoder_layers"), 4),
            **dict(width=128, head_dim=32, mlp_ratio=2.0, dropout=0.3),  # noqa: C408
        },
        "base": {},
        "big": {"width": 1024, "dropout": 0.3},
    }
    pretraining_defaults: ClassVar[Train] = Train(
        steps=100_000,
        batch=1024,
        lr=7e-4,
        warmup=4000,
        schedule="inverse_sqrt",
        weight_decay=0.0,
        beta2=0.98,
        epsilon=1e-9,
    )

    def __post_init__(self) -> None:
        TransformerSystem.__post_init__(self)
        EncoderDecoderSystem.__post_init__(self)
        for name, most in (("decoder_layers", 1000), ("max_positions", 65_536)):
            if not 1 <= getattr(self, name) <= most:
                raise UsageError(f"{name} must lie between 1 and {most}, not at {getattr(self, name)}")
        if self.position_encoding == "sinusoidal" and self.width % 2:
            raise UsageError(
                f"sines and cosines come in pairs: make width {self.width} even, or position_encoding learned"
            )

    @property
    def max_length(self) -> int:
        return self.max_positions

    @property
    def finetuning_policy(self) -> FineTuningPolicy:
        """Where places have learned vectors, there are as many as a row is long."""
        return FineTuningPolicy(
            self,
            (*super().finetuning_policy.fields, *([] if self.position_encoding == "learned" else ["max_positions"])),
        )

    def finetuning_defaults(self, frozen: bool) -> Train:
        """The paper's highest rate, 1 / sqrt(width x 4000), reached after the same share of the steps."""
        return replace(
            self.pretraining_defaults, steps=0, epochs=30, batch=64, lr=(self.width * 4000) ** -0.5, warmup=0.04
        )

    def build_encoder(self, vocab_size: int) -> "TransformerEncoder":
        return TransformerEncoder(self, vocab_size)

    def build_decoder(self, encoder: "TransformerEncoder", vocab_size: int) -> "TransformerDecoder":
        return TransformerDecoder(self, encoder, vocab_size)

    def build_inputs(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> ModelInput:
        """A [SEP], or A [SEP] B [SEP]."""
        ids = [*first, tokenizer.sep_id, *([] if second is None else [*second, tokenizer.sep_id])]
        return ModelInput(ids, [0] * (len(first) + 1) + [1] * (len(ids) - len(first) - 1), 0)


@lru_cache(maxsize=8)
def sinusoidal_positions(length: int, width: int, device: torch.device) -> Tensor:
    """[length, width]: sin(t / 10000^(2i / width)) at 2i, the cosine of the same at 2i + 1, for place t."""
    with torch.inference_mode(False):
        place = torch.arange(length, dtype=torch.float64, device=device)[:, None]
        angle = place / 10_000 ** (torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()


class PositionEmbedding(nn.Module):
    """Words with where they stand: x sqrt(width) + the vector of the place, then dropout."""

    def __init__(self, system: Transformer):
        super().__init__()
        self.max_positions, self.kind = system.max_positions, system.position_encoding
        self.learned = (
            nn.Embedding(system.max_positions, system.width) if system.position_encoding == "learned" else None
        )
        self.dropout = Dropout(system.dropout)

    def forward(self, words: Tensor, begin: int = 0) -> Tensor:
        """[batch, time, width] to the same; the first of these words stands at `begin`."""
        end, width = begin + words.shape[1], words.shape[2]
        if end > self.max_positions:
            remedy = "make a shorter one of it, or train with a larger --system.max_positions"
            raise KeelError(
                f"a row of {end} tokens is longer than the {self.max_positions} that this model takes: {remedy}"
            )
        x = words * width**0.5
        if self.kind != "none":
            table = (
                sinusoidal_positions(self.max_positions, width, words.device)
                if self.learned is None
                else self.learned.weight
            )
            x = x + table[begin:end]
        return self.dropout(x)


class TransformerEncoder(Encoder):
    """Words with their places through a stack of blocks."""

    def __init__(self, system: Transformer, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, system.width
        self.words = nn.Embedding(vocab_size, system.width)
        self.places = PositionEmbedding(system)
        self.stack = TransformerStack(
            TransformerBlock(**system.block, pre_norm=system.pre_norm) for _ in range(system.layers)
        )
        # What passes by all norms has none at the end but this.
        self.norm = nn.LayerNorm(system.width, eps=system.norm_epsilon) if system.pre_norm else nn.Identity()
        self.apply(initialize)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.places(self.words(batch.ids))

    def contextualize(
        self,
        vectors: Tensor,
        batch: TokenBatch,
        *,
        state: State | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> EncoderOutput:
        top, layers = self.stack.run(vectors, padding_mask(batch), all_layers=all_layers, record=record)
        top = self.norm(top)
        if all_layers:
            layers[-1] = top
        return EncoderOutput(top=top, layers=layers)

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)


def initialize(module: nn.Module) -> None:
    """Glorot's for every matrix, biases zero; vectors of words and places are short, as words are scaled up."""
    if isinstance(module, nn.Linear):
        for part in module.weight.chunk(getattr(module, "parts", 1)):
            nn.init.xavier_uniform_(part)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


@dataclass(frozen=True, kw_only=True)
class EncoderMemory(Tensors):
    """What was read, as every layer of a decoder looks at it: projected once, whatever is written from it."""

    vectors: Tensor  # [texts, layers, 2, heads, time, head width]: keys and values
    inside: Tensor | None  # [texts, 1, 1, time], True where there is something to look at; None: everywhere


class DecoderBlock(TransformerBlock):
    """One layer that writes: attention to what was written, attention to what was read, then a two-layer network at
    every place, each inside a residual and a norm."""

    def __init__(self, **settings: Any):
        super().__init__(causal=True, **settings)
        self.cross = MultiHeadAttention(settings["width"], settings["heads"], settings["attention_dropout"])
        self.cross_norm = nn.LayerNorm(settings["width"], eps=settings["epsilon"])

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - it is given what was read, too
        self,
        x: Tensor,
        memory: Tensor,
        inside: Tensor | None,
        past: LayerCache | None = None,
        record: Record | None = None,
    ) -> Tensor:
        """[rows, time, width] to the same; `memory` is [texts, 2, heads, source time, head width]."""
        shown = record and (lambda name, value: record(f"masked_{name}", value))
        x = self.residual(self.attention_norm, x, lambda x: self.attention(x, None, shown, past=past))
        x = self.residual(self.cross_norm, x, lambda x: self.cross_attend(x, memory, inside, record))
        return self.residual(self.output_norm, x, self.feed_forward)

    def remember(self, top: Tensor) -> Tensor:
        """[texts, 2, heads, time, head width]: what it looks at of texts that were read [texts, time, width]."""
        return self.cross.keys_and_values(top).transpose(0, 1)

    def cross_attend(self, x: Tensor, memory: Tensor, inside: Tensor | None, record: Record | None) -> Tensor:
        """Cross attention: every place asks all that was read. Rows that write from one text ask it side by side."""
        rows, time, width = x.shape

        def shown(name: str, value: Tensor) -> None:  # [texts, heads, rows of a text x time, source time]
            assert record is not None
            record(f"cross_{name}", value.unflatten(2, (-1, time)).transpose(1, 2).flatten(0, 1))

        q = self.cross.queries(x.reshape(len(memory), -1, width))
        mixed = self.cross.attend(q, memory[:, 0], memory[:, 1], inside, shown if record is not None else None)
        return mixed.view(rows, time, width)


class TransformerDecoder(Decoder):
    """Words with their places through a stack of blocks that also look at what was read; the words' own vectors say
    which comes next."""

    def __init__(self, system: Transformer, encoder: TransformerEncoder, vocab_size: int):
        super().__init__(encoder, vocab_size, system.width, shared=system.shared_vocabulary and system.tie_embeddings)
        self.output = None if system.tie_embeddings else nn.Linear(system.width, vocab_size, bias=False)
        self.places = PositionEmbedding(system)
        self.stack = nn.ModuleList(
            DecoderBlock(**system.block, pre_norm=system.pre_norm) for _ in range(system.decoder_layers)
        )
        self.norm = nn.LayerNorm(system.width, eps=system.norm_epsilon) if system.pre_norm else nn.Identity()
        self.apply(initialize)

    def project_source(self, output: EncoderOutput, batch: TokenBatch) -> EncoderMemory:
        vectors = torch.stack([block.remember(output.top) for block in self._layers], 1)
        return EncoderMemory(vectors=vectors, inside=padding_mask(batch))

    def new_state(self, source: Tensors, batch_size: int) -> KVCache:
        assert isinstance(source, EncoderMemory)
        shape = source.vectors.shape
        return KVCache(memory=source.vectors.new_empty((batch_size, *shape[1:4], 0, shape[5])), spare=ROOM)

    def forward(
        self, ids: Tensor, source: Tensors, state: KVCache | None = None, *, record: Recorder | None = None
    ) -> tuple[Tensor, KVCache | None]:
        """A state is written on in place, without gradients: whoever goes on from one twice takes its rows first."""
        assert isinstance(source, EncoderMemory)
        assert state is None or not torch.is_grad_enabled(), "with a state it writes, and learns nothing"
        begin, time = 0 if state is None else state.count, ids.shape[1]
        x = self.places(F.embedding(ids, self.word_embeddings()), begin)
        state = state and state.with_room(time, self.places.max_positions, state.memory.dtype)
        for number, block in enumerate(self._layers):
            shown = None if record is None else lambda name, value, layer=number: record(name, layer, value)
            past = None if state is None else state.layer(number)
            x = block(x, source.vectors[:, number], source.inside, past, shown)
        return self.norm(x), state and state.advanced(time)

    def logits(self, vectors: Tensor) -> Tensor:
        return F.linear(vectors, self.word_embeddings() if self.output is None else self.output.weight)

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)

    @property
    def _layers(self) -> list[DecoderBlock]:
        return [block for block in self.stack if isinstance(block, DecoderBlock)]
