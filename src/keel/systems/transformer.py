"""Transformer (Vaswani et al., "Attention Is All You Need", 2017): an encoder-decoder without recurrence.

New then: multi-head scaled dot-product attention as the only interaction between positions, so that all of them are
computed in parallel. BERT is its encoder (`EncoderStack`), GPT its decoder without cross-attention (`DecoderStack`).
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Dropout, Ge, Gt, Le, Lt
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.nn import bf16_inference
from keel.nn.encoder import Decoder, Encoder, EncoderOutput, ForwardOptions, Recorder
from keel.nn.kv_cache import KVCache
from keel.nn.multihead_attention import FastDropout, padding_mask
from keel.nn.transformer_blocks import Activation, DecoderBlock, TransformerBlock, TransformerStack
from keel.systems.system import EncoderDecoderSystem, System
from keel.training.objective import Tensors
from keel.training.plan import Train

Layers = Annotated[int, Ge(1), Le(1000)]
Width = Annotated[int, Ge(1), Le(65_536)]


@dataclass(frozen=True, kw_only=True)
class TransformerSystem(System):
    """The shape of a Transformer stack; the defaults are the base model's."""

    layers: Layers = 6
    """Number of blocks."""
    width: Width = 512
    """Hidden size: width of the residual stream."""
    head_dim: Width = 64
    """Width of one attention head; the number of heads is width / head_dim."""
    mlp_ratio: Annotated[float, Gt(0)] = 4.0
    """Width of the feed-forward layer / width."""
    dropout: Dropout = 0.1
    """Dropout probability of embeddings and of the output of every sub-layer."""
    attention_dropout: Dropout = 0.0
    """Dropout probability of the attention weights."""
    activation: Activation = "relu"
    """Activation function of the feed-forward layer."""
    norm_epsilon: Annotated[float, Gt(0)] = 1e-5
    """Epsilon of the layer norms."""

    def __post_init__(self) -> None:
        if self.width % self.head_dim:
            what = f"--system.width {self.width} is not a multiple of --system.head_dim {self.head_dim}"
            raise UsageError(f"{what}: change one of them")

    @property
    def finetuning_fields(self) -> tuple[str, ...]:
        return "dropout", "attention_dropout"

    @property
    def heads(self) -> int:
        return self.width // self.head_dim

    @property
    def mlp_size(self) -> int:
        """Width of the feed-forward layer."""
        return round(self.width * self.mlp_ratio)

    @property
    def block_settings(self) -> dict[str, Any]:
        """The arguments of every block."""
        return {
            "width": self.width,
            "heads": self.heads,
            "hidden": self.mlp_size,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": self.activation,
            "epsilon": self.norm_epsilon,
        }

    def build_encoder_block(self, number: int, *, pre_norm: bool) -> TransformerBlock:
        """A new encoder block; they are numbered from 0."""
        return TransformerBlock(**self.block_settings, pre_norm=pre_norm)


class EncoderStack(TransformerStack):
    """The Transformer's encoder (figure 1, left): blocks of bidirectional self-attention and a feed-forward network."""

    @classmethod
    def build(cls, system: TransformerSystem, *, pre_norm: bool = False) -> Self:
        return cls(system.build_encoder_block(number, pre_norm=pre_norm) for number in range(system.layers))

    def forward(
        self, x: Tensor, mask: Tensor | None, options: ForwardOptions = ForwardOptions(), query_count: int = 0
    ) -> tuple[Tensor, list[Tensor]]:
        """[batch, time, width] to the same, and every layer's output with `all_layers`; with `query_count` the last
        block computes its first positions only."""
        if options.record is None and query_count <= 1 and bf16_inference.runs_in_bf16(x):
            return bf16_inference.run_blocks(
                self, self.blocks, x, mask, all_layers=options.all_layers, query_count=query_count
            )
        layers = [x] if options.all_layers else []
        for number, block in enumerate(self):
            is_last = number == len(self) - 1
            x = block(x, mask, options.layer_recorder(number), query_count if is_last else 0)
            if options.all_layers:
                layers.append(x)
        return x, layers


@dataclass(frozen=True, kw_only=True)
class EncoderMemory(Tensors):
    """The encoder's output as keys and values of every decoder layer's cross-attention, computed once per source."""

    vectors: Tensor  # [sources, layers, 2, heads, time, head_dim]
    mask: Tensor | None  # [sources, 1, 1, time], False at padding; None without padding


