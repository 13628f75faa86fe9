"""Transformer layers: the encoder's block, the decoder's block, and a stack of either.

Dimensions in the comments: batch, time, width, hidden = the width of the feed-forward layer.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.kernels.attention import WIDTHS
from keel.kernels.attention_varlen import PackedSpans
from keel.kernels.dropout import HashDropout
from keel.kernels.feed_forward import feed_forward
from keel.kernels.layer_norm import add_norm, add_then_norm, layer_norm
from keel.nn.multihead_attention import ExtendCache, FastDropout, LayerRecorder, MultiHeadAttention, product_dtype

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class TransformerBlock(nn.Module):
    """Encoder layer: LayerNorm(x + Sublayer(x)) for self-attention, then for a position-wise feed-forward network.

    As published the norm comes after the sum (post-norm); `pre_norm`: x + Sublayer(LayerNorm(x)), as in GPT-2.
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        hidden: int,
        dropout: float,
        attention_dropout: float,
        activation: Activation,
        epsilon: float,
        pre_norm: bool = False,
        **layers: Any,
    ):
        super().__init__()
        self.pre_norm = pre_norm
        self.activation_name: Activation = activation
        self.activation = ACTIVATIONS[activation]
        self.build_layers(width, heads, hidden, attention_dropout, epsilon, **layers)
        self.dropout = FastDropout(dropout)

    def build_layers(
        self, width: int, heads: int, hidden: int, attention_dropout: float, epsilon: float, *, causal: bool = False
    ) -> None:
        """The layers that have weights."""
        self.attention = MultiHeadAttention(width, heads, attention_dropout, causal=causal)
        self.attention_norm = nn.LayerNorm(width, eps=epsilon)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.output_norm = nn.LayerNorm(width, eps=epsilon)

    def forward(
        self, x: Tensor, mask: Tensor | None, record: LayerRecorder | None = None, query_count: int = 0
    ) -> Tensor:
        """[batch, time, width] to the same, or to the first `query_count` positions only."""
        queries = x[:, :query_count] if query_count else x
        x = self.residual(self.attention_norm, x, lambda x: self.attention(x, mask, record, query_count), queries)
        return self.residual(self.output_norm, x, self.feed_forward)

    def residual(
        self, norm: nn.LayerNorm, x: Tensor, layer: Callable[[Tensor], Tensor], skip: Tensor | None = None
    ) -> Tensor:
        """A sub-layer with its residual connection and norm; `skip` is the residual stream, if it is not x."""
        skip = x if skip is None else skip
        if self.pre_norm:
            return skip + self.dropout(layer(norm(x)))
        return norm(skip + self.dropout(layer(x)))

    def feed_forward(self, x: Tensor) -> Tensor:
        """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, or with another activation."""
        return self.contract(self.activate(self.expand(x)))

    def activate(self, hidden: Tensor) -> Tensor:
        """The activation function between the two matrices of the feed-forward network."""
        return self.activation(hidden)

    @property
    def fusible(self) -> bool:
        """Whether there are kernels for all of its operations."""
        return self.activation_name in ("gelu", "gelu_tanh") and self.attention.head_dim in WIDTHS

    def fused(self, x: Tensor, spans: PackedSpans, seed: Tensor | None) -> Tensor:
        """A post-norm block by kernels: packed [tokens, width] to the same.

        The kernel after a product adds its bias (but for attention) and computes the bias's gradient.
        """
        y, x = self.attention.fused(x, spans, seed)
        x = add_norm(x, y, self.attention.out.bias, self.attention_norm, self._hash_dropout(seed, 1))
        y, x = self._fused_feed_forward(x)
        return add_norm(x, y, self.contract.bias, self.output_norm, self._hash_dropout(seed, 2))

    def fused_pre_norm(
        self, x: Tensor, normed: Tensor, following: nn.LayerNorm, spans: PackedSpans, seed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """A pre-norm block by kernels: the residual stream [tokens, width] and its norm by this block, to the stream
        after the block and its norm by the `following` layer."""
        y, _ = self.attention.fused(normed, spans, seed)
        x, y = add_then_norm(x, y, self.attention.out.bias, self.output_norm, self._hash_dropout(seed, 1))
        y, _ = self._fused_feed_forward(y)
        return add_then_norm(x, y, self.contract.bias, following, self._hash_dropout(seed, 2))

    def _fused_feed_forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`feed_forward` before its last bias, and x, to be added."""
        tanh = self.activation_name == "gelu_tanh"
        return feed_forward(x, self.expand.weight, self.expand.bias, self.contract.weight, tanh=tanh)

    def _hash_dropout(self, seed: Tensor | None, salt: int) -> HashDropout:
        return HashDropout(self.dropout.p if self.training else 0.0, seed, salt)


class DecoderBlock(TransformerBlock):
    """Decoder layer: causal self-attention, cross-attention to the encoder's output, feed-forward network.

    Without `cross_attention` it is the layer of a decoder-only language model.
    """

    def __init__(self, *, cross_attention: bool = True, **settings: Any):
        super().__init__(causal=True, **settings)
        width, heads = settings["width"], settings["heads"]
        self.cross = MultiHeadAttention(width, heads, settings["attention_dropout"]) if cross_attention else None
        self.cross_norm = nn.LayerNorm(width, eps=settings["epsilon"]) if cross_attention else None

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - the mask is that of the source
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        past: ExtendCache | None = None,
        record: LayerRecorder | None = None,
    ) -> Tensor:
        """[batch, time, width] to the same; `memory` is [sources, 2, heads, source time, head_dim] and `mask` its
        padding mask."""
        prefix = "" if self.cross is None else "masked_"
        shown = record and (lambda name, value: record(prefix + name, value))
        x = self.residual(self.attention_norm, x, lambda x: self.attention(x, None, shown, past=past))
        if self.cross_norm is not None:
            assert memory is not None
            x = self.residual(self.cross_norm, x, lambda x: self.cross_attend(x, memory, mask, record))
        return self.residual(self.output_norm, x, self.feed_forward)

    def project_memory(self, top: Tensor) -> Tensor:
        """[sources, 2, heads, time, head_dim]: keys and values of the encoder's output [sources, time, width]."""
        assert self.cross is not None
        return self.cross.keys_and_values(top).transpose(0, 1)

    def cross_attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, record: LayerRecorder | None) -> Tensor:
        """Cross-attention: queries of x, keys and values of the source. Beams of one source share its memory."""
        assert self.cross is not None
        batch, time, width = x.shape

        def record_cross(name: str, value: Tensor) -> None:  # [sources, heads, beams x time, source time]
            assert record is not None
            record(f"cross_{name}", value.unflatten(2, (-1, time)).transpose(1, 2).flatten(0, 1))

        q = self.cross.queries(x.reshape(len(memory), -1, width))
        mixed = self.cross.attend(q, memory[:, 0], memory[:, 1], mask, record_cross if record else None)
        return mixed.view(batch, time, width)


