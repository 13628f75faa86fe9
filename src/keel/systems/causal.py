"""Blocks that look back alone, by kernels too where norms come first: what writes by one stack is built of these."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from keel.kernels.attention import WIDTHS
from keel.kernels.gelu import bias_gelu
from keel.kernels.norm import add_then_norm
from keel.systems.blocks import Block, Spans


class CausalBlock(Block):
    """A block whose attention looks back alone."""

    def __init__(self, **settings: Any):
        super().__init__(causal=True, **settings)

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
