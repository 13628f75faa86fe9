"""Inference of Transformer encoders in bf16 on a CPU, on tokens without padding.

Matrix products read and write bf16; the residual stream, norms and attention stay fp32: attention in bf16 is no faster
without matrix registers (AMX), and its error is larger. The weights are converted once and found again as long as none
of them changes, which costs half their memory once more.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.nn.incremental_decoding import weight_versions
from keel.nn.multihead_attention import MultiHeadAttention
from keel.nn.transformer_blocks import TransformerBlock

Bf16Linear = tuple[Tensor, Tensor | None]
"""Weight and bias, if there is one, of a linear layer in bf16."""

_CONVERTED: "WeakKeyDictionary[nn.Module, tuple[Any, list[tuple[Bf16Linear, ...]]]]" = WeakKeyDictionary()
"""By stack of blocks: addresses and versions of its weights, and the linear layers of each block."""
_CONVERTING = Lock()


def has_native_bf16() -> bool:
    """Whether this CPU has instructions for products in bf16; assumed if torch cannot tell."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {"bf16": True}
    return any(value for name, value in capabilities.items() if "bf16" in name)


def runs_in_bf16(x: Tensor) -> bool:
    """Whether `run_blocks` applies: under bf16 autocast on a CPU, without gradients."""
    bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return x.device.type == "cpu" and bf16 and torch.is_inference_mode_enabled()


def run_blocks(
    stack: nn.Module,
    blocks: Sequence[TransformerBlock],
    x: Tensor,
    mask: Tensor | None,
    *,
    all_layers: bool = False,
    query_count: int = 0,
) -> tuple[Tensor, list[Tensor]]:
    """The output of these blocks for x [batch, time, width], and every layer's with `all_layers`; zeros at padding.

    `mask` is the `padding_mask`; with `query_count` 1 the last block computes the first position only.
    """
    assert query_count <= 1
    batch, time, width = x.shape
    lengths = [time] * batch if mask is None else mask.sum(-1).flatten().tolist()
    inside = None if mask is None else mask[:, 0, 0]

    def padded(tokens: Tensor) -> Tensor:
        if inside is None:
            return tokens.view(x.shape)
        return x.new_zeros(x.shape, dtype=tokens.dtype).masked_scatter_(inside[..., None], tokens)

    tokens = (x.flatten(0, 1) if inside is None else x[inside]).float()  # [tokens, width]
    layers = [padded(tokens)] if all_layers else []
    with torch.autocast("cpu", enabled=False):
        for number, (block, products) in enumerate(zip(blocks, _bf16_linears(stack, blocks), strict=True)):
            first_only = bool(query_count) and number == len(blocks) - 1
            tokens = _run_block(block, products, tokens, lengths, first_only)
            if all_layers:
                layers.append(padded(tokens))
    return tokens.view(batch, 1, width) if query_count else padded(tokens), layers


def _run_block(
    block: TransformerBlock, products: tuple[Bf16Linear, ...], x: Tensor, lengths: list[int], first_only: bool
) -> Tensor:
    """[tokens, width] to the same, or to the first token of each sequence."""
    qkv, out, expand, contract = products
    starts = torch.tensor([0, *accumulate(lengths)][:-1])
    skip = x[starts] if first_only else x

    def attend(x: Tensor) -> Tensor:
        x = x.bfloat16()
        if first_only:
            width, (weight, bias) = x.shape[1], qkv
            q = F.linear(x[starts], weight[:width], None if bias is None else bias[:width])
            kv = F.linear(x, weight[width:], None if bias is None else bias[width:])
        else:
            q, kv = F.linear(x, *qkv).tensor_split([x.shape[1]], 1)
        return F.linear(_attend(block.attention, q, kv, lengths, first_only), *out)

    x = block.residual(block.attention_norm, x, attend, skip)
    return block.residual(
        block.output_norm, x, lambda x: F.linear(block.activate(F.linear(x.bfloat16(), *expand)), *contract)
    )


def _attend(attention: MultiHeadAttention, q: Tensor, kv: Tensor, lengths: list[int], first_only: bool) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V in each sequence: kv [tokens, 2 x width], and q [tokens, width] or, with `first_only`,
    [sequences, width], to q's shape.

    Neighbours of equal length are computed together: in batches sorted by length, most of the short ones.
    """

    def split_heads(x: Tensor, count: int) -> Tensor:
        """[n, count, heads, time, head_dim] of [count x time, n x width]."""
        heads = attention.heads, attention.head_dim
        return x.float().unflatten(0, (count, -1)).unflatten(2, (-1, *heads)).permute(2, 0, 3, 1, 4)

    runs = [(length, len([*several])) for length, several in groupby(lengths)]
    sizes = [length * count for length, count in runs]
    query_sizes = [count for _, count in runs] if first_only else sizes
    mixed: list[Tensor] = []
    for own, others, (_, count) in zip(q.split(query_sizes), kv.split(sizes), runs, strict=True):
        (q,), (k, v) = split_heads(own, count), split_heads(others, count)
        q, k = attention.add_positions(q), attention.add_positions(k)
        window = attention.window_mask(q.shape[2], k.shape[2], k.device)
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=window)
        mixed.append(found.transpose(1, 2).reshape(own.shape))
    return torch.cat(mixed).bfloat16()


def _bf16_linears(stack: nn.Module, blocks: Sequence[TransformerBlock]) -> list[tuple[Bf16Linear, ...]]:
    """The four linear layers of each block in bf16."""
    versions = weight_versions(stack)
    with _CONVERTING:
        found = _CONVERTED.get(stack)
        if found is None or found[0] != versions:
            converted = [
                tuple(
                    (layer.weight.detach().bfloat16(), None if layer.bias is None else layer.bias.detach().bfloat16())
                    for layer in (block.attention.qkv, block.attention.out, block.expand, block.contract)
                )
                for block in blocks
            ]
            found = _CONVERTED[stack] = versions, converted
        return found[1]
