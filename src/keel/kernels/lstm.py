"""LSTM with projection (Sak, Senior, Beaufays 2014), several stacks of one shape in parallel.

    i, f, o = sigmoid(z), g = tanh(z) with z_t = x_t W + h_{t-1} R + b    (gates lie in the order i, f, o, g)
    c_t = clip(f c_{t-1} + i g),    h_t = clip((o tanh(c_t)) P)

torch's LSTM has no clipping, and on a GPU no bf16. Here every step is two products for all stacks and one kernel
between them, and the gradients of the weights are single products over all steps.
"""

from typing import Any

import torch
from torch import Tensor

from keel.kernels import triton_usable
from keel.kernels.triton_support import tl, triton

BLOCK = 1024
NO_LIMIT = 3.0e38


def projected_lstm(
    x: Tensor, hidden: Tensor, cells: Tensor, last: Tensor, *weights: Tensor, cell_clip: float = 0.0, clip: float = 0.0
) -> tuple[Tensor, Tensor]:
    """h [stacks, time, batch, out] of x [stacks, time, batch, in], and c [stacks, batch, cells] after the `last` step
    [batch] of each sequence, without a gradient.

    `hidden` and `cells` [stacks, batch, ...] are the initial state, without a gradient; `weights` are
    W [stacks, in, 4 cells], b [stacks, 4 cells], R [stacks, out, 4 cells] and P [stacks, cells, out]. A clip of 0 is
    none.
    """
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        chosen = torch.get_autocast_dtype(kind)
        x, hidden = x.to(chosen), hidden.to(chosen)
        weights = tuple(weight.to(chosen) for weight in weights)
    with torch.autocast(kind, enabled=False):
        return _ProjectedLstm.apply(x, hidden, cells, last, *weights, cell_clip, clip)


def projected_lstm_twin(
    x: Tensor, hidden: Tensor, cells: Tensor, last: Tensor, *weights: Tensor, cell_clip: float = 0.0, clip: float = 0.0
) -> tuple[Tensor, Tensor]:
    into, bias, recurrent, projection = weights
    hidden, cells = hidden.detach(), cells.detach()
    outputs, kept = [], []
    for step in range(x.shape[1]):
        z = x[:, step] @ into + bias[:, None] + hidden @ recurrent
        i, f, o, g = z.chunk(4, -1)
        cells = f.sigmoid() * cells + i.sigmoid() * g.tanh()
        cells = cells.clamp(-cell_clip, cell_clip) if cell_clip else cells
        hidden = (o.sigmoid() * cells.tanh()) @ projection
        hidden = hidden.clamp(-clip, clip) if clip else hidden
        outputs.append(hidden)
        kept.append(cells)
    return torch.stack(outputs, 1), _at(torch.stack(kept, 1), last).detach()


def _at(values: Tensor, step: Tensor) -> Tensor:
    """[stacks, time, batch, ...] to [stacks, batch, ...]: each sequence's value at its own step."""
    return values[:, step, torch.arange(values.shape[2], device=values.device)]


