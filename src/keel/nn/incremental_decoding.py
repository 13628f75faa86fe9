"""Incremental decoding: one token further in every sequence of a decoder-only Transformer.

On a CPU the weight matrices are packed once for products with few vectors. On a GPU a step is captured as a CUDA graph,
so that its few hundred kernel launches cost as much as one. Both compute what the blocks compute.
"""

from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.kernels.small_matmul import MatrixProduct, pack_linear
from keel.nn.transformer_blocks import TransformerBlock

Slot = int | Tensor
"""The next position of the cache, or a tensor [1] of it, which a captured graph reads."""

_PACKED: "WeakKeyDictionary[nn.Module, tuple[Any, dict[bool, DecodingStep]]]" = WeakKeyDictionary()
"""By network: addresses and versions of its weights, and its packed steps for one sequence and for many."""
_PACKING, _CAPTURING = Lock(), Lock()


def decoding_step(
    owner: nn.Module, blocks: Sequence[TransformerBlock], top: nn.LayerNorm | None, words: Tensor, batch_size: int
) -> "DecodingStep":
    """The packed step of a network for one sequence or for many, made once for all threads and again when weights
    change; each of the two takes as much memory as the network."""
    weights = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in owner.parameters()]
    with _PACKING:
        packed = _PACKED.get(owner)
        if packed is None or packed[0] != weights:
            packed = _PACKED[owner] = weights, {}
        steps, many = packed[1], batch_size > 1
        if many not in steps:
            steps[many] = DecodingStep(blocks, top, words, batch_size)
        return steps[many]


class DecodingStep:
    """The blocks, the final norm and the softmax layer, for one position of each sequence."""

    def __init__(self, blocks: Sequence[TransformerBlock], top: nn.LayerNorm | None, words: Tensor, batch_size: int):
        def packed(layer: nn.Linear) -> MatrixProduct:
            return pack_linear(layer.weight.detach(), layer.bias.detach(), batch_size)

        self.blocks, self.top = blocks, top
        self.products = [
            tuple(map(packed, (block.attention.qkv, block.attention.out, block.expand, block.contract)))
            for block in blocks
        ]
        self.head = pack_linear(words.detach(), None, batch_size)

    def __call__(self, x: Tensor, memory: Tensor, slot: Slot) -> Tensor:
        """[batch, vocabulary] logits after input vectors [batch, width], whose keys and values are written into this
        slot of a cache's memory [batch, layers, 2, heads, capacity, head_dim]."""
        mask = None
        if isinstance(slot, Tensor):
            mask = (torch.arange(memory.shape[4], device=x.device) <= slot)[None, None, None]
        for number, (block, products) in enumerate(zip(self.blocks, self.products, strict=True)):
            qkv, out, expand, contract = products
            before = block.pre_norm
            mixed = out(_attend(qkv(_norm(x, block.attention_norm) if before else x), memory[:, number], slot, mask))
            x = x + mixed if before else _norm(x + mixed, block.attention_norm)
            hidden = contract(block.activation(expand(_norm(x, block.output_norm) if before else x)))
            x = x + hidden if before else _norm(x + hidden, block.output_norm)
        return self.head(x if self.top is None else _norm(x, self.top))


def _norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _attend(qkv: Tensor, memory: Tensor, slot: Slot, mask: Tensor | None) -> Tensor:
    """[batch, 3 x width] to [batch, width]: attention over the keys and values up to the slot."""
    batch, _, heads, _, width = memory.shape
    parts = qkv.view(batch, 3, heads, width)
    if isinstance(slot, int):
        memory[:, :, :, slot] = parts[:, 1:]
        memory = memory[:, :, :, : slot + 1]
    else:
        memory.index_copy_(3, slot, parts[:, 1:].unsqueeze(3))
    mixed = F.scaled_dot_product_attention(parts[:, 0].unsqueeze(2), memory[:, 0], memory[:, 1], attn_mask=mask)
    return mixed.reshape(batch, heads * width)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which all steps are captured: torch's workspaces of a stream are then allocated once."""
    return torch.cuda.Stream(device)


class DecodingGraph:
    """A CUDA graph of a step over one cache: run eagerly the first time, then captured, then replayed."""

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor]):
        self.step = step
        """Ids [batch] and a slot [1] to logits."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = self.off = False

    def __call__(self, ids: Tensor, slot: int) -> Tensor:
        if self.warm and not self.off and self.graph is None:
            try:
                with _CAPTURING:  # concurrent captures on the shared stream would fail
                    self._capture(ids, slot)
            except RuntimeError:  # not supported by a driver or kernel: it costs speed only
                self.off, self.graph = True, None
        self.warm = True
        if self.graph is None:
            return self.step(ids, torch.full((1,), slot, device=ids.device))
        self.ids.copy_(ids)
        self.slot.fill_(slot)  # a copy from the CPU would synchronize
        self.graph.replay()
        return self.logits.clone()  # the next replay overwrites them

    def _capture(self, ids: Tensor, slot: int) -> None:
        self.ids, self.slot = ids.clone(), torch.full((1,), slot, device=ids.device)
        graph = torch.cuda.CUDAGraph()
        stream = _stream(ids.device)
        stream.wait_stream(torch.cuda.current_stream(ids.device))
        # Not by torch.cuda.graph(): its garbage collection takes longer than many steps.
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.logits = self.step(self.ids, self.slot)
            finally:
                graph.capture_end()
        torch.cuda.current_stream(ids.device).wait_stream(stream)
        self.graph = graph
