"""Multi-head attention (Vaswani et al. 2017), eager and by fused kernels, on padded or packed batches.

Dimensions in the comments: batch, time, width = heads x head_dim.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.token_batch import TokenBatch
from keel.kernels import attention_dropout, triton_usable
from keel.kernels.attention import attend
from keel.kernels.attention_varlen import PackedSpans
from keel.kernels.branch_linear import branch_linear
from keel.kernels.dropout import HashDropout

LayerRecorder = Callable[[str, Tensor], None]
"""A `Recorder` of one layer."""
ExtendCache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""`KVCache.extend` of one layer."""


def packed_spans(batch: TokenBatch) -> PackedSpans:
    """Where the sequences of a padded or packed batch lie."""
    if batch.sequence_starts is not None:
        return PackedSpans(batch.sequence_starts, batch.lengths, batch.max_seqlen)
    count, time = batch.ids.shape
    starts = torch.arange(0, count * time, time, device=batch.ids.device)
    return PackedSpans(starts, batch.lengths, time, uniform=True)


def padding_mask(batch: TokenBatch) -> Tensor | None:
    """[batch, 1, 1, time] attention mask, True at tokens and False at padding; None without padding."""
    time = batch.ids.shape[1]
    if not batch.lengths.is_cuda and bool((batch.lengths == time).all()):
        return None
    return (torch.arange(time, device=batch.ids.device) < batch.lengths[:, None])[:, None, None]


def use_kernels(x: Tensor) -> bool:
    """Whether fused kernels are usable and faster: on a GPU under half-precision autocast."""
    return x.is_cuda and torch.is_autocast_enabled("cuda") and triton_usable(x)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products with x, under the current autocast."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class FastDropout(nn.Module):
    """Dropout with probability p; on a CPU four samples are cut from one random integer.

    Torch's CPU kernel samples element by element and takes a tenth of a training step.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or x.is_cuda or torch.compiler.is_compiling():
            return F.dropout(x, self.p, self.training)
        count = x.numel()
        integers = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
        samples = integers.view(torch.int16)[:count].view(x.shape)  # from -32768 to 32767
        return x * ((samples >= round(self.p * 65536) - 32768).to(x.dtype) * (1 / (1 - self.p)))


class FusedQKV(nn.Linear):
    """Query, key and value projections in one matrix; a matrix optimizer such as Muon splits it into `parts`."""

    parts: ClassVar[int] = 3


class MultiHeadAttention(nn.Module):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V in every head; MultiHead = Concat(head_1, ..., head_h) W^O.

    `causal`: a position attends to itself and earlier ones; padding comes last, so that no token attends to it.
    """

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool = False, bias: bool = True):
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.dropout = dropout
        self.causal = causal
        self.qkv = FusedQKV(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        record: LayerRecorder | None = None,
        query_count: int = 0,
        past: ExtendCache | None = None,
    ) -> Tensor:
        """Self-attention: [batch, time, width] to the same, or to the first `query_count` positions only.

        `past` adds the keys and values of x to those of earlier positions.
        """
        assert not (query_count and self.causal), "with a causal mask, queries are the last positions"
        if query_count:
            q, k, v = self.queries(x[:, :query_count]), *self.keys_and_values(x)
        else:
            q, k, v = self.split_heads(self.qkv(x))
        q, k = self.add_positions(q), self.add_positions(k)
        if past is not None:
            k, v = past(k, v)
        return self.attend(q, k, v, mask, record)

    def queries(self, x: Tensor) -> Tensor:
        """[batch, heads, time, head_dim]."""
        width, bias = x.shape[-1], self.qkv.bias
        return self.split_heads(F.linear(x, self.qkv.weight[:width], None if bias is None else bias[:width]))[0]

    def keys_and_values(self, x: Tensor) -> Tensor:
        """[2, batch, heads, time, head_dim]."""
        width, bias = x.shape[-1], self.qkv.bias
        return self.split_heads(F.linear(x, self.qkv.weight[width:], None if bias is None else bias[width:]))

    def split_heads(self, projected: Tensor) -> Tensor:
        """[batch, time, n x width] to [n, batch, heads, time, head_dim]."""
        batch, time, _ = projected.shape
        return projected.view(batch, time, -1, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)

    def add_positions(self, x: Tensor) -> Tensor:
        """Queries or keys [..., time, head_dim] of the first positions, with these positions in them; by default
        positions are in the input embeddings alone."""
        return x

    def window_mask(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """[queries, keys] True where the first positions may attend to each other; None: everywhere."""
        return None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, record: LayerRecorder | None = None
    ) -> Tensor:
        """[batch, queries, width] of queries, keys and values [batch, heads, time, head_dim]."""
        time, before = q.shape[2], k.shape[2] - q.shape[2]
        if self.causal:
            assert mask is None
            if time > 1 and (before or record is not None):
                mask = torch.ones(time, before + time, dtype=torch.bool, device=q.device).tril(before)
        if (window := self.window_mask(time, k.shape[2], q.device)) is not None:
            mask = window[None, None] if mask is None else mask & window
        if record is not None:
            record("attention", self.weights(q, k, mask))
        is_causal = self.causal and not before and time > 1  # torch then builds no mask
        dropout = self.dropout if self.training else 0.0
        if dropout and attention_dropout.fits(q, k, mask):
            mixed = attention_dropout.attend_with_dropout(
                q, k, v, None if is_causal else mask, dropout, causal=is_causal
            )
            return self.out(mixed.transpose(1, 2).flatten(2))
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=None if is_causal else mask, dropout_p=dropout, is_causal=is_causal
        )
        return self.out(mixed.transpose(1, 2).flatten(2))

    def fused(self, x: Tensor, spans: PackedSpans, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Self-attention by kernels: packed [tokens, width] to the same, before the bias of W^O; and x, to be added."""
        qkv, x = branch_linear(x, self.qkv.weight, self.qkv.bias)
        dropout = HashDropout(self.dropout if self.training else 0.0, seed)
        mixed = attend(qkv, self.qkv.bias, spans, heads=self.heads, dropout=dropout, causal=self.causal)
        return F.linear(mixed, self.out.weight), x

    @staticmethod
    def weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """[batch, heads, queries, keys] attention weights alpha = softmax(q k^T / sqrt(d_k))."""
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)
