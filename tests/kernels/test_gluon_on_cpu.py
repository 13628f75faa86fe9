"""The kernels in Gluon, word for word, with tiny tiles on a CPU."""

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from keel.kernels import feed_forward
from tests.kernels.gluon_on_cpu import Machine, Pointer, Tiles

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton")
HALF = torch.float16
SMALL = {"TOKENS": 8, "COLUMNS": 8, "DEPTH": 4, "STAGES": 3, "HALF": 4}


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
        fixed = {"back": back, "tanh": False, "learns": True}
        Machine().run(feed_forward._product, programs, *given, tokens, hidden, width, others=SMALL, **fixed)

    run(x, Tiles(expand, 8, 4), out, back=False)
    assert near(out, wanted)
    assert near(slopes, slope)
    run(dy, Tiles(contract, 4, 8), dh, back=True)
    expected = (dy.float() @ contract.float()) * slopes.float()
    assert near(dh, expected)
    assert near(sums.sum(0), expected.sum(0))