class DecoderStack(TransformerStack):
    """The Transformer's decoder (figure 1, right): blocks of causal self-attention, cross-attention to the encoder's
    output and a feed-forward network. Without `cross_attention` it is a decoder-only model, such as GPT."""

    @classmethod
    def build(cls, system: TransformerSystem, layers: int, *, pre_norm: bool, cross_attention: bool) -> Self:
        settings: dict[str, Any] = {"pre_norm": pre_norm, "cross_attention": cross_attention, **system.block_settings}
        return cls(DecoderBlock(**settings) for _ in range(layers))

    def forward(
        self, x: Tensor, options: ForwardOptions, memory: EncoderMemory | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """[batch, time, width] to the same, and every layer's output with `all_layers`; x follows the positions of a
        KV cache, the state, which has room for it."""
        layers = [x] if options.all_layers else []
        for number, block in enumerate(self):
            keys, mask = (None, None) if memory is None else (memory.vectors[:, number], memory.mask)
            past = None if options.state is None else partial(options.state.extend, number)
            x = block(x, keys, mask, past, options.layer_recorder(number))
            if options.all_layers:
                layers.append(x)
        return x, layers

    def project_memory(self, top: Tensor, batch: TokenBatch) -> EncoderMemory:
        blocks = [block for block in self if isinstance(block, DecoderBlock)]
        vectors = torch.stack([block.project_memory(top) for block in blocks], 1)
        return EncoderMemory(vectors=vectors, mask=padding_mask(batch))


@dataclass(frozen=True, kw_only=True)
class Transformer(EncoderDecoderSystem, TransformerSystem):
    """The hyper-parameters of the Transformer; the defaults are the paper's base model."""

    layers: Layers = 6
    """Number of encoder blocks."""
    decoder_layers: Layers = 6
    """Number of decoder blocks."""
    position_encoding: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    """Position encoding: sines and cosines of many wavelengths, a learned vector per position, or none."""
    pre_norm: bool = False
    """Layer norm before each sub-layer (pre-norm), which eases the training of deep stacks; published is post-norm."""
    label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.1
    max_positions: Width = 256
    """Maximum length of source and target, in tokens."""

    name = "transformer"
    year = 2017
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        # Wu et al. 2021, for some 30,000 pairs
        "tiny": {"layers": 4, "decoder_layers": 4, "width": 128, "head_dim": 32, "mlp_ratio": 2.0, "dropout": 0.3},
        "base": {},
        "big": {"width": 1024, "dropout": 0.3},
    }
    pretraining_defaults = Train(
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
        super().__post_init__()
        if self.position_encoding == "sinusoidal" and self.width % 2:
            raise UsageError(f"sinusoidal positions need an even width, not {self.width}: or use learned positions")

    @property
    def max_length(self) -> int:
        return self.max_positions

    @property
    def finetuning_fields(self) -> tuple[str, ...]:
        resizable = [] if self.position_encoding == "learned" else ["max_positions"]
        return (*super().finetuning_fields, *resizable)

    def finetuning_defaults(self, frozen: bool) -> Train:
        """The paper's peak learning rate, (width x 4000)^-0.5, after the same share of warm-up steps."""
        return replace(
            self.pretraining_defaults, steps=0, epochs=30, batch=64, lr=(self.width * 4000) ** -0.5, warmup=0.04
        )

    def build_encoder(self, vocab_size: int) -> "TransformerEncoder":
        return TransformerEncoder(self, vocab_size)

    def build_decoder(
        self, encoder: Encoder, vocab_size: int, *, shared_vocabulary: bool = False
    ) -> "TransformerDecoder":
        return TransformerDecoder(self, encoder, vocab_size, shared=shared_vocabulary and self.tie_embeddings)

    def special_tokens(self, tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]]:
        """A [SEP], or A [SEP] B [SEP]."""
        return [], [tokenizer.sep_id], [tokenizer.sep_id]


