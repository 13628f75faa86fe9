"""One piece further in every row of a network of causal blocks, as fast as the machine allows: writing is made of this.

On a CPU the matrices are laid out once for products with few rows. On a GPU a step is captured as a graph, so that the
few hundred launches of a step cost as much as one. Both give what the blocks themselves give.
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
"""The place that is written next, or a tensor [1] of it, which a captured graph looks up."""

_LAID_OUT: "WeakKeyDictionary[nn.Module, tuple[Any, dict[bool, DecodingStep]]]" = WeakKeyDictionary()
"""By network: where its weights lie and their versions, and what was laid out of them for one row and for many."""
_LAYING, _CAPTURING = Lock(), Lock()


def decoding_step(
    owner: nn.Module, blocks: Sequence[TransformerBlock], top: nn.LayerNorm | None, words: Tensor, rows: int
) -> "DecodingStep":
    """That of a network for one row or for many, laid out once for all threads, and anew when its weights change; each
    of the two takes as much memory as the network."""
    weights = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in owner.parameters()]
    with _LAYING:
        kept = _LAID_OUT.get(owner)
        if kept is None or kept[0] != weights:
            kept = _LAID_OUT[owner] = weights, {}
        steps = kept[1]
        if (rows > 1) not in steps:
            steps[rows > 1] = DecodingStep(blocks, top, words, rows)
        return steps[rows > 1]


class DecodingStep:
    """Blocks, the norm above them and the head, for one further place of each row."""

    def __init__(self, blocks: Sequence[TransformerBlock], top: nn.LayerNorm | None, words: Tensor, rows: int):
        def laid_out(layer: nn.Linear) -> MatrixProduct:
            return pack_linear(layer.weight.detach(), layer.bias.detach(), rows)

        self.blocks, self.top = blocks, top
        self.products = [
            tuple(map(laid_out, (block.attention.qkv, block.attention.out, block.expand, block.contract)))
            for block in blocks
        ]
        self.head = pack_linear(words.detach(), None, rows)

    def __call__(self, x: Tensor, memory: Tensor, slot: Slot) -> Tensor:
        """[rows, vocabulary] scores after one further vector of each row [rows, width], whose keys and values go into
        this slot of a memory [rows, layers, 2, heads, room, head width]."""
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
    """[rows, 3 x width] to [rows, width]: each row's query over its keys and values up to the slot."""
    rows, _, heads, _, width = memory.shape
    parts = qkv.view(rows, 3, heads, width)
    if isinstance(slot, int):
        memory[:, :, :, slot] = parts[:, 1:]
        memory = memory[:, :, :, : slot + 1]
    else:
        memory.index_copy_(3, slot, parts[:, 1:].unsqueeze(3))
    mixed = F.scaled_dot_product_attention(parts[:, 0].unsqueeze(2), memory[:, 0], memory[:, 1], attn_mask=mask)
    return mixed.reshape(rows, heads * width)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The one on which all steps are captured: what torch keeps for a stream, as the room that products need, is kept
    once."""
    return torch.cuda.Stream(device)


class DecodingGraph:
    """A step over one memory on a GPU: run as it is the first time, then captured, then replayed."""

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor]):
        self.step = step
        """Ids [rows] and a slot [1] to scores."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = self.off = False

    def __call__(self, ids: Tensor, slot: int) -> Tensor:
        if self.warm and not self.off and self.graph is None:
            try:
                with _CAPTURING:  # they share a stream, on which two at once would spoil each other
                    self._capture(ids, slot)
            except RuntimeError:  # some driver or kernel that cannot: it costs speed alone
                self.off, self.graph = True, None
        self.warm = True
        if self.graph is None:
            return self.step(ids, torch.full((1,), slot, device=ids.device))
        self.ids.copy_(ids)
        self.place.fill_(slot)  # no copy from the CPU, which would be waited for
        self.graph.replay()
        return self.scores.clone()  # the next replay writes over them

    def _capture(self, ids: Tensor, slot: int) -> None:
        self.ids, self.place = ids.clone(), torch.full((1,), slot, device=ids.device)
        graph = torch.cuda.CUDAGraph()
        stream = _stream(ids.device)
        stream.wait_stream(torch.cuda.current_stream(ids.device))
        # Not by torch.cuda.graph(): it collects all garbage first, which takes longer than many steps.
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.scores = self.step(self.ids, self.place)
            finally:
                graph.capture_end()
        torch.cuda.current_stream(ids.device).wait_stream(stream)
        self.graph = graph
