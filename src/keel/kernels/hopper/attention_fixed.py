"""Attention kernels for sequences that begin at every 128th token, in Gluon, for Hopper.

Persistent programs with warp specialization: one warp loads the next head while eight compute this one and the result
of the last one is stored, which Triton cannot overlap. Tiles are loaded whole, so padding must be finite, though it is
masked.
"""

# pyright: reportPossiblyUnboundVariable=false
from typing import Any

import torch
from torch import Tensor

from keel.kernels.attention_varlen import PackedSpans
from keel.kernels.dropout import HashDropout, is_kept, join
from keel.kernels.hopper.gluon import REGISTERS, constant, from_triton, gl, gluon, hopper, tile_load, tile_store, tiled
from keel.kernels.triton_support import multiprocessors

TIME = constant(128)
WIDTH = constant(64)
"""Head dimension."""
gluon_join = from_triton(join)
gluon_is_kept = from_triton(is_kept)


def fits(qkv: Tensor, lengths: Tensor, longest: int, heads: int) -> bool:
    """Whether the kernels handle sequences of this shape."""
    even = longest == TIME.value and len(qkv) == len(lengths) * longest > 0
    return even and qkv.shape[1] == 3 * heads * WIDTH.value and rows_at_once(qkv.device, heads) > 0


def rows_at_once(device: torch.device, heads: int) -> int:
    """Sequences that the backward pass works on at a time, with a program per head."""
    return multiprocessors(device) // heads


def _launch_settings(heads: int, dropout: HashDropout, causal: bool) -> dict[str, Any]:
    return {"heads": heads, "threshold": dropout.threshold, "causal": causal, "num_warps": 8, "maxnreg": REGISTERS}


def mix(
    qkv: Tensor, spans: PackedSpans, out: Tensor, normalizers: Tensor, heads: int, dropout: HashDropout, causal: bool
) -> None:
    """Write out [tokens, width] and, for the backward pass, normalizers [1 or 2, heads, tokens]."""
    items = len(spans.lengths) * heads
    _forward[(min(items, multiprocessors(qkv.device)),)](
        *(tiled(x, TIME.value, WIDTH.value) for x in (qkv, out)),
        *(spans.lengths, dropout.seed, normalizers, items, len(qkv), dropout.salt, WIDTH.value**-0.5),
        **_launch_settings(heads, dropout, causal),
    )


