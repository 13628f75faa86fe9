"""The kernels in Gluon, word for word, with tiny tiles on a CPU."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from keel.kernels import attention, dropout
from keel.kernels.attention_varlen import PackedSpans
from keel.kernels.dropout import HashDropout
from keel.kernels.hopper import attention_fixed, fused_feed_forward
from tests.kernels.gluon_on_cpu import Machine, Pointer, Tiles, Value, raw

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton")
HALF = torch.float16
SMALL = {"TOKENS": 8, "COLUMNS": 8, "DEPTH": 4, "STAGES": 3, "HALF": 4}
SHORT = {"TIME": 8, "WIDTH": 4}


def near(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours.float() - theirs.float()).abs().max() <= 1e-2 * theirs.float().abs().max().clamp(min=1))


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("shape", [(50, 4, 20), (17, 22, 24), (8, 13, 3), (70, 12, 9)])
def test_the_network_and_its_gradient(shape: tuple[int, int, int], programs: int) -> None:
    tokens, width, hidden = shape
    torch.manual_seed(0)
    x, expand, dy = torch.randn(tokens, width).to(HALF), torch.randn(hidden, width).to(HALF), torch.randn(tokens, width)
    bias, contract, dy = torch.randn(hidden), torch.randn(width, hidden).to(HALF), dy.to(HALF)
    h = (x.float() @ expand.float().T + bias).requires_grad_()
    wanted = F.gelu(h)
    (slope,) = torch.autograd.grad(wanted.sum(), h)
    out, slopes, dh = (torch.full((tokens, hidden), torch.nan, dtype=HALF) for _ in range(3))
    sums = torch.full((-(-tokens // 8), hidden), torch.nan)

    def run(x: Tensor, weight: Tiles, out: Tensor, back: bool) -> None:
        given = Tiles(x, 8, 4), weight, Pointer(bias), Tiles(out, 8, 4), Tiles(slopes, 8, 4), Pointer(sums)
        fixed = {"back": back, "tanh": False, "needs_grad": True}
        Machine().run(fused_feed_forward._product, programs, *given, tokens, hidden, width, others=SMALL, **fixed)

    run(x, Tiles(expand, 8, 4), out, back=False)
    assert near(out, wanted)
    assert near(slopes, slope)
    run(dy, Tiles(contract, 4, 8), dh, back=True)
    expected = (dy.float() @ contract.float()) * slopes.float()
    assert near(dh, expected)
    assert near(sums.sum(0), expected.sum(0))


def join(key: Any, value: Any) -> Value:
    return Value(dropout._join(torch.as_tensor(raw(key)), torch.as_tensor(raw(value)) & 0xFFFFFFFF))


def is_kept(hashed: Any, column: Any, threshold: int) -> Value:
    x = (raw(hashed) + raw(column) * 0x9E3779B9) & 0xFFFFFFFF
    return Value(((x ^ x >> 13) * 0x846CA68B & 0xFFFFFFFF) >= threshold)


@pytest.mark.parametrize("programs", [2, 6])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropped", [0.0, 0.3])
def test_attention_over_even_rows(programs: int, causal: bool, dropped: float) -> None:
    torch.manual_seed(0)
    heads, rows, time, width = 2, 5, 8, 4
    lengths, seed = torch.tensor([8, 3, 8, 1, 7]), torch.tensor(7 << 33 | 5)
    qkv = torch.randn(rows * time, 3 * heads * width).to(HALF)
    bias = torch.zeros(3 * heads * width, requires_grad=True)
    spans = PackedSpans(torch.arange(0, rows * time, time), lengths, time)
    given = qkv.float().requires_grad_()
    hashed = HashDropout(dropped, seed, 3)
    wanted = attention.attend_twin(given, bias, spans, heads=heads, dropout=hashed, causal=causal)
    dout = torch.randn(rows * time, heads * width).to(HALF)
    gradient, dbias = torch.autograd.grad(wanted, (given, bias), dout.float())

    out, dqkv = torch.full_like(dout, torch.nan), torch.full_like(qkv, torch.nan)
    normalizers, sums = (
        torch.full((2, heads, rows * time), torch.nan),
        torch.full((programs // heads, 3 * heads * width), torch.nan),
    )
    fixed = {"heads": heads, "threshold": hashed.threshold, "causal": causal}
    others = SHORT | {"gluon_join": join, "gluon_is_kept": is_kept}
    pointers = Pointer(lengths), Pointer(seed[None]), Pointer(normalizers), rows * heads, rows * time, 3, width**-0.5
    tiles = (Tiles(x, time, width) for x in (qkv, out))
    Machine().run(attention_fixed._forward, programs, *tiles, *pointers, others=others, **fixed)
    assert near(out, wanted)
    tiles = (Tiles(x, time, width) for x in (qkv, dout, dqkv))
    pointers = Pointer(lengths), Pointer(normalizers), Pointer(sums), rows * heads, rows * time, width**-0.5
    Machine().run(attention_fixed._backward, programs, *tiles, *pointers, others=others, **fixed)
    assert near(dqkv, gradient)
    assert near(sums.sum(0), dbias)


@pytest.fixture
def even_rows_take_the_kernels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Launches as on a Hopper of five multiprocessors; gives the programs of each."""
    launched: list[int] = []

    class Launched:
        def __init__(self, kernel: Any):
            self.kernel, self.fn = kernel, kernel.fn

        def __getitem__(self, grid: tuple[int]) -> Any:
            def launch(*given: Any, num_warps: int, maxnreg: int, **fixed: Any) -> None:
                launched.append(grid[0])
                pointers = [Pointer(x.data) if isinstance(x, Tensor) else x for x in given]
                others = {"gluon_join": join, "gluon_is_kept": is_kept}
                Machine().run(self.kernel, grid[0], *pointers, others=others, **fixed)

            return launch

    for name in ("_forward", "_backward"):
        monkeypatch.setattr(attention_fixed, name, Launched(getattr(attention_fixed, name)))
    monkeypatch.setattr(attention_fixed, "tiled", Tiles)
    monkeypatch.setattr(attention_fixed, "multiprocessors", lambda device: 5)
    monkeypatch.setattr(attention, "triton_usable", lambda x: True)
    monkeypatch.setattr(attention, "trusted", lambda gap, x, *settings: gap(x.device, x.dtype, *settings) < 0.02)
    return launched


