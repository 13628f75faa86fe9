"""Blocks that look back alone, and what they keep of the places before: what writes by one stack is built of these."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.kernels.attention import WIDTHS, attend
from keel.kernels.gelu import bias_gelu
from keel.kernels.norm import add_then_norm
from keel.systems.blocks import Attention, Block, Record, Spans
from keel.systems.stepping import Graph
from keel.train.objective import Tensors


@dataclass(frozen=True, kw_only=True)
class Cache(Tensors):
    """The keys and values of all that each row has read. Going on from a state writes into it, so that it serves once;
    `take` makes a copy of the rows it is asked for."""

    memory: Tensor  # [rows, layers, 2, heads, room, head width]
    count: int = 0
    """Places in use."""
    graph: Graph | None = None
    """On a GPU: the step over this very memory."""

    @torch.no_grad()
    def take(self, index: Tensor) -> Self:
        """With room for the next place: a search takes rows at each step, and copies what they have read once."""
        used = self.memory[..., : self.count, :]
        memory = self.memory.new_empty(len(index), *used.shape[1:4], _room(self.count + 1), used.shape[5])
        torch.index_select(used, 0, index.to(memory.device), out=memory[..., : self.count, :])
        memory[..., self.count :, :] = 0
        return replace(self, memory=memory, graph=None)

    def grown(self, time: int, most: int, dtype: torch.dtype) -> Self:
        """The same with room for so many places more, of `most` in all; it doubles, so that little is copied, and is
        zero where a graph looks at all of it."""
        rows, layers, two, heads, room, width = self.memory.shape
        if self.count + time <= room:
            return self
        room = min(most, max(2 * room, _room(self.count + time)))
        memory = self.memory.new_zeros(rows, layers, two, heads, room, width, dtype=dtype)
        memory[..., : self.count, :] = self.memory[..., : self.count, :]
        return replace(self, memory=memory, graph=None)

    def layer(self, number: int) -> "Past":
        return Past(memory=self.memory[:, number], count=self.count)


def _room(places: int) -> int:
    """For so many places, and a few more."""
    return -(-places // 64) * 64


@dataclass(frozen=True, kw_only=True)
class Past(Tensors):
    """What one layer keeps of the places before."""

    memory: Tensor  # [rows, 2, heads, room, head width]
    count: int

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, each [rows, heads, places, head width], with these of further places at the end."""
        end = self.count + keys.shape[2]
        self.memory[:, 0, :, self.count : end] = keys
        self.memory[:, 1, :, self.count : end] = values
        return self.memory[:, 0, :, :end], self.memory[:, 1, :, :end]


class Causal(Attention):
    """Attention in which a place sees itself and those before it; padding comes last, so that nobody sees it."""

    def forward(
        self, x: Tensor, mask: Tensor | None, record: Record | None = None, asking: int = 0, past: Past | None = None
    ) -> Tensor:
        """[batch, time, width] to the same."""
        assert mask is None
        assert not asking
        batch, time, width = x.shape
        # Each [batch, heads, time, width / heads].
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        before = 0
        if past is not None:
            before = past.count
            k, v = past.extend(k, v)
        seen = None
        if record is not None or (before and time > 1):
            seen = torch.ones(time, before + time, dtype=torch.bool, device=x.device).tril(before)
        if record is not None:
            record("attention", self.weights(q, k, seen))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen if before else None, dropout_p=dropout, is_causal=not before and time > 1
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))

    def fused(self, x: Tensor, spans: Spans, seed: Tensor | None) -> Tensor:
        mixed = attend(
            F.linear(x, self.qkv.weight),
            self.qkv.bias,
            spans.starts,
            spans.lengths,
            longest=spans.longest,
            heads=self.heads,
            dropout=self.dropout if self.training else 0.0,
            seed=seed,
            causal=True,
        )
        return F.linear(mixed, self.out.weight)


class CausalBlock(Block):
    """A block whose attention looks back alone."""

    def __init__(self, *, width: int, heads: int, attention_dropout: float, **settings: Any):
        super().__init__(width=width, heads=heads, attention_dropout=attention_dropout, **settings)
        self.attention = Causal(width, heads, attention_dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        record: Record | None = None,
        asking: int = 0,
        past: Past | None = None,
    ) -> Tensor:
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x), mask, record, asking, past))
            return x + self.dropout(self.feed_forward(self.output_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, mask, record, asking, past)))
        return self.output_norm(x + self.dropout(self.feed_forward(x)))

    def fused_before(
        self, x: Tensor, normed: Tensor, following: nn.LayerNorm, spans: Spans, seed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """A pre-norm block by our kernels on tokens end to end: the stream [tokens, width], and its norm by this block,
        to the stream after it and its norm by what follows."""
        dropout = self.dropout.p if self.training else 0.0

        def add(x: Tensor, y: Tensor, bias: Tensor, norm: nn.LayerNorm, salt: int) -> tuple[Tensor, Tensor]:
            settings: dict[str, Any] = {"epsilon": norm.eps, "dropout": dropout, "seed": seed, "salt": salt}
            return add_then_norm(x, y, bias, norm.weight, norm.bias, **settings)

        x, y = add(x, self.attention.fused(normed, spans, seed), self.attention.out.bias, self.output_norm, 1)
        hidden = bias_gelu(F.linear(y, self.expand.weight), self.expand.bias, tanh=self.activation_name == "gelu_tanh")
        return add(x, F.linear(hidden, self.contract.weight), self.contract.bias, following, 2)

    @property
    def fusible(self) -> bool:
        width = self.attention.out.in_features // self.attention.heads
        return self.activation_name in ("gelu", "gelu_tanh") and width in WIDTHS
