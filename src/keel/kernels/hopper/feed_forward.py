"""The network at every place of a Transformer, gelu(x W1^T + b1) W2^T, with GELU inside the products around it.

A product of this size leaves memory idle, and GELU apart leaves all but memory idle. So the first product writes GELU
and its derivative instead of what it found, and on the way back the second one's gradient is multiplied by the
derivative before it is written: what lay between the products is neither written nor read.

For Hopper alone, and in Gluon, where one can say which warps do what: two groups of four take tiles in turn while a
fifth warp of its own fetches for them. One group multiplies while the other is at the end of its tile, so that tensor
cores do not wait for GELU. The other products are cuBLAS's.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.kernels.branch_linear import add_product
from keel.kernels.gelu import below, bias_gelu
from keel.kernels.hopper.gluon import (
    REGISTERS,
    constant,
    gap_of,
    gl,
    gluon,
    hopper,
    shared_with_triton,
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
"""Of loads under way: with what waits to be written, all the fast memory that a multiprocessor has."""
HALF = constant(64)
gluon_below = shared_with_triton(below)


def feed_forward(
    x: Tensor, expand: Tensor, bias: Tensor, contract: Tensor, *, tanh: bool = False
) -> tuple[Tensor, Tensor]:
    """gelu(x W1^T + b1) W2^T in x's type and, as in `branch`, x once more for the sum.

    [tokens, width], [hidden, width], [hidden] and [width, hidden] to two of the first shape.
    """
    if not _fits(x, expand):
        return feed_forward_twin(x, expand, bias, contract, tanh=tanh)
    learns = torch.is_grad_enabled() and any(given.requires_grad for given in (x, expand, bias, contract))
    return _FeedForward.apply(x, expand.to(x.dtype), bias, contract.to(x.dtype), tanh, learns)


def feed_forward_twin(
    x: Tensor, expand: Tensor, bias: Tensor, contract: Tensor, *, tanh: bool = False
) -> tuple[Tensor, Tensor]:
    hidden = bias_gelu(F.linear(x, expand.to(x.dtype)), bias, tanh=tanh)
    return F.linear(hidden, contract.to(x.dtype)), x


def _fits(x: Tensor, expand: Tensor) -> bool:
    """16 bytes is the least step between the rows of a tile."""
    return len(x) > 0 and not any(size % 8 for size in expand.shape) and trusted(_gap, x)


def _gap(device: torch.device, dtype: torch.dtype) -> float:
    """Where programs take several tiles, some of them not whole, and one gradient is that of both results."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int, scale: float) -> Tensor:
        return (torch.randn(shape, generator=generator, device=device) * scale).to(dtype)

    tokens, width, hidden = 2000, 528, 4688
    return gap_of(
        lambda *given: torch.add(*_FeedForward.apply(*given, False, True)),
        lambda *given: torch.add(*feed_forward_twin(*given)),
        draw(tokens, width, scale=1),
        draw(hidden, width, scale=0.04),
        draw(hidden, scale=0.1).float(),
        draw(width, hidden, scale=0.02),
    )


@gluon.jit
def _fetch(x, weight, slopes, ring, ends, tokens, hidden, width, back: gl.constexpr):
    """What the tiles of this program need, in order, as soon as there is room; on the way back the slopes too."""
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
    bias,
    out,
    slopes,
    sums,
    ring,
    ends,
    tokens,
    hidden,
    width,
    group: gl.constexpr,
    back: gl.constexpr,
    tanh: gl.constexpr,
    learns: gl.constexpr,
):
    """Every second tile of this program. A group goes into its products only after the other has come out of its own:
    a barrier tells odd from even, and whoever looks at it two rounds early takes one for the other.
    """
    a, b, ready, empty = ring
    staging, order, given, free = ends
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 16]
    )
    across = gl.cdiv(hidden, COLUMNS)
    steps = gl.cdiv(width, DEPTH)
    start = gl.program_id(0) + group * gl.num_programs(0)
    apart = 2 * gl.num_programs(0)
    for turn in range(gl.cdiv(gl.cdiv(tokens, TOKENS) * across - start, apart)):
        tile = start + turn * apart
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
        # Half a tile at a time takes half the room and fewer registers.
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
                share, slope = gluon_below(value, tanh)
                hopper.tma.store_wait(0)
                staging.index(group * 2).store((value * share).to(out.dtype))
                if learns:
                    staging.index(group * 2 + 1).store((share + slope).to(out.dtype))
                hopper.fence_async_shared()
                tile_store(out, [row, place], staging.index(group * 2))
                if learns:
                    tile_store(slopes, [row, place], staging.index(group * 2 + 1))
        if back:
            hopper.tma.store_wait(0)
            hopper.mbarrier.arrive(free.index(group), count=1)
    hopper.tma.store_wait(0)


