"""ModernBERT (Warner et al., 2024): BERT's masked language model on the Transformer block of current decoders.

New then for encoders: rotary positions (Su et al., 2021), gated feed-forward layers (GEGLU; Shazeer, 2020), norms
before sub-layers and no biases; most layers attend to a window of neighbours only, which makes long texts affordable.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Count, Dropout, Ge, Gt, Le, Lt
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.nn.encoder import EncoderOutput, ForwardOptions
from keel.nn.multihead_attention import MultiHeadAttention
from keel.nn.pooling import pool_tokens
from keel.nn.transformer_blocks import TransformerBlock
from keel.systems.bert import Bert, BertEncoder, BertPretraining, Layers
from keel.training.plan import Train

Theta = Annotated[float, Gt(1)]


@dataclass(frozen=True, kw_only=True)
class ModernBert(Bert):
    """The hyper-parameters of ModernBERT; the defaults are ModernBERT-base."""

    layers: Layers = 22
    mlp_ratio: Annotated[float, Gt(0)] = 1.5
    dropout: Dropout = 0.0
    attention_dropout: Dropout = 0.0
    norm_epsilon: Annotated[float, Gt(0)] = 1e-5
    max_positions: Count = 8192
    """Maximum sequence length; there is no table of positions."""
    sequence_length: Annotated[int, Ge(8), Le(65_536)] = 128
    final_sequence_length: Annotated[int, Ge(0), Le(65_536)] = 0
    """Sequence length of the last steps, which adapt the model to longer texts; 0 for none."""
    segment_types: Annotated[int, Ge(1), Le(1)] = 1
    """One: there are no segment embeddings."""
    global_attn_every_n_layers: Count = 3
    """Every n-th layer, from the first on, has global attention, over the whole sequence; the others have local
    attention."""
    local_attention: Annotated[int, Ge(2), Le(65_536)] = 128
    """Window of local attention, in tokens: half of it to either side."""
    global_rope_theta: Theta = 160_000.0
    """Base of the rotary wavelengths in layers with global attention."""
    local_rope_theta: Theta = 10_000.0
    """Base of the rotary wavelengths in layers with local attention."""
    classifier_pooling: Literal["cls", "mean"] = "mean"
    """What the pooled output is computed from: the vector of [CLS], or the mean over tokens."""
    sandwich_norm: bool = False
    """Layer norm after each sub-layer too, before the sum (sandwich norm); transformers cannot load such a model."""
    mask_rate: Annotated[float, Gt(0), Lt(1)] = 0.3
    pair_objective: Literal["none", "segments"] = "none"
    """segments: pairs of segments A and B, without a loss of their own; none: single segments."""
    variant: Literal["bert"] = "bert"

    name = "modernbert"
    year = 2024
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "base": {"layers": 22, "width": 768, "mlp_ratio": 1.5},
        "large": {"layers": 28, "width": 1024, "mlp_ratio": 2624 / 1024},
    }
    # As published, but for the batch of 4,608 and its learning rate of 8e-4, which go with a thousand times more text.
    pretraining_defaults = Train(
        steps=1_000_000, batch=256, lr=3e-4, warmup=0.01, schedule="trapezoid", weight_decay=1e-5
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim % 2:
            what = f"rotary positions turn pairs of numbers, and head_dim {self.head_dim} is odd"
            raise UsageError(f"{what}: choose an even one")

    @property
    def finetuning_fields(self) -> tuple[str, ...]:
        return (*super().finetuning_fields, "classifier_pooling")

    def build_encoder_block(self, number: int, *, pre_norm: bool = True) -> "ModernBertBlock":
        is_global = number % self.global_attn_every_n_layers == 0
        return ModernBertBlock(
            **self.block_settings,
            pre_norm=True,
            rope_theta=self.global_rope_theta if is_global else self.local_rope_theta,
            window=0 if is_global else self.local_attention,
            follows_norm=number == 0,
            sandwich_norm=self.sandwich_norm,
        )

    def build_encoder(self, vocab_size: int) -> "ModernBertEncoder":
        return ModernBertEncoder(self, vocab_size)

    def build_objective(  # pyright: ignore[reportIncompatibleMethodOverride] - its head is in the encoder
        self, encoder: "ModernBertEncoder", tokenizer: Tokenizer
    ) -> "ModernBertPretraining":
        return ModernBertPretraining(self, encoder, tokenizer)


def rotary_positions(x: Tensor, theta: float) -> Tensor:
    """Rotary position embedding of x [..., time, head_dim]: at position m, the pair (x_i, x_{i + d/2}) is turned by the
    angle m theta^(-2i / d), so that a product of query and key depends on their distance alone."""
    time, width = x.shape[-2:]
    cos, sin = _rotations(_rounded(time), width, theta, x.device, x.dtype)
    return torch.addcmul(x * cos[:time], x.roll(width // 2, -1), sin[:time])


@lru_cache(maxsize=64)
def _rotations(
    length: int, width: int, theta: float, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """[length, width] cos and sin of the angles; sin has the sign of the other half of the pair."""
    with torch.inference_mode(False):
        frequency = theta ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
        angle = torch.arange(length, dtype=torch.float64, device=device)[:, None] * frequency
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)


@lru_cache(maxsize=16)
def _neighbours(length: int, distance: int, device: torch.device) -> Tensor:
    """[length, length] whether two positions are at most this far apart."""
    with torch.inference_mode(False):
        position = torch.arange(length, device=device)
        return (position[:, None] - position).abs() <= distance


def _rounded(length: int) -> int:
    """The next power of two: few tables serve all lengths."""
    return 1 << max(0, length - 1).bit_length()


class RotaryAttention(MultiHeadAttention):
    """Self-attention with rotary positions, over the whole sequence or, with a `window`, half of it to either side."""

    def __init__(self, width: int, heads: int, dropout: float, *, theta: float, window: int = 0):
        super().__init__(width, heads, dropout, bias=False)
        self.theta = theta
        self.window = window

    def add_positions(self, x: Tensor) -> Tensor:
        return rotary_positions(x, self.theta)

    def window_mask(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        distance = self.window // 2
        if not self.window or max(queries, keys) <= distance + 1:
            return None
        return _neighbours(_rounded(max(queries, keys)), distance, device)[:queries, :keys]


class GatedLinear(nn.Linear):
    """The two expanding matrices of a gated feed-forward network in one; a matrix optimizer splits them."""

    parts: ClassVar[int] = 2


class ModernBertBlock(TransformerBlock):
    """x + Attention(LayerNorm(x)), then x + FFN_GEGLU(LayerNorm(x)), without biases."""

    def build_layers(
        self,
        width: int,
        heads: int,
        hidden: int,
        attention_dropout: float,
        epsilon: float,
        *,
        causal: bool = False,
        rope_theta: float = 10_000.0,
        window: int = 0,
        follows_norm: bool = False,
        sandwich_norm: bool = False,
    ) -> None:
        assert not causal

        def norm(wanted: bool = True) -> Any:
            return nn.LayerNorm(width, eps=epsilon, bias=False) if wanted else nn.Identity()

        self.attention = RotaryAttention(width, heads, attention_dropout, theta=rope_theta, window=window)
        self.attention_norm = norm(not follows_norm)  # the first block follows that of the embeddings
        self.expand = GatedLinear(width, 2 * hidden, bias=False)
        self.contract = nn.Linear(hidden, width, bias=False)
        self.output_norm = norm()
        self.after_attention, self.after_feed_forward = norm(sandwich_norm), norm(sandwich_norm)

    def residual(self, norm: nn.LayerNorm, x: Tensor, layer: Any, skip: Tensor | None = None) -> Tensor:
        after = self.after_attention if norm is self.attention_norm else self.after_feed_forward
        if isinstance(after, nn.Identity):
            return super().residual(norm, x, layer, skip)
        return super().residual(norm, x, lambda y: after(layer(y).to(x.dtype)), skip)  # norms stay fp32

    def activate(self, hidden: Tensor) -> Tensor:
        """FFN_GEGLU(x) = (GELU(x W) * x V) W_2."""
        hidden, gate = hidden.chunk(2, -1)
        return self.activation(hidden) * gate

    @property
    def fusible(self) -> bool:
        return False


class ModernBertHead(nn.Module):
    """LayerNorm(GELU(W x)): the layer between the encoder and every linear head, that of the masked language model
    too."""

    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.dense = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width, eps=epsilon, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        return self.norm(F.gelu(self.dense(vectors)))


class ModernBertEncoder(BertEncoder):
    """Word embeddings and their norm, then blocks and a final norm; the pooled output is `ModernBertHead` on the vector
    of [CLS] or on the mean over tokens."""

    pooler: ModernBertHead

    def __init__(self, system: ModernBert, vocab_size: int):
        super().__init__(system, vocab_size)
        self.classifier_pooling = system.classifier_pooling
        self.final_norm = nn.LayerNorm(system.width, eps=system.norm_epsilon, bias=False)
        std = 0.02 / math.sqrt(2 * system.layers)  # of all that adds to the residual stream, as in GPT-2
        outputs = [layer for block in self.stack.blocks for layer in (block.attention.out, block.contract)]
        for layer in (*outputs, self.pooler.dense):
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)

    def build_input_layers(self, system: Bert) -> None:
        self.positions = self.segments = None
        self.norm = nn.LayerNorm(system.width, eps=system.norm_epsilon, bias=False)

    def build_pooler(self, system: Bert) -> ModernBertHead:
        return ModernBertHead(system.width, system.norm_epsilon)

    def embed_words(self, words: Tensor, batch: TokenBatch) -> Tensor:
        return self.dropout(self.norm(words))

    def contextualize(
        self, vectors: Tensor, batch: TokenBatch, options: ForwardOptions = ForwardOptions()
    ) -> EncoderOutput:
        output = super().contextualize(vectors, batch, options)
        top = self.final_norm(output.top)
        return EncoderOutput(top=top, layers=[*output.layers[:-1], top] if options.all_layers else [])

    @property
    def projects_tokens(self) -> bool:
        return True

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        return pool_tokens(output.top, batch, "first" if self.classifier_pooling == "cls" else "mean")

    def pooled_features(self, batch: TokenBatch) -> Tensor:
        if self.classifier_pooling == "mean":
            return self.pool_features(self(batch), batch)
        return self.final_norm(super().pooled_features(batch))

    def pool_projection(self, features: Tensor) -> Tensor:
        return self.pooler(features)


class ModernBertPretraining(BertPretraining):
    """BERT's masked language model; the layer before the softmax is the encoder's pooler, which fine-tuning keeps."""

    encoder: ModernBertEncoder  # pyright: ignore[reportIncompatibleVariableOverride] - it is never replaced

    def build_heads(self, system: Bert) -> None:
        self.bias = nn.Parameter(torch.zeros(self.vocab_size))

    @property
    def mlm_layers(self) -> tuple[nn.Module, nn.Module]:
        return self.encoder.pooler.dense, self.encoder.pooler.norm

    def mlm_transform(self, vectors: Tensor) -> Tensor:
        return self.encoder.pooler(vectors)