def gradients(
    dout: Tensor, qkv: Tensor, spans: PackedSpans, out: Tensor, normalizers: Tensor, heads: int,
    dropout: HashDropout, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of qkv [tokens, 3 x width] and of its bias [3 x width]."""
    dqkv = torch.empty_like(qkv)
    items = len(spans.lengths) * heads
    rows = min(len(spans.lengths), rows_at_once(qkv.device, heads))
    sums = torch.empty(rows, qkv.shape[1], dtype=torch.float32, device=qkv.device)
    _backward[(rows * heads,)](
        *(tiled(x, TIME.value, WIDTH.value) for x in (qkv, dout, dqkv)),
        *(spans.lengths, normalizers, sums, items, len(qkv), WIDTH.value**-0.5),
        **_launch_settings(heads, dropout, causal),
    )
    return dqkv, sums.sum(0)


@gluon.jit
def _fetch(qkv, dout, ring, items, heads: gl.constexpr, stages: gl.constexpr, parts: gl.constexpr):
    """Producer warp: load queries, keys and values of each head and, as a fourth part, the gradient."""
    inputs, ready, empty = ring
    for turn in range(gl.cdiv(items - gl.program_id(0), gl.num_programs(0))):
        item = gl.program_id(0) + turn * gl.num_programs(0)
        row = item // heads * TIME
        column = item % heads * WIDTH
        stage = turn % stages
        hopper.mbarrier.wait(empty.index(stage), ((turn // stages) & 1) ^ 1)
        hopper.mbarrier.expect(ready.index(stage), parts * TIME * WIDTH * 2)
        for part in gl.static_range(3):
            place = part * heads * WIDTH + column
            tile_load(qkv, [row, place], ready.index(stage), inputs.index(stage * parts + part))
        if parts == 4:
            tile_load(dout, [row, column], ready.index(stage), inputs.index(stage * parts + 3))


@gluon.jit
def _ring(x, stages: gl.constexpr, parts: gl.constexpr):
    """Shared memory for the loads, and barriers that signal when a stage is ready or empty."""
    barriers: gl.constexpr = hopper.mbarrier.MBarrierLayout()
    inputs = gl.allocate_shared_memory(x.dtype, [stages * parts, TIME, WIDTH], x.layout)
    ready = gl.allocate_shared_memory(gl.int64, [stages, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [stages, 1], barriers)
    for stage in gl.static_range(stages):
        hopper.mbarrier.init(ready.index(stage), count=1)
        hopper.mbarrier.init(empty.index(stage), count=1)
    hopper.fence_async_shared()
    return inputs, ready, empty


@gluon.jit
def _mix(
    given, ring, results, items, tokens, salt, scale,
    heads: gl.constexpr, stages: gl.constexpr, threshold: gl.constexpr, causal: gl.constexpr,
):  # fmt: skip
    out, lengths, seed, normalizers = given
    inputs, ready, empty = ring
    square: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, TIME, 16])
    narrow: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, WIDTH, 16])
    factor: gl.constexpr = gl.DotOperandLayout(0, narrow, 2)
    grow: gl.constexpr = 4294967296 / (4294967296 - threshold)
    query = gl.arange(0, TIME, gl.SliceLayout(1, square))
    key = gl.expand_dims(gl.arange(0, TIME, gl.SliceLayout(0, square)), 0)
    if threshold:
        value = gl.load(seed)
        seed_hash = gluon_join(gluon_join(gluon_join(gl.to_tensor(0).to(gl.uint32), value), value >> 32), salt)
    for turn in range(gl.cdiv(items - gl.program_id(0), gl.num_programs(0))):
        item = gl.program_id(0) + turn * gl.num_programs(0)
        row = item // heads
        head = item % heads
        stage = turn % stages
        length = gl.load(lengths + row).to(gl.int32)
        wide = gl.zeros([TIME, TIME], gl.float32, square)
        k = inputs.index(stage * 3 + 1)
        hopper.mbarrier.wait(ready.index(stage), (turn // stages) & 1)
        scores = hopper.warpgroup_mma(inputs.index(stage * 3), k.permute((1, 0)), wide, use_acc=False, is_async=True)
        scores = hopper.warpgroup_mma_wait(0, deps=(scores,))
        if causal:
            scores = gl.where(gl.expand_dims(query, 1) >= key, scores, -float("inf"))
        if length < TIME:
            scores = gl.where(key < length, scores, -float("inf"))
        highest = gl.maximum(gl.max(scores, 1) * (scale * 1.4426950409), -1e30)
        p = gl.exp2(scores * (scale * 1.4426950409) - gl.expand_dims(highest, 1))
        total = gl.where(query < length, gl.sum(p, 1), 1.0)
        at = head * tokens + row * TIME + query
        gl.store(normalizers + at, highest + gl.log2(total), query < length)
        if threshold:
            hashed = gluon_join(gluon_join(seed_hash, item), query)
            gl.store(normalizers + heads * tokens + at, hashed.to(gl.float32, bitcast=True), query < length)
            p = gl.where(gluon_is_kept(gl.expand_dims(hashed, 1), key, threshold), p, 0.0)
        slim = gl.zeros([TIME, WIDTH], gl.float32, narrow)
        weights = gl.convert_layout(p.to(out.dtype), factor)
        mixed = hopper.warpgroup_mma(weights, inputs.index(stage * 3 + 2), slim, use_acc=False, is_async=True)
        share = gl.convert_layout(gl.where(query < length, grow / total, 0.0), gl.SliceLayout(1, narrow))
        mixed = hopper.warpgroup_mma_wait(0, deps=(mixed,))
        hopper.mbarrier.arrive(empty.index(stage), count=1)
        hopper.tma.store_wait(1)
        result = results.index(turn & 1)
        result.store((mixed * gl.expand_dims(share, 1)).to(out.dtype))
        hopper.fence_async_shared()
        tile_store(out, [row * TIME, head * WIDTH], result)
    hopper.tma.store_wait(0)


@gluon.jit(do_not_specialize=["items", "tokens", "salt"])
def _forward(
    qkv, out, lengths, seed, normalizers, items, tokens, salt, scale,
    heads: gl.constexpr, threshold: gl.constexpr, causal: gl.constexpr,
):  # fmt: skip
    ring = _ring(qkv, 3, 3)
    results = gl.allocate_shared_memory(qkv.dtype, [2, TIME, WIDTH], out.layout)
    given = (out, lengths, seed, normalizers)
    gl.warp_specialize([
        (_mix, (given, ring, results, items, tokens, salt, scale, heads, 3, threshold, causal)),
        (_fetch, (qkv, out, ring, items, heads, 3, 3)),
    ], [1], [24])  # fmt: skip


@gluon.jit
def _work(
    dqkv, lengths, normalizers, sums, ring, weights, items, tokens, scale,
    heads: gl.constexpr, threshold: gl.constexpr, causal: gl.constexpr,
):  # fmt: skip
    inputs, ready, empty = ring
    square: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, TIME, 16])
    narrow: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, WIDTH, 16])
    grow: gl.constexpr = 4294967296 / (4294967296 - threshold)
    query = gl.arange(0, TIME, gl.SliceLayout(1, square))
    key = gl.expand_dims(gl.arange(0, TIME, gl.SliceLayout(0, square)), 0)
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, narrow))
    # The results reuse the memory of the weights and their gradients once these have been read.
    results = weights._reinterpret(weights.dtype, [4, TIME, WIDTH], dqkv.layout)
    # The number of programs is a multiple of the heads, so each has a single head, whose bias gradient it sums.
    sum_q = gl.zeros([TIME, WIDTH], gl.float32, narrow)
    sum_v = gl.zeros([TIME, WIDTH], gl.float32, narrow)
    for turn in range(gl.cdiv(items - gl.program_id(0), gl.num_programs(0))):
        item = gl.program_id(0) + turn * gl.num_programs(0)
        row = item // heads
        head = item % heads
        stage = turn & 1
        length = gl.load(lengths + row).to(gl.int32)
        at = head * tokens + row * TIME + query
        normalizer = gl.load(normalizers + at, query < length, float("inf"))
        if threshold:
            hashed = gl.load(normalizers + heads * tokens + at, query < length, 0.0).to(gl.uint32, bitcast=True)
        q = inputs.index(stage * 4)
        k = inputs.index(stage * 4 + 1)
        v = inputs.index(stage * 4 + 2)
        do = inputs.index(stage * 4 + 3)
        wide = gl.zeros([TIME, TIME], gl.float32, square)
        hopper.mbarrier.wait(ready.index(stage), (turn >> 1) & 1)
        scores = hopper.warpgroup_mma(q, k.permute((1, 0)), wide, use_acc=False, is_async=True)
        dp = hopper.warpgroup_mma(do, v.permute((1, 0)), wide, use_acc=False, is_async=True)
        scores = hopper.warpgroup_mma_wait(1, deps=(scores,))
        # The weights, scaled by 1 / (1 - dropout).
        p = gl.exp2(scores * (scale * 1.4426950409) - gl.expand_dims(normalizer, 1)) * grow
        if causal:
            p = gl.where(gl.expand_dims(query, 1) >= key, p, 0.0)
        if length < TIME:
            p = gl.where(key < length, p, 0.0)
        dp = hopper.warpgroup_mma_wait(0, deps=(dp,))
        stay = p
        if threshold:
            # A minus sign flags dropped weights: it costs no register and keeps the magnitude.
            signed = gl.where(gluon_is_kept(gl.expand_dims(hashed, 1), key, threshold), p, -p)
            stay = gl.maximum(signed, 0.0)
            dp = gl.where(signed > 0, dp, 0.0)
            p = gl.abs(signed)
        delta = gl.sum(p * dp, 1) / grow
        hopper.tma.store_wait(0)
        weights.index(0).store(stay.to(weights.dtype))
        weights.index(1).store((p * (dp - gl.expand_dims(delta, 1))).to(weights.dtype))
        hopper.fence_async_shared()
        slim = gl.zeros([TIME, WIDTH], gl.float32, narrow)
        dv = hopper.warpgroup_mma(weights.index(0).permute((1, 0)), do, slim, use_acc=False, is_async=True)
        dk = hopper.warpgroup_mma(weights.index(1).permute((1, 0)), q, slim, use_acc=False, is_async=True)
        dq = hopper.warpgroup_mma(weights.index(1), k, slim, use_acc=False, is_async=True)
        dv, dk, dq = hopper.warpgroup_mma_wait(0, deps=(dv, dk, dq))
        hopper.mbarrier.arrive(empty.index(stage), count=1)
        dq *= scale
        results.index(0).store(dq.to(weights.dtype))
        results.index(1).store((dk * scale).to(weights.dtype))
        results.index(2).store(dv.to(weights.dtype))
        hopper.fence_async_shared()
        for part in gl.static_range(3):
            tile_store(dqkv, [row * TIME, (part * heads + head) * WIDTH], results.index(part))
        sum_q += dq
        sum_v += dv
    place = sums + gl.program_id(0) // heads * 3 * heads * WIDTH + gl.program_id(0) % heads * WIDTH + column
    gl.store(place, gl.sum(sum_q, 0))
    gl.store(place + heads * WIDTH, gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, narrow)))
    gl.store(place + 2 * heads * WIDTH, gl.sum(sum_v, 0))
    hopper.tma.store_wait(0)


@gluon.jit(do_not_specialize=["items", "tokens"])
def _backward(
    qkv, dout, dqkv, lengths, normalizers, sums, items, tokens, scale,
    heads: gl.constexpr, threshold: gl.constexpr, causal: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    ring = _ring(qkv, 2, 4)
    weights = gl.allocate_shared_memory(qkv.dtype, [2, TIME, TIME], layout)
    gl.warp_specialize([
        (_work, (dqkv, lengths, normalizers, sums, ring, weights, items, tokens, scale, heads, threshold, causal)),
        (_fetch, (qkv, dout, ring, items, heads, 2, 4)),
    ], [1], [24])  # fmt: skip