@lru_cache(maxsize=8)
def sinusoidal_positions(length: int, width: int, device: torch.device) -> Tensor:
    """[length, width]: PE(pos, 2i) = sin(pos / 10000^(2i / width)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / width))."""
    with torch.inference_mode(False):
        position = torch.arange(length, dtype=torch.float64, device=device)[:, None]
        angle = position / 10_000 ** (torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()


def learned_positions(table: nn.Embedding, batch: TokenBatch) -> Tensor:
    """[time, width] position embeddings, or [1, tokens, width] of a packed batch."""
    return table.weight[: batch.ids.shape[1]] if batch.position_ids is None else table(batch.position_ids)


class PositionEmbedding(nn.Module):
    """Input embeddings: x sqrt(width) + the position encoding, then dropout."""

    def __init__(self, system: Transformer):
        super().__init__()
        self.max_positions, self.kind = system.max_positions, system.position_encoding
        self.learned = nn.Embedding(self.max_positions, system.width) if self.kind == "learned" else None
        self.dropout = FastDropout(system.dropout)

    def forward(self, words: Tensor, begin: int = 0) -> Tensor:
        """[batch, time, width] to the same; `begin` is the position of the first token."""
        end, width = begin + words.shape[1], words.shape[2]
        if end > self.max_positions:
            remedy = "shorten it, or train with a larger --system.max_positions"
            raise KeelError(
                f"a sequence of {end} tokens exceeds this model's maximum of {self.max_positions}: {remedy}"
            )
        x = words * width**0.5
        if self.learned is not None:
            x = x + self.learned.weight[begin:end]
        elif self.kind == "sinusoidal":
            x = x + sinusoidal_positions(self.max_positions, width, words.device)[begin:end]
        return self.dropout(x)


def initialize(module: nn.Module) -> None:
    """Xavier uniform for matrices, zero biases; embeddings N(0, 1 / width), to be scaled up by sqrt(width)."""
    if isinstance(module, nn.Linear):
        for part in module.weight.chunk(getattr(module, "parts", 1)):
            nn.init.xavier_uniform_(part)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


class TransformerEncoder(Encoder):
    """Word and position embeddings, then an `EncoderStack`."""

    def __init__(self, system: Transformer, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, system.width
        self.words = nn.Embedding(vocab_size, system.width)
        self.positions = PositionEmbedding(system)
        self.stack = EncoderStack.build(system, pre_norm=system.pre_norm)
        # The residual stream of pre-norm blocks passes no norm but this one.
        self.norm = nn.LayerNorm(system.width, eps=system.norm_epsilon) if system.pre_norm else nn.Identity()
        self.apply(initialize)

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.positions(self.words(batch.ids))

    def contextualize(
        self, vectors: Tensor, batch: TokenBatch, options: ForwardOptions = ForwardOptions()
    ) -> EncoderOutput:
        top, layers = self.stack(vectors, padding_mask(batch), options)
        top = self.norm(top)
        if options.all_layers:
            layers[-1] = top
        return EncoderOutput(top=top, layers=layers)


class TransformerDecoder(Decoder):
    """Word and position embeddings, a `DecoderStack` with cross-attention, and a softmax, tied or not."""

    def __init__(self, system: Transformer, encoder: Encoder, vocab_size: int, *, shared: bool):
        super().__init__(encoder, vocab_size, system.width, shared=shared)
        self.max_positions = system.max_positions
        self.output = None if system.tie_embeddings else nn.Linear(system.width, vocab_size, bias=False)
        self.positions = PositionEmbedding(system)
        self.stack = DecoderStack.build(system, system.decoder_layers, pre_norm=system.pre_norm, cross_attention=True)
        self.norm = nn.LayerNorm(system.width, eps=system.norm_epsilon) if system.pre_norm else nn.Identity()
        self.apply(initialize)

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)

    def project_source(self, output: EncoderOutput, batch: TokenBatch) -> EncoderMemory:
        return self.stack.project_memory(output.top, batch)

    def new_state(self, source: Tensors, batch_size: int) -> KVCache:
        assert isinstance(source, EncoderMemory)
        shape = source.vectors.shape
        # Little spare room: beam search copies the cache at every step.
        return KVCache(memory=source.vectors.new_empty((batch_size, *shape[1:4], 0, shape[5])), spare=8)

    def forward(
        self, ids: Tensor, source: Tensors, state: KVCache | None = None, *, record: Recorder | None = None
    ) -> tuple[Tensor, KVCache | None]:
        """A state is extended in place, without gradients: to decode from it twice, copy it by `index_select`."""
        assert isinstance(source, EncoderMemory)
        assert state is None or not torch.is_grad_enabled(), "a KV cache is for inference"
        begin, time = 0 if state is None else state.count, ids.shape[1]
        x = self.positions(F.embedding(ids, self.word_embeddings()), begin)
        state = state and state.with_room(time, self.max_positions, state.memory.dtype)
        x, _ = self.stack(x, ForwardOptions(state=state, record=record), source)
        return self.norm(x), state and state.advanced(time)

    def logits(self, vectors: Tensor) -> Tensor:
        return F.linear(vectors, self.word_embeddings() if self.output is None else self.output.weight)