@triton.jit
def _tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def _forward_step(
    gates, before, after, out, batch, gates_stride, cells_stride, out_stride, limit,
    width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Gate activations in place, new cells, out = o tanh(c); a program has a block of one stack's [batch, width]."""
    stack = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < batch * width
    gate = gates + stack * gates_stride + (place // width) * 4 * width + place % width
    i = 1 / (1 + tl.exp(-tl.load(gate, inside, 0.0).to(tl.float32)))
    f = 1 / (1 + tl.exp(-tl.load(gate + width, inside, 0.0).to(tl.float32)))
    o = 1 / (1 + tl.exp(-tl.load(gate + 2 * width, inside, 0.0).to(tl.float32)))
    g = _tanh(tl.load(gate + 3 * width, inside, 0.0).to(tl.float32))
    c = f * tl.load(before + stack * cells_stride + place, inside, 0.0) + i * g
    c = tl.minimum(tl.maximum(c, -limit), limit)
    kind = gates.dtype.element_ty
    tl.store(gate, i.to(kind), inside)
    tl.store(gate + width, f.to(kind), inside)
    tl.store(gate + 2 * width, o.to(kind), inside)
    tl.store(gate + 3 * width, g.to(kind), inside)
    tl.store(after + stack * cells_stride + place, c, inside)
    tl.store(out + stack * out_stride + place, (o * _tanh(c)).to(kind), inside)


@triton.jit
def _backward_step(
    gates, before, after, dout, dcells, batch, gates_stride, cells_stride, limit,
    width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Gradients of the gates' pre-activations, in place; dcells becomes that of the step before."""
    stack = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < batch * width
    gate = gates + stack * gates_stride + (place // width) * 4 * width + place % width
    i = tl.load(gate, inside, 0.0).to(tl.float32)
    f = tl.load(gate + width, inside, 0.0).to(tl.float32)
    o = tl.load(gate + 2 * width, inside, 0.0).to(tl.float32)
    g = tl.load(gate + 3 * width, inside, 0.0).to(tl.float32)
    earlier = tl.load(before + stack * cells_stride + place, inside, 0.0)
    c = tl.load(after + stack * cells_stride + place, inside, 0.0)
    own = stack * batch * width + place
    m = tl.load(dout + own, inside, 0.0).to(tl.float32)
    t = _tanh(c)
    dc = tl.load(dcells + own, inside, 0.0) + m * o * (1 - t * t)
    dc = tl.where(tl.abs(c) < limit, dc, 0.0)
    kind = gates.dtype.element_ty
    tl.store(gate, (dc * g * i * (1 - i)).to(kind), inside)
    tl.store(gate + width, (dc * earlier * f * (1 - f)).to(kind), inside)
    tl.store(gate + 2 * width, (m * t * o * (1 - o)).to(kind), inside)
    tl.store(gate + 3 * width, (dc * i * (1 - g * g)).to(kind), inside)
    tl.store(dcells + own, dc * f, inside)


def fused(gates: Tensor) -> bool:
    """Whether to use the kernels; one launch per step is far too slow in the interpreter."""
    return gates.is_cuda and triton_usable(gates)


def _grid(gates: Tensor) -> tuple[int, int]:
    stacks, _, batch, four = gates.shape
    return -(-batch * four // 4 // BLOCK), stacks


def _activate_gates(gates: Tensor, cells: Tensor, out: Tensor, step: int, limit: float) -> None:
    """Activate gates[:, step] in place; cells[:, step] to cells[:, step + 1]; out[:, step] = o tanh(c)."""
    z, before, after = gates[:, step], cells[:, step], cells[:, step + 1]
    width = cells.shape[-1]
    if fused(gates):
        sizes = z.shape[1], gates.stride(0), cells.stride(0), out.stride(0), limit or NO_LIMIT
        _forward_step[_grid(gates)](z, before, after, out[:, step], *sizes, width=width, block=BLOCK)
        return
    z[..., : 3 * width].sigmoid_()
    z[..., 3 * width :].tanh_()
    i, f, o, g = z.chunk(4, -1)
    torch.mul(f, before, out=after).addcmul_(i, g)
    if limit:
        after.clamp_(-limit, limit)
    torch.mul(o, after.tanh(), out=out[:, step])


def _gate_gradients(gates: Tensor, cells: Tensor, dout: Tensor, dcells: Tensor, step: int, limit: float) -> None:
    """Replace gates[:, step] by their gradients, given those of out[:, step] and of the next cells; update dcells.

    dout and dcells are [stacks, batch, cells].
    """
    z, before, after = gates[:, step], cells[:, step], cells[:, step + 1]
    width = cells.shape[-1]
    if fused(gates):
        sizes = z.shape[1], gates.stride(0), cells.stride(0), limit or NO_LIMIT
        _backward_step[_grid(gates)](z, before, after, dout, dcells, *sizes, width=width, block=BLOCK)
        return
    i, f, o, g = z.chunk(4, -1)
    t = after.tanh()
    dcells.addcmul_(dout * o, 1 - t * t)
    if limit:
        dcells.masked_fill_(after.abs() >= limit, 0.0)
    di = dcells * g * i * (1 - i)
    df = dcells * before * f * (1 - f)
    do = dout * t * o * (1 - o)
    dg = dcells * i * (1 - g * g)
    dcells.mul_(f)
    for gate, gradient in zip((i, f, o, g), (di, df, do, dg), strict=True):
        gate.copy_(gradient)


class _ProjectedLstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, hidden: Tensor, cells: Tensor, last: Tensor, into: Tensor, bias: Tensor, recurrent: Tensor,
        projection: Tensor, cell_clip: float, clip: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        stacks, time, batch, _ = x.shape
        width = cells.shape[-1]
        x = x.contiguous()
        gates = torch.baddbmm(bias[:, None], x.flatten(1, 2), into).view(stacks, time, batch, 4 * width)
        all_cells = cells.new_empty(stacks, time + 1, batch, width)
        all_cells[:, 0] = cells
        all_hidden = x.new_empty(stacks, time + 1, batch, hidden.shape[-1])
        all_hidden[:, 0] = hidden
        cell_outputs = x.new_empty(stacks, time, batch, width)
        for step in range(time):
            gates[:, step].baddbmm_(all_hidden[:, step], recurrent)
            _activate_gates(gates, all_cells, cell_outputs, step, cell_clip)
            after = torch.bmm(cell_outputs[:, step], projection)
            all_hidden[:, step + 1] = after.clamp_(-clip, clip) if clip else after
        ctx.save_for_backward(x, gates, all_cells, all_hidden, cell_outputs, into, recurrent, projection)
        ctx.clips = cell_clip, clip
        outputs = all_hidden[:, 1:].clone()  # not a view of a saved tensor
        found = _at(all_cells, last + 1)
        ctx.mark_non_differentiable(found)
        return outputs, found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, gates, cells, hidden, cell_outputs, into, recurrent, projection = ctx.saved_tensors
        cell_clip, clip = ctx.clips
        time = gates.shape[1]
        dhidden = gradients[0].to(gates.dtype).contiguous().clone()  # [stacks, time, batch, out]
        dcells = torch.zeros_like(cells[:, 0])
        for step in reversed(range(time)):
            if step < time - 1:
                dhidden[:, step].baddbmm_(gates[:, step + 1], recurrent.mT)
            if clip:
                dhidden[:, step].masked_fill_(hidden[:, step + 1].abs() >= clip, 0.0)
            dcell_outputs = torch.bmm(dhidden[:, step], projection.mT)
            _gate_gradients(gates, cells, dcell_outputs, dcells, step, cell_clip)
        flat = gates.flatten(1, 2)  # [stacks, time * batch, 4 cells]
        dx = torch.bmm(flat, into.mT).view(x.shape)
        dinto = torch.bmm(x.flatten(1, 2).mT, flat)
        dbias = flat.sum(1)
        drecurrent = torch.bmm(hidden[:, :-1].flatten(1, 2).mT, flat)
        dprojection = torch.bmm(cell_outputs.flatten(1, 2).mT, dhidden.flatten(1, 2))
        return dx, None, None, None, dinto, dbias, drecurrent, dprojection, None, None