@pytest.mark.parametrize(("causal", "dropped"), [(False, 0.1), (True, 0.0)])
def test_even_rows_of_128_are_tried_and_taken(
    even_rows_take_the_kernels: list[int], hold: Any, causal: bool, dropped: float
) -> None:
    torch.manual_seed(0)
    heads, rows = 2, 3
    starts, lengths = torch.arange(0, rows * 128, 128), torch.tensor([128, 70, 1])
    spans = PackedSpans(starts, lengths, 128, uniform=True)
    settings = {"heads": heads, "dropout": HashDropout(dropped, torch.tensor(3)), "causal": causal}
    hold(
        lambda qkv, bias: attention.attend(qkv, bias, spans, **settings),
        lambda qkv, bias: attention.attend_twin(qkv, bias, spans, **settings),
        torch.randn(rows * 128, 3 * heads * 64).to(HALF).requires_grad_(),
        torch.randn(3 * heads * 64).requires_grad_(),
        within=1e-2,
    )
    assert even_rows_take_the_kernels == [5, 4, 5, 4]  # the trial's and its own, each both ways


def test_rows_that_are_not_so_go_another_way(even_rows_take_the_kernels: list[int]) -> None:
    def fits(rows: int, tokens: int, max_seqlen: int = 128, heads: int = 2, width: int = 64) -> bool:
        return attention_fixed.fits(torch.empty(tokens, 3 * heads * width), torch.empty(rows), max_seqlen, heads)

    assert fits(2, 256)
    assert not fits(2, 255)
    assert not fits(0, 0)
    assert not fits(2, 128, max_seqlen=64)
    assert not fits(2, 256, width=32)
    assert not fits(2, 256, heads=6)  # more than there are multiprocessors