@gluon.jit
def _product(
    x,
    weight,
    bias,
    out,
    slopes,
    sums,
    tokens,
    hidden,
    width,
    back: gl.constexpr,
    tanh: gl.constexpr,
    learns: gl.constexpr,
):
    """out = gelu(x W^T + bias) and its derivative `slopes`; or `back`: out = x W * slopes, and the sums of each tile's
    columns. A program takes one tile after another."""
    barriers: gl.constexpr = hopper.mbarrier.MBarrierLayout()
    a = gl.allocate_shared_memory(x.dtype, [STAGES, TOKENS, DEPTH], x.layout)
    b = gl.allocate_shared_memory(
        x.dtype, [STAGES, weight.block_type.shape[0], weight.block_type.shape[1]], weight.layout
    )
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
    gl.warp_specialize(
        [
            (_multiply, (bias, out, slopes, sums, ring, ends, tokens, hidden, width, 0, back, tanh, learns)),
            (_multiply, (bias, out, slopes, sums, ring, ends, tokens, hidden, width, 1, back, tanh, learns)),
            (_fetch, (x, weight, slopes, ring, ends, tokens, hidden, width, back)),
        ],
        [4, 1],
        [240, 24],
    )


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    slopes: Tensor,
    sums: Tensor,
    *,
    back: bool,
    tanh: bool = False,
    learns: bool = True,
) -> None:
    (tokens, width), hidden = x.shape, out.shape[1]
    tiles = rows_of_tiles(tokens) * -(-hidden // COLUMNS.value)
    _product[(min(tiles, multiprocessors(x.device)),)](
        tiled(x, TOKENS.value, DEPTH.value),
        tiled(weight, DEPTH.value, COLUMNS.value) if back else tiled(weight, COLUMNS.value, DEPTH.value),
        bias,
        tiled(out, TOKENS.value, HALF.value),
        tiled(slopes, TOKENS.value, HALF.value),
        sums,
        tokens,
        hidden,
        width,
        back=back,
        tanh=tanh,
        learns=learns,
        num_warps=4,
        maxnreg=REGISTERS,
    )


def rows_of_tiles(tokens: int) -> int:
    return -(-tokens // TOKENS.value)


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, expand: Tensor, bias: Tensor, contract: Tensor, tanh: bool, learns: bool
    ) -> tuple[Tensor, Tensor]:
        x, expand, contract = x.contiguous(), expand.contiguous(), contract.contiguous()
        hidden = x.new_empty(len(x), len(expand))
        slopes = torch.empty_like(hidden) if learns else hidden
        _launch(x, expand, bias, hidden, slopes, bias, back=False, tanh=tanh, learns=learns)
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
        dcontract = dy.T @ hidden if contract_wanted else None  # before dx is added to, which may be the very dy
        if not (x_wanted or expand_wanted or bias_wanted):
            return None, None, None, dcontract, None, None
        dh = torch.empty_like(hidden)
        sums = torch.empty(rows_of_tiles(len(x)), dh.shape[1], dtype=torch.float32, device=x.device)
        _launch(dy, contract, sums, dh, slopes, sums, back=True)
        dx = add_product(dx, dh, expand) if x_wanted else None
        return dx, dh.T @ x if expand_wanted else None, sums.sum(0), dcontract, None, None
