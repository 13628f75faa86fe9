"""The feed-forward network of a Transformer, gelu(x W1^T + b1) W2^T, with GELU fused into the matrix products.

The first product writes GELU and its derivative instead of its own result; in the backward pass the gradient of the
second one is multiplied by the derivative before it is written: the pre-activations are neither written nor read.

Warp specialization: two groups of four warps take tiles in turn while another warp loads for them. One group multiplies
while the other is at the end of its tile, so that tensor cores do not wait for GELU. The other products are cuBLAS's.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.kernels.branch_linear import add_product
from keel.kernels.gelu import gelu_parts
from keel.kernels.hopper.gluon import (
    REGISTERS,
    constant,
    from_triton,
    gl,
    gluon,
    hopper,
    relative_error,
    tile_load,
    tile_store,
    tiled,
    trusted,
)
from keel.kernels.triton_support import multiprocessors

TOKENS = constant(128)
COLUMNS = constant(128)
DEPTH = constant(64)
STAGES = constant(5)
"""Pipeline stages: with the staging buffers they fill the shared memory of a multiprocessor."""
HALF = constant(64)
gluon_gelu_parts = from_triton(gelu_parts)


def fits(x: Tensor, expand: Tensor) -> bool:
    """Whether the kernel handles these shapes (rows of a tile must be a multiple of 16 bytes) on x's GPU."""
    return len(x) > 0 and not any(size % 8 for size in expand.shape) and trusted(_relative_error, x)


def _relative_error(device: torch.device, dtype: torch.dtype) -> float:
    """Relative error where programs take several tiles, some partial, and both results have the same gradient."""
    from keel.kernels.feed_forward import feed_forward_twin  # which imports this module

    generator = torch.Generator(device).manual_seed(0)

    def sample(*shape: int, scale: float) -> Tensor:
        return (torch.randn(shape, generator=generator, device=device) * scale).to(dtype)

    tokens, width, hidden = 2000, 528, 4688
    return relative_error(
        lambda *given: torch.add(*FusedFeedForward.apply(*given, False, True)),
        lambda *given: torch.add(*feed_forward_twin(*given)),
        sample(tokens, width, scale=1),
        sample(hidden, width, scale=0.04),
        sample(hidden, scale=0.1).float(),
        sample(width, hidden, scale=0.02),
    )


@gluon.jit
def _fetch(x, weight, slopes, ring, ends, tokens, hidden, width, back: gl.constexpr):
    """Producer warp: load the operands of this program's tiles into the ring; in the backward pass the slopes too."""
    a, b, ready, empty = ring
    staging, _, given, free = ends
    across = gl.cdiv(hidden, COLUMNS)
    tiles = gl.cdiv(tokens, TOKENS) * across
    stage = 0
    phase = 1
    for turn in range(gl.cdiv(tiles - gl.program_id(0), gl.num_programs(0))):
        tile = gl.program_id(0) + turn * gl.num_programs(0)
        row = tile // across * TOKENS
        column = tile % across * COLUMNS
        for k in range(0, width, DEPTH):
            hopper.mbarrier.wait(empty.index(stage), phase)
            hopper.mbarrier.expect(ready.index(stage), (TOKENS + COLUMNS) * DEPTH * 2)
            tile_load(x, [row, k], ready.index(stage), a.index(stage))
            if back:
                tile_load(weight, [k, column], ready.index(stage), b.index(stage))
            else:
                tile_load(weight, [column, k], ready.index(stage), b.index(stage))
            stage += 1
            phase = gl.where(stage == STAGES, phase ^ 1, phase)
            stage = gl.where(stage == STAGES, 0, stage)
        if back:
            group = turn & 1
            hopper.mbarrier.wait(free.index(group), ((turn >> 1) & 1) ^ 1)
            hopper.mbarrier.expect(given.index(group), TOKENS * COLUMNS * 2)
            for half in gl.static_range(2):
                tile_load(slopes, [row, column + half * HALF], given.index(group), staging.index(group * 2 + half))


@gluon.jit
def _before(stage):
    return gl.where(stage == 0, STAGES, stage) - 1


