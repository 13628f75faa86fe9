"""What every descendant of the Transformer is built of: multi-head attention and blocks of it, one above the other.

Dimensions in the comments: batch, time, width = heads x head width, hidden = the feed-forward layer's width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.token_batch import TokenBatch
from keel.kernels import triton_usable
from keel.kernels.attention import WIDTHS, attend
from keel.kernels.branch_linear import branch_linear
from keel.kernels.feed_forward import feed_forward
from keel.kernels.layer_norm import add_norm
from keel.nn.encoder import Recorder
from keel.nn.kv_cache import KVCache, LayerCache
from keel.training.objective import Tensors

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
Record = Callable[[str, Tensor], None]


@dataclass(frozen=True, kw_only=True)
class PackedSpans(Tensors):
    """Where the rows of a batch lie in one long row of tokens."""

    starts: Tensor  # [batch]
    lengths: Tensor  # [batch]
    max_seqlen: int
    even: bool = False
    """Whether a row begins at every multiple of `longest`."""

    @classmethod
    def from_batch(cls, batch: TokenBatch) -> Self:
        if batch.sequence_starts is not None:
            return cls(starts=batch.sequence_starts, lengths=batch.lengths, max_seqlen=batch.max_seqlen)
        count, time = batch.ids.shape
        starts = torch.arange(0, count * time, time, device=batch.ids.device)
        return cls(starts=starts, lengths=batch.lengths, max_seqlen=time, even=True)


def padding_mask(batch: TokenBatch) -> Tensor | None:
    """[batch, 1, 1, time], True where there is something to look at; None where no row is padded."""
    time = batch.ids.shape[1]
    if not batch.lengths.is_cuda and bool((batch.lengths == time).all()):
        return None
    return (torch.arange(time, device=batch.ids.device) < batch.lengths[:, None])[:, None, None]


def use_kernels(x: Tensor) -> bool:
    """Whether our kernels pay: on a GPU, where products run in half precision."""
    return x.is_cuda and torch.is_autocast_enabled("cuda") and triton_usable(x)


def product_dtype(x: Tensor) -> torch.dtype:
    """What products give where x is."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class Dropout(nn.Module):
    """Zero a share p of all numbers and scale the others up; on a CPU four draws are cut from one random integer.

    Torch's own CPU kernel draws number by number and takes a tenth of a training step.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or x.is_cuda or torch.compiler.is_compiling():
            return F.dropout(x, self.p, self.training)
        count = x.numel()
        integers = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
        draws = integers.view(torch.int16)[:count].view(x.shape)  # from -32768 to 32767
        return x * ((draws >= round(self.p * 65536) - 32768).to(x.dtype) * (1 / (1 - self.p)))


class FusedQKV(nn.Linear):
    """Queries, keys and values by one product; an optimizer that works on whole matrices takes the three apart."""

    parts: ClassVar[int] = 3


class MultiHeadAttention(nn.Module):
    """Multi-head attention: softmax(Q K^T / sqrt(d)) V in every head, heads side by side, then one matrix over them.

    `causal`: a place sees itself and those before it; padding comes last, so that nobody sees it.
    """

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool = False):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.causal = causal
        self.qkv = FusedQKV(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        record: Record | None = None,
        query_count: int = 0,
        past: LayerCache | None = None,
    ) -> Tensor:
        """[batch, time, width] to the same, or to its first `asking` places if only they ask; they come after `past`,
        into which they are written."""
        assert not (query_count and self.causal), "`mix` takes those who ask for the last places"
        q, k, v = (
            (self.queries(x[:, :query_count]), *self.keys_and_values(x))
            if query_count
            else self.split_heads(self.qkv(x))
        )
        if past is not None:
            k, v = past.extend(k, v)
        return self.attend(q, k, v, mask, record)

    def queries(self, x: Tensor) -> Tensor:
        """[batch, heads, time, head width]: what each place asks."""
        width = x.shape[-1]
        return self.split_heads(F.linear(x, self.qkv.weight[:width], self.qkv.bias[:width]))[0]

    def keys_and_values(self, x: Tensor) -> Tensor:
        """[2, batch, heads, time, head width]: what each place answers to, and what it says."""
        width = x.shape[-1]
        return self.split_heads(F.linear(x, self.qkv.weight[width:], self.qkv.bias[width:]))

    def split_heads(self, projected: Tensor) -> Tensor:
        """[batch, time, n x width] as [n, batch, heads, time, head width]."""
        batch, time, _ = projected.shape
        return projected.view(batch, time, -1, self.heads, self.qkv.in_features // self.heads).permute(2, 0, 3, 1, 4)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, record: Record | None = None) -> Tensor:
        """[batch, asking, width]: what every query gets of the values that it may see, the heads through one matrix."""
        time, before = q.shape[2], k.shape[2] - q.shape[2]
        if self.causal:
            assert mask is None
            if time > 1 and (before or record is not None):
                mask = torch.ones(time, before + time, dtype=torch.bool, device=q.device).tril(before)
        if record is not None:
            record("attention", self.weights(q, k, mask))
        fresh = self.causal and not before and time > 1  # torch knows this mask, and need not read it
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=None if fresh else mask, dropout_p=dropout, is_causal=fresh
        )
        return self.out(mixed.transpose(1, 2).flatten(2))

    def fused(self, x: Tensor, spans: PackedSpans, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        """[tokens, width] to the same, before the bias of the last matrix, and x once more: what follows adds them."""
        dropout = self.dropout if self.training else 0.0
        qkv, x = branch_linear(x, self.qkv.weight, self.qkv.bias)
        mixed = attend(
            qkv,
            self.qkv.bias,
            spans.starts,
            spans.lengths,
            max_seqlen=spans.max_seqlen,
            heads=self.heads,
            dropout=dropout,
            seed=seed,
            causal=self.causal,
            fixed_length=spans.even,
        )
        return F.linear(mixed, self.out.weight), x

    @staticmethod
    def weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """alpha = softmax(q k^T / sqrt(d)): [batch, heads, time, time], what the fused kernel never writes down."""
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)


class TransformerBlock(nn.Module):
    """One layer: self-attention, then a two-layer network at every position, each inside a residual and a norm.

    As published the norm comes after the sum (post-norm); `pre_norm` puts it before the sub-layer, as GPT-2 does.
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
        causal: bool = False,
    ):
        super().__init__()
        self.pre_norm = pre_norm
        self.activation_name: Activation = activation
        self.activation = ACTIVATIONS[activation]
        self.attention = MultiHeadAttention(width, heads, attention_dropout, causal=causal)
        self.attention_norm = nn.LayerNorm(width, eps=epsilon)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.output_norm = nn.LayerNorm(width, eps=epsilon)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        record: Record | None = None,
        query_count: int = 0,
        past: LayerCache | None = None,
    ) -> Tensor:
        """[batch, time, width] to the same, or to its first `asking` places alone."""
        asked = x[:, :query_count] if query_count else x
        x = self.residual(self.attention_norm, x, lambda x: self.attention(x, mask, record, query_count, past), asked)
        return self.residual(self.output_norm, x, self.feed_forward)

    def residual(
        self, norm: nn.LayerNorm, x: Tensor, layer: Callable[[Tensor], Tensor], kept: Tensor | None = None
    ) -> Tensor:
        """A sub-layer inside its residual and its norm; `kept` is what it is added to, if that is not x."""
        kept = x if kept is None else kept
        if self.pre_norm:
            return kept + self.dropout(layer(norm(x)))
        return norm(kept + self.dropout(layer(x)))

    def fused(self, x: Tensor, spans: PackedSpans, seed: Tensor | None) -> Tensor:
        """The same block by our kernels, on tokens end to end: [tokens, width] to the same.

        What follows a product finds the gradient of its bias on the way back and, but for attention, adds the bias.
        """
        dropout = self.dropout.p if self.training else 0.0

        def add(y: Tensor, x: Tensor, bias: Tensor, norm: nn.LayerNorm, salt: int) -> Tensor:
            settings: dict[str, Any] = {"epsilon": norm.eps, "dropout": dropout, "seed": seed, "salt": salt}
            return add_norm(x, y, bias, norm.weight, norm.bias, **settings)

        x = add(*self.attention.fused(x, spans, seed), self.attention.out.bias, self.attention_norm, 1)
        return add(*self.feed_forward_fused(x), self.contract.bias, self.output_norm, 2)

    def feed_forward_fused(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`feed_forward` before its last bias, and x once more."""
        tanh = self.activation_name == "gelu_tanh"
        return feed_forward(x, self.expand.weight, self.expand.bias, self.contract.weight, tanh=tanh)

    @property
    def fusible(self) -> bool:
        """Whether there are kernels for all of it."""
        width = self.attention.out.in_features // self.attention.heads
        return not self.pre_norm and self.activation_name in ("gelu", "gelu_tanh") and width in WIDTHS

    def feed_forward(self, x: Tensor) -> Tensor:
        """max(0, x W1 + b1) W2 + b2, with the activation of the system's choice."""
        return self.contract(self.activation(self.expand(x)))


class TransformerStack(nn.ModuleList):
    """Blocks one above the other: what reads."""

    def run(
        self,
        x: Tensor,
        mask: Tensor | None,
        *,
        all_layers: bool = False,
        record: Recorder | None = None,
        query_count: int = 0,
        cache: KVCache | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """The top vectors (of the first `asking` places alone, if given) and, if wanted, every layer's; a cache has
        room for these places, and is written on."""
        layers = [x] if all_layers else []
        for number, block in enumerate(self):
            shown = None if record is None else lambda name, value, layer=number: record(name, layer, value)
            past = None if cache is None else cache.layer(number)
            x = block(x, mask, shown, query_count if number == len(self) - 1 else 0, past)
            if all_layers:
                layers.append(x)
        return x, layers

    @property
    def fusible(self) -> bool:
        """Whether there are kernels for all blocks."""
        return all(block.fusible for block in self)

    def run_fused(self, x: Tensor, spans: PackedSpans, *, all_layers: bool = False) -> tuple[Tensor, list[Tensor]]:
        """The same by our kernels, for rows padded or packed."""
        shape = x.shape
        x = x.flatten(0, -2)
        # One seed a block: what is dropped follows from it and from each number's place.
        seeds = torch.randint(2**31, (len(self),), device=x.device) if self.training else None
        layers = [x.view(shape)] if all_layers else []
        for number, block in enumerate(self):
            assert isinstance(block, TransformerBlock)
            x = block.fused(x, spans, None if seeds is None else seeds[number])
            if all_layers:
                layers.append(x.view(shape))
        return x.view(shape), layers
