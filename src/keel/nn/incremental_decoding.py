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

from keel.nn.transformer_blocks import TransformerBlock

MatrixProduct = Callable[[Tensor], Tensor]
"""[batch, inputs] to [batch, outputs]."""
Slot = int | Tensor
"""The next position of the cache, or a tensor [1] of it, which a captured graph reads."""

_PACKED: "WeakKeyDictionary[nn.Module, tuple[Any, dict[bool, DecodingStep]]]" = WeakKeyDictionary()
"""By network: addresses and versions of its weights, and its packed steps for one sequence and for many."""
_PACKING, _CAPTURING = Lock(), Lock()


def weight_versions(owner: nn.Module) -> list[tuple[int, int]]:
    """Address and version of every weight: other ones if any weight has changed."""
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in owner.parameters()]


def decoding_step(
    owner: nn.Module, blocks: Sequence[TransformerBlock], top: nn.LayerNorm | None, words: Tensor, batch_size: int
) -> "DecodingStep":
    """The packed step of a network for one sequence or for many, made once for all threads and again when weights
    change; each of the two takes as much memory as the network."""
    weights = weight_versions(owner)
    with _PACKING:
        packed = _PACKED.get(owner)
        if packed is None or packed[0] != weights:
            packed = _PACKED[owner] = weights, {}
        steps, many = packed[1], batch_size > 1
        if many not in steps:
            steps[many] = DecodingStep(blocks, top, words, batch_size)
        return steps[many]


def pack_linear(weight: Tensor, bias: Tensor | None, batch_size: int) -> MatrixProduct:
    """x W^T + b for x [batch_size, inputs] and W [outputs, inputs], packed for this batch size where that is faster.

    On a CPU the weight is packed once in oneDNN's layout and then read at memory bandwidth; torch's default reads it at
    half that speed for a batch of one, and repacks it in every product otherwise. Without oneDNN, a batch of one is
    faster with a column-major weight.
    """
    if weight.is_cuda or weight.dtype != torch.float32:
        return lambda x: F.linear(x, weight, bias)
    if torch.backends.mkldnn.is_available():
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), batch_size)
            linear = torch.ops.mkldnn._linear_pointwise
            linear(weight.new_zeros(batch_size, weight.shape[1]), packed, bias, "none", [], "")
        except (AttributeError, RuntimeError):  # a private API: another version of torch may lack it
            pass
        else:
            return lambda x: linear(x, packed, bias, "none", [], "")
    outputs, inputs = weight.shape
    if batch_size == 1 and outputs > inputs:
        transposed = weight.T.contiguous()
        return lambda x: x @ transposed if bias is None else torch.addmm(bias, x, transposed)
    return lambda x: F.linear(x, weight, bias)


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
        for number in range(len(self.blocks)):
            x = self._run_block(number, x, memory[:, number], slot, mask)
        return self.head(x if self.top is None else self.top(x))

    def _run_block(self, number: int, x: Tensor, memory: Tensor, slot: Slot, mask: Tensor | None) -> Tensor:
        block, (qkv, out, expand, contract) = self.blocks[number], self.products[number]
        x = block.residual(block.attention_norm, x, lambda x: out(_attend(qkv(x), memory, slot, mask)))
        return block.residual(block.output_norm, x, lambda x: contract(block.activate(expand(x))))


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