class TransformerStack(nn.ModuleList):
    """Blocks one above the other."""

    @property
    def blocks(self) -> list[TransformerBlock]:
        return [block for block in self if isinstance(block, TransformerBlock)]

    @property
    def fusible(self) -> bool:
        """Whether there are kernels for all blocks."""
        return all(block.fusible for block in self.blocks)

    def run_fused(
        self, x: Tensor, spans: PackedSpans, *, all_layers: bool = False, top: nn.LayerNorm | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """The same by kernels, on padded or packed sequences.

        With pre-norm blocks, `top` is the norm above the last one: each norm is fused with the sum before it. The
        residual stream stays fp32, as what is added is small beside it.
        """
        shape, x = x.shape, x.flatten(0, -2)
        # One dropout seed per block: the mask follows from it and from the position of each element.
        seeds = torch.randint(2**31, (len(self),), device=x.device) if self.training else [None] * len(self)
        layers = [x.view(shape)] if all_layers else []
        norms = [block.attention_norm for block in self.blocks]
        y = x if top is None else layer_norm(x, norms[0], out_dtype=product_dtype(x))
        for number, (block, seed) in enumerate(zip(self.blocks, seeds, strict=True)):
            if top is None:
                x = y = block.fused(x, spans, seed)
            else:
                x, y = block.fused_pre_norm(x, y, [*norms[1:], top][number], spans, seed)
            if all_layers:
                layers.append(x.view(shape))
        return y.view(shape), layers
