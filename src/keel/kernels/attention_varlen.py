"""Attention kernels for sequences of any length, in Triton.

A sequence of up to 128 tokens is one block, whose backward pass is a single pass without atomics. Longer ones are
processed in blocks as in FlashAttention (Dao et al. 2022).
"""

# pyright: reportPossiblyUnboundVariable=false
from typing import NamedTuple

import torch
from torch import Tensor

from keel.kernels.dropout import HashDropout, is_kept, join, plane_key
from keel.kernels.triton_support import multiprocessors, power_of_two, shared_memory, tl, triton

SHARED = 160_000
"""Bytes of shared memory per program that the large tiles need; consumer GPUs have less."""


class PackedSpans(NamedTuple):
    """Where the sequences of a batch lie in one long sequence of tokens: in order, without overlap."""

    starts: Tensor  # [batch]
    lengths: Tensor  # [batch]
    max_seqlen: int
    uniform: bool = False
    """Whether a sequence starts at every multiple of `max_seqlen`, and the padding between them is finite."""


def tiling(
    max_seqlen: int, d: int, dtype: torch.dtype, *, backward: bool, shared: int = SHARED
) -> tuple[int, int, int, int]:
    """Queries and keys of a tile, warps, pipeline stages; measured once and fixed, so that results are reproducible."""
    block = max(16, power_of_two(max_seqlen))
    if shared < SHARED and block > 64:
        return 64, 64, 4, 1
    if dtype == torch.float32 or d > 64:
        block = min(block, 32 if dtype == torch.float32 and backward else 64)
        return block, block, 8 if d > 64 and block == 64 else 4, 1
    if block <= 64:
        return block, block, max(1, block // 16), 2 if backward else 1
    if block == 128:
        return (128, 128, 8, 2) if backward else (64, 128, 4, 1)
    return (64, 128, 8, 1) if backward else (128, 64, 4, 3)


def mix(
    qkv: Tensor, spans: PackedSpans, out: Tensor, normalizers: Tensor, heads: int, dropout: HashDropout, causal: bool
) -> None:
    """Write out [tokens, width] and, for the backward pass, normalizers [1 or 2, heads, tokens]."""
    starts, lengths, max_seqlen, _ = spans
    tokens, rows, d = len(qkv), len(starts), out.shape[1] // heads
    queries, keys, warps, stages = tiling(max_seqlen, d, qkv.dtype, backward=False, shared=shared_memory(qkv.device))
    blocks = -(-max_seqlen // queries)
    tiles = {"queries": queries, "keys": keys, "blocks": blocks, "num_warps": warps, "num_stages": stages}
    _forward[(rows * heads * blocks,)](
        *(qkv, starts, lengths, dropout.seed, out, normalizers, tokens, rows, dropout.salt, d**-0.5),
        *(heads, d, max_seqlen <= keys, dropout.threshold, causal),
        **tiles,
    )


def gradients(
    dout: Tensor, qkv: Tensor, spans: PackedSpans, out: Tensor, normalizers: Tensor, heads: int,
    dropout: HashDropout, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of qkv [tokens, 3 x width] and of its bias [3 x width]."""
    starts, lengths, max_seqlen, _ = spans
    tokens, width, rows = len(qkv), dout.shape[1], len(starts)
    d = width // heads
    dqkv = torch.empty_like(qkv)
    sums = torch.empty(rows, 3 * width, dtype=torch.float32, device=qkv.device)
    queries, keys, warps, stages = tiling(max_seqlen, d, qkv.dtype, backward=True, shared=shared_memory(qkv.device))
    rest = {"heads": heads, "d": d, "threshold": dropout.threshold, "causal": causal, "num_warps": warps}
    if max_seqlen <= keys:
        programs = min(rows * heads, max(1, 8 // warps) * multiprocessors(qkv.device))
        given = dout, qkv, starts, lengths, normalizers, dqkv, sums, tokens, rows, d**-0.5
        _backward_whole[(programs,)](*given, time=keys, stages=stages, **rest)
    else:
        scratch = torch.empty(tokens, width, dtype=torch.float32, device=qkv.device)
        deltas = torch.empty(heads, tokens, dtype=torch.float32, device=qkv.device)
        given = dout, qkv, starts, lengths, out, normalizers, deltas, scratch, dqkv, sums, tokens, rows, d**-0.5
        _backward_blocks[(rows * heads,)](*given, queries=queries, keys=keys, num_stages=stages, **rest)
    return dqkv, sums.sum(0)


@triton.jit
def _extent(starts, lengths, row, rows, tokens):
    """A sequence's first token, its length, and the tokens up to the next sequence."""
    start = tl.load(starts + row).to(tl.int64)
    following = tl.load(starts + row + 1, row + 1 < rows, tokens).to(tl.int64)
    return start, tl.load(lengths + row).to(tl.int32), (following - start).to(tl.int32)


@triton.jit
def _clear(out, starts, lengths, rows, tokens, width: tl.constexpr, block: tl.constexpr, least: tl.constexpr):
    """Write zeros between sequences, from the end of a sequence's last block on, and before the first one.

    Each gap belongs to one program; all share the one after the last sequence, the padding of a fixed-size batch.
    """
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    for row in range(program, rows, programs):
        start, length, span = _extent(starts, lengths, row, rows, tokens)
        first = start + tl.maximum((length + block - 1) // block * block, least)
        if row < rows - 1:
            _fill(out, first * width, (start + span) * width, 1024)
        if row == 0:
            _fill(out, tl.zeros_like(start), start * width, 1024)
    start, length, span = _extent(starts, lengths, rows - 1, rows, tokens)
    first = start + tl.maximum((length + block - 1) // block * block, least)
    _fill(out + program * 1024, first * width, tl.cast(tokens, tl.int64) * width - program * 1024, programs * 1024)


@triton.jit
def _fill(out, first, last, step):
    """Zeros from first to last, in blocks of 1024 that lie `step` apart."""
    for place in range(first, last, step):
        index = place + tl.arange(0, 1024)
        tl.store(out + index, tl.zeros([1024], out.dtype.element_ty), index < last)


@triton.jit(do_not_specialize=["salt", "rows", "tokens"])
def _forward(
    qkv, starts, lengths, seed, out, normalizers, tokens, rows, salt, scale,
    heads: tl.constexpr, d: tl.constexpr, whole: tl.constexpr, threshold: tl.constexpr, causal: tl.constexpr,
    queries: tl.constexpr, keys: tl.constexpr, blocks: tl.constexpr,
):  # fmt: skip
    """One program: one block of queries of one head of one sequence. `whole`: a single block holds all keys."""
    width: tl.constexpr = heads * d
    column = tl.arange(0, d)[None, :]
    block = tl.program_id(0) % blocks
    plane = tl.program_id(0) // blocks
    row = plane // heads
    head = plane % heads
    start, length, span = _extent(starts, lengths, row, rows, tokens)
    source = qkv + start * 3 * width + head * d
    query = block * queries + tl.arange(0, queries)[:, None]
    q = tl.load(source + query * 3 * width + column, query < length, 0.0)
    highest = tl.full([queries, 1], -1e30, tl.float32)
    total = tl.zeros([queries, 1], tl.float32)
    mixed = tl.zeros([queries, d], tl.float32)
    if threshold:
        hashed = join(plane_key(seed, salt, plane), query)
    end = keys
    if not whole:
        end = tl.where(block * queries < length, length, 0)
        if causal:
            end = tl.minimum(end, (block + 1) * queries)
    for first in range(0, end, keys):
        key = first + tl.arange(0, keys)
        place = key[:, None] * 3 * width + column
        k = tl.load(source + width + place, key[:, None] < length, 0.0)
        v = tl.load(source + 2 * width + place, key[:, None] < length, 0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # [queries, keys]
        if causal:
            scores = tl.where(query >= key[None, :], scores, -float("inf"))
        if first + keys > length:
            scores = tl.where(key[None, :] < length, scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1, keep_dims=True) * (scale * 1.4426950409))
        fade = tl.exp2(highest - higher)
        p = tl.exp2(scores * (scale * 1.4426950409) - higher)
        total = total * fade + tl.sum(p, 1, keep_dims=True)
        if threshold:
            p = tl.where(is_kept(hashed, key[None, :], threshold), p, 0.0)
        mixed = tl.dot(p.to(v.dtype), v, mixed * fade, input_precision="ieee")
        highest = higher
    total = tl.where(query < length, total, 1.0)
    mixed *= 4294967296 / (4294967296 - threshold) / total
    mixed = tl.where(query < length, mixed, 0.0)
    tl.store(out + (start + query) * width + head * d + column, mixed.to(out.dtype.element_ty), query < span)
    place = head.to(tl.int64) * tokens + start + query
    tl.store(normalizers + place, highest + tl.log2(total), query < length)
    if threshold:
        tl.store(normalizers + heads * tokens + place, hashed.to(tl.float32, bitcast=True), query < length)
    _clear(out, starts, lengths, rows, tokens, width, queries, blocks * queries)


@triton.jit(do_not_specialize=["rows", "tokens"])
def _backward_whole(
    dout, qkv, starts, lengths, normalizers, dqkv, sums, tokens, rows, scale,
    heads: tl.constexpr, d: tl.constexpr, time: tl.constexpr, stages: tl.constexpr, threshold: tl.constexpr,
    causal: tl.constexpr,
):  # fmt: skip
    """Sequences of up to `time` tokens, one head at a time; a program loads the next while it works on one."""
    width: tl.constexpr = heads * d
    grow = tl.full([], 4294967296 / (4294967296 - threshold), tl.float32)
    column = tl.arange(0, d)[None, :]
    query = tl.arange(0, time)[:, None]
    key = tl.arange(0, time)[None, :]
    for item in tl.range(tl.program_id(0), rows * heads, tl.num_programs(0), num_stages=stages):
        row = item // heads
        head = item % heads
        start, length, span = _extent(starts, lengths, row, rows, tokens)
        place = start * 3 * width + head * d + query * 3 * width + column
        q = tl.load(qkv + place, query < length, 0.0)
        k = tl.load(qkv + width + place, query < length, 0.0)
        v = tl.load(qkv + 2 * width + place, query < length, 0.0)
        do = tl.load(dout + (start + query) * width + head * d + column, query < length, 0.0)
        at = head.to(tl.int64) * tokens + start + query
        normalizer = tl.load(normalizers + at, query < length, float("inf"))
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # [queries, keys]
        # The weights, scaled by 1 / (1 - dropout).
        p = tl.exp2(scores * (scale * 1.4426950409) - (normalizer - tl.log2(grow)))
        if causal:
            p = tl.where(query >= key, p, 0.0)
        if length < time:
            p = tl.where(key < length, p, 0.0)
        stay = p
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        if threshold:
            # A minus sign flags dropped weights: it costs no register and keeps the magnitude.
            hashed = tl.load(normalizers + heads * tokens + at, query < length, 0.0).to(tl.uint32, bitcast=True)
            signed = tl.where(is_kept(hashed, key, threshold), p, -p)
            stay = tl.maximum(signed, 0.0)
            dp = tl.where(signed > 0, dp, 0.0)
            p = tl.abs(signed)
        dv = tl.dot(tl.trans(stay.to(do.dtype)), do, input_precision="ieee")
        delta = tl.sum(p * dp, 1, keep_dims=True) / grow
        ds = (p * (dp - delta)).to(k.dtype)
        dk = tl.dot(tl.trans(ds), q, input_precision="ieee") * scale
        dq = tl.dot(ds, k, input_precision="ieee") * scale
        tl.store(dqkv + place, dq.to(dqkv.dtype.element_ty), query < span)
        tl.store(dqkv + width + place, dk.to(dqkv.dtype.element_ty), query < span)
        tl.store(dqkv + 2 * width + place, dv.to(dqkv.dtype.element_ty), query < span)
        part = sums + row * 3 * width + head * d + column
        tl.store(part, tl.sum(dq, 0, keep_dims=True))
        tl.store(part + width, tl.zeros([1, d], tl.float32))
        tl.store(part + 2 * width, tl.sum(dv, 0, keep_dims=True))
    _clear(dqkv, starts, lengths, rows, tokens, 3 * width, time, time)


@triton.jit(do_not_specialize=["rows", "tokens"])
def _backward_blocks(
    dout, qkv, starts, lengths, out, normalizers, deltas, scratch, dqkv, sums, tokens, rows, scale,
    heads: tl.constexpr, d: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr, threshold: tl.constexpr,
    causal: tl.constexpr,
):  # fmt: skip
    """One program: one head of one row, block of keys after block of keys, and for each the queries; keys are down here
    and queries across, which saves a transposition and registers.

    The queries' gradient grows in `scratch`, in float32, of which every program owns its part.
    """
    width: tl.constexpr = heads * d
    grow = tl.full([], 4294967296 / (4294967296 - threshold), tl.float32)
    column = tl.arange(0, d)[None, :]
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    start, length, _ = _extent(starts, lengths, row, rows, tokens)
    source = qkv + start * 3 * width + head * d
    target = dqkv + start * 3 * width + head * d
    given = dout + start * width + head * d
    made = out + start * width + head * d
    scratch += start * width + head * d
    normalizers += head.to(tl.int64) * tokens + start
    deltas += head.to(tl.int64) * tokens + start
    sum_q = tl.zeros([1, d], tl.float32)
    sum_v = tl.zeros([1, d], tl.float32)
    for first in range(0, length, queries):  # once, not for every block of keys
        query = first + tl.arange(0, queries)
        place = query[:, None] * width + column
        do = tl.load(given + place, query[:, None] < length, 0.0).to(tl.float32)
        o = tl.load(made + place, query[:, None] < length, 0.0).to(tl.float32)
        tl.store(deltas + query, tl.sum(o * do, 1) / grow, query < length)
    tl.debug_barrier()  # what one thread has written, another reads
    for first_key in range(0, length, keys):
        key = first_key + tl.arange(0, keys)[:, None]
        place = key * 3 * width + column
        k = tl.load(source + width + place, key < length, 0.0)
        v = tl.load(source + 2 * width + place, key < length, 0.0)
        dk = tl.zeros([keys, d], tl.float32)
        dv = tl.zeros([keys, d], tl.float32)
        for first in range(first_key // queries * queries if causal else 0, length, queries):
            query = first + tl.arange(0, queries)
            there = query[:, None] < length
            q = tl.load(source + query[:, None] * 3 * width + column, there, 0.0)
            do = tl.load(given + query[:, None] * width + column, there, 0.0)
            normalizer = tl.load(normalizers + query, query < length, float("inf"))
            delta = tl.load(deltas + query, query < length, 0.0)
            scores = tl.dot(k, tl.trans(q), input_precision="ieee")  # [keys, queries]
            p = tl.exp2(scores * (scale * 1.4426950409) - (normalizer - tl.log2(grow))[None, :])
            if causal:
                p = tl.where(query[None, :] >= key, p, 0.0)
            if first_key + keys > length:
                p = tl.where(key < length, p, 0.0)
            dp = tl.dot(v, tl.trans(do), input_precision="ieee")
            stay = p
            if threshold:
                hashed = tl.load(normalizers + heads * tokens + query, query < length, 0.0).to(tl.uint32, bitcast=True)
                signed = tl.where(is_kept(hashed[None, :], key, threshold), p, -p)
                stay = tl.maximum(signed, 0.0)
                dp = tl.where(signed > 0, dp, 0.0)
                p = tl.abs(signed)
            dv = tl.dot(stay.to(do.dtype), do, dv, input_precision="ieee")
            ds = (p * (dp - delta[None, :])).to(k.dtype)
            dk = tl.dot(ds, q, dk, input_precision="ieee")
            dq = tl.dot(tl.trans(ds), k, input_precision="ieee") * scale
            owned = scratch + query[:, None] * width + column
            dq += tl.load(owned, there & (first_key > 0), 0.0)
            last = first_key + keys >= length
            if causal:
                last = last | (first_key + keys >= first + queries)
            if last:  # no other key is seen by these
                sum_q += tl.sum(dq, 0, keep_dims=True)
                tl.store(target + query[:, None] * 3 * width + column, dq.to(dqkv.dtype.element_ty), there)
            else:
                tl.store(owned, dq, there)
        tl.debug_barrier()  # what one thread has added to, another may read next
        sum_v += tl.sum(dv, 0, keep_dims=True)
        tl.store(target + width + place, (dk * scale).to(dqkv.dtype.element_ty), key < length)
        tl.store(target + 2 * width + place, dv.to(dqkv.dtype.element_ty), key < length)
    part = sums + row * 3 * width + head * d + column
    tl.store(part, sum_q)
    tl.store(part + width, tl.zeros([1, d], tl.float32))
    tl.store(part + 2 * width, sum_v)
    _clear(dqkv, starts, lengths, rows, tokens, 3 * width, 1, 0)
