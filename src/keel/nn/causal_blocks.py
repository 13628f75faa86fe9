"""Blocks that look back alone, by kernels too where norms come first: what writes by one stack is built of these."""

from typing import Any

import torch
from torch import Tensor, nn

from keel.kernels.attention import WIDTHS
from keel.kernels.layer_norm import add_then_norm, layer_norm
from keel.nn.transformer_blocks import PackedSpans, TransformerBlock, TransformerStack, product_dtype


class CausalBlock(TransformerBlock):
    """A block whose attention looks back alone."""

    def __init__(self, **settings: Any):
        super().__init__(causal=True, **settings)

    def fused_pre_norm(
        self, x: Tensor, normed: Tensor, following: nn.LayerNorm, spans: PackedSpans, seed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """A pre-norm block by our kernels on tokens end to end: the stream [tokens, width], and its norm by this block,
        to the stream after it and its norm by what follows."""
        dropout = self.dropout.p if self.training else 0.0

        def add(x: Tensor, y: Tensor, bias: Tensor, norm: nn.LayerNorm, salt: int) -> tuple[Tensor, Tensor]:
            settings: dict[str, Any] = {"epsilon": norm.eps, "dropout": dropout, "seed": seed, "salt": salt}
            return add_then_norm(x, y, bias, norm.weight, norm.bias, **settings)

        mixed, _ = self.attention.fused(normed, spans, seed)
        x, y = add(x, mixed, self.attention.out.bias, self.output_norm, 1)
        return add(x, self.feed_forward_fused(y)[0], self.contract.bias, following, 2)

    @property
    def fusible(self) -> bool:
        width = self.attention.out.in_features // self.attention.heads
        return self.activation_name in ("gelu", "gelu_tanh") and width in WIDTHS


class CausalStack(TransformerStack):
    """Such blocks one above the other."""

    @property
    def blocks(self) -> list[CausalBlock]:
        return [block for block in self if isinstance(block, CausalBlock)]

    def run_fused(
        self, x: Tensor, spans: PackedSpans, *, all_layers: bool = False, top: nn.LayerNorm | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """With pre-norm and the norm `top` above all: the norm before a sub-layer is found with the sum before it. The
        stream keeps fp32: what is added is small beside it."""
        if top is None:
            return super().run_fused(x, spans, all_layers=all_layers)
        shape, x = x.shape, x.flatten(0, -2)
        seeds = torch.randint(2**31, (len(self),), device=x.device) if self.training else None
        layers = [x.view(shape)] if all_layers else []
        norms = [block.attention_norm for block in self.blocks]
        y = layer_norm(x, norms[0].weight, norms[0].bias, epsilon=norms[0].eps, out_dtype=product_dtype(x))
        for number, (block, following) in enumerate(zip(self.blocks, [*norms[1:], top], strict=True)):
            x, y = block.fused_pre_norm(x, y, following, spans, None if seeds is None else seeds[number])
            if all_layers:
                layers.append(x.view(shape))
        return y.view(shape), layers