@gluon.jit
def _multiply(
    bias, out, slopes, sums, ring, ends, tokens, hidden, width,
    group: gl.constexpr, back: gl.constexpr, tanh: gl.constexpr, needs_grad: gl.constexpr,
):  # fmt: skip
    """Consumer warps: every second tile of this program. A group enters its products only after the other has left
    its own: a barrier only distinguishes odd from even phases, so a group must not be two rounds ahead.
    """
    a, b, ready, empty = ring
    staging, order, given, free = ends
    shape: gl.constexpr = [16, COLUMNS, 16]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=shape)
    across = gl.cdiv(hidden, COLUMNS)
    steps = gl.cdiv(width, DEPTH)
    start = gl.program_id(0) + group * gl.num_programs(0)
    stride = 2 * gl.num_programs(0)
    for turn in range(gl.cdiv(gl.cdiv(tokens, TOKENS) * across - start, stride)):
        tile = start + turn * stride
        row = tile // across * TOKENS
        column = tile % across * COLUMNS
        total = gl.zeros([TOKENS, COLUMNS], gl.float32, layout)
        first = (2 * turn + group) * steps
        stage = first % STAGES
        phase = (first // STAGES) & 1
        hopper.mbarrier.wait(order.index(group), (turn & 1) ^ (1 - group))
        for k in range(steps):
            hopper.mbarrier.wait(ready.index(stage), phase)
            matrix = b.index(stage) if back else b.index(stage).permute((1, 0))
            total = hopper.warpgroup_mma(a.index(stage), matrix, total, is_async=True)
            total = hopper.warpgroup_mma_wait(1, deps=(total,))
            hopper.mbarrier.arrive(empty.index(_before(stage)), count=1, pred=k > 0)
            stage += 1
            phase = gl.where(stage == STAGES, phase ^ 1, phase)
            stage = gl.where(stage == STAGES, 0, stage)
        hopper.mbarrier.arrive(order.index(1 - group), count=1)
        total = hopper.warpgroup_mma_wait(0, deps=(total,))
        hopper.mbarrier.arrive(empty.index(_before(stage)), count=1)
        # Half a tile at a time takes half the shared memory and fewer registers.
        parts = gl.split(gl.permute(gl.reshape(total, (TOKENS, 2, HALF)), (0, 2, 1)))
        if back:
            hopper.mbarrier.wait(given.index(group), turn & 1)
        for half in gl.static_range(2):
            value = parts[half]
            place = column + half * HALF
            index = place + gl.arange(0, HALF, gl.SliceLayout(0, value.type.layout))
            if back:
                buffer = staging.index(group * 2 + half)
                value *= buffer.load(value.type.layout).to(gl.float32)
                buffer.store(value.to(out.dtype))
                hopper.fence_async_shared()
                tile_store(out, [row, place], buffer)
                gl.store(sums + tile // across * hidden + index, gl.sum(value, 0), index < hidden)
            else:
                value += gl.expand_dims(gl.load(bias + index, index < hidden, 0.0), 0)
                share, slope = gluon_gelu_parts(value, tanh)
                hopper.tma.store_wait(0)
                staging.index(group * 2).store((value * share).to(out.dtype))
                if needs_grad:
                    staging.index(group * 2 + 1).store((share + slope).to(out.dtype))
                hopper.fence_async_shared()
                tile_store(out, [row, place], staging.index(group * 2))
                if needs_grad:
                    tile_store(slopes, [row, place], staging.index(group * 2 + 1))
        if back:
            hopper.tma.store_wait(0)
            hopper.mbarrier.arrive(free.index(group), count=1)
    hopper.tma.store_wait(0)


@gluon.jit
def _product(
    x, weight, bias, out, slopes, sums, tokens, hidden, width,
    back: gl.constexpr, tanh: gl.constexpr, needs_grad: gl.constexpr,
):  # fmt: skip
    """out = gelu(x W^T + bias) and its derivative `slopes`; or `back`: out = x W * slopes, and the column sums of each
    tile. Persistent: a program takes one tile after another."""
    barriers: gl.constexpr = hopper.mbarrier.MBarrierLayout()
    a = gl.allocate_shared_memory(x.dtype, [STAGES, TOKENS, DEPTH], x.layout)
    tile: gl.constexpr = weight.block_type.shape
    b = gl.allocate_shared_memory(x.dtype, [STAGES, tile[0], tile[1]], weight.layout)
    staging = gl.allocate_shared_memory(x.dtype, [4, TOKENS, HALF], out.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    order = gl.allocate_shared_memory(gl.int64, [2, 1], barriers)
    given = gl.allocate_shared_memory(gl.int64, [2, 1], barriers)
    free = gl.allocate_shared_memory(gl.int64, [2, 1], barriers)
    for stage in gl.static_range(STAGES):
        hopper.mbarrier.init(ready.index(stage), count=1)
        hopper.mbarrier.init(empty.index(stage), count=1)
    for group in gl.static_range(2):
        hopper.mbarrier.init(order.index(group), count=1)
        hopper.mbarrier.init(given.index(group), count=1)
        hopper.mbarrier.init(free.index(group), count=1)
    hopper.fence_async_shared()
    ring = (a, b, ready, empty)
    ends = (staging, order, given, free)
    gl.warp_specialize([
        (_multiply, (bias, out, slopes, sums, ring, ends, tokens, hidden, width, 0, back, tanh, needs_grad)),
        (_multiply, (bias, out, slopes, sums, ring, ends, tokens, hidden, width, 1, back, tanh, needs_grad)),
        (_fetch, (x, weight, slopes, ring, ends, tokens, hidden, width, back)),
    ], [4, 1], [240, 24])  # fmt: skip


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, slopes: Tensor, sums: Tensor, *, back: bool,
    tanh: bool = False, needs_grad: bool = True,
) -> None:  # fmt: skip
    (tokens, width), hidden = x.shape, out.shape[1]
    tiles = rows_of_tiles(tokens) * -(-hidden // COLUMNS.value)
    weight_tile = (DEPTH.value, COLUMNS.value) if back else (COLUMNS.value, DEPTH.value)
    _product[(min(tiles, multiprocessors(x.device)),)](
        *(tiled(x, TOKENS.value, DEPTH.value), tiled(weight, *weight_tile), bias),
        *(tiled(written, TOKENS.value, HALF.value) for written in (out, slopes)),
        *(sums, tokens, hidden, width, back, tanh, needs_grad),
        num_warps=4,
        maxnreg=REGISTERS,
    )


def rows_of_tiles(tokens: int) -> int:
    return -(-tokens // TOKENS.value)


class FusedFeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, expand: Tensor, bias: Tensor, contract: Tensor, tanh: bool, needs_grad: bool
    ) -> tuple[Tensor, Tensor]:
        x, expand, contract = x.contiguous(), expand.contiguous(), contract.contiguous()
        hidden = x.new_empty(len(x), len(expand))
        slopes = torch.empty_like(hidden) if needs_grad else hidden
        _launch(x, expand, bias, hidden, slopes, bias, back=False, tanh=tanh, needs_grad=needs_grad)
        ctx.save_for_backward(x, expand, contract, hidden, slopes)
        ctx.set_materialize_grads(False)
        return F.linear(hidden, contract), x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, expand, contract, hidden, slopes = ctx.saved_tensors
        dy, dx = gradients
        if dy is None:
            return dx, None, None, None, None, None
        x_wanted, expand_wanted, bias_wanted, contract_wanted, *_ = ctx.needs_input_grad
        dy = dy.contiguous()
        dcontract = dy.T @ hidden if contract_wanted else None  # first: dx, which is added to, may be the same as dy
        if not (x_wanted or expand_wanted or bias_wanted):
            return None, None, None, dcontract, None, None
        dh = torch.empty_like(hidden)
        sums = torch.empty(rows_of_tiles(len(x)), dh.shape[1], dtype=torch.float32, device=x.device)
        _launch(dy, contract, sums, dh, slopes, sums, back=True)
        dx = add_product(dx, dh, expand) if x_wanted else None
        return dx, dh.T @ x if expand_wanted else None, sums.sum(0), dcontract, None, None
