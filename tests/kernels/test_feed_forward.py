"""Without a GPU these test the eager twin; tests/kernels/hopper/test_gluon.py compiles the kernel."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from keel.kernels.feed_forward import feed_forward
from keel.kernels.hopper import fused_feed_forward as kernel

LOOSE = 1e-2


def plain(x, expand, bias, contract, *, tanh=False):
    hidden = F.gelu(F.linear(x.float(), expand.float(), bias), approximate="tanh" if tanh else "none")
    return F.linear(hidden, contract.float()).to(x.dtype), x * 1


@pytest.fixture
def inputs(numbers):
    def sample(tokens, width, hidden, dtype=torch.float16):
        weights = numbers(hidden, width), numbers(hidden), numbers(width, hidden)
        return numbers(tokens, width, dtype=dtype), *((w.detach() * 0.05).requires_grad_() for w in weights)

    return sample


@pytest.mark.parametrize("shape", [(256, 64, 128), (200, 136, 328), (1, 8, 16)])  # whole tiles, parts, hardly any
@pytest.mark.parametrize("tanh", [False, True])
def test_values_and_gradients_are_those_of_plain_torch(hold, inputs, shape, tanh):
    hold(partial(feed_forward, tanh=tanh), partial(plain, tanh=tanh), *inputs(*shape), within=LOOSE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(9000, 768, 3072), (20_000, 136, 1032), (70_000, 384, 1536)])
def test_programs_that_take_many_tiles(hold, inputs, shape, dtype):
    hold(feed_forward, plain, *inputs(*shape, dtype=dtype), within=5 * LOOSE)


def test_the_network_may_be_used_without_its_extra_outputs(hold, inputs):
    hold(lambda *given: feed_forward(*given)[0], lambda *given: plain(*given)[0], *inputs(130, 32, 64), within=LOOSE)


def test_where_nothing_learns_the_result_is_the_same(inputs):
    given = inputs(300, 32, 264)
    with torch.no_grad():
        inferred = feed_forward(*given)[0]
    assert torch.equal(inferred, feed_forward(*given)[0])


def test_float32_and_odd_widths_go_the_plain_way(inputs):
    for given in (inputs(5, 16, 32, dtype=torch.float32), inputs(5, 16, 36)):
        assert torch.allclose(feed_forward(*given)[0], plain(*given)[0], atol=LOOSE)


def test_two_runs_give_equal_bits(inputs):
    given = inputs(200, 64, 256)
    gradients = [torch.autograd.grad(feed_forward(*given)[0].float().square().sum(), given) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_one_gradient_may_be_that_of_both(inputs, monkeypatch):
    """As norms without dropout give it: it must be read before it is added to. Plain products stand for the kernel."""

    def launch(x, weight, bias, out, slopes, sums, *, back, **settings):
        if back:
            out.copy_((x @ weight) * slopes)
            sums.copy_(torch.stack([rows.sum(0) for rows in out.split(128)]))
        else:
            h = (x @ weight.T + bias).requires_grad_()
            with torch.enable_grad():
                value = F.gelu(h)
                (slope,) = torch.autograd.grad(value.sum(), h)
            out.copy_(value.detach())
            slopes.copy_(slope)

    monkeypatch.setattr(kernel, "_launch", launch)
    given = inputs(200, 16, 32, dtype=torch.float32)

    def ours(*given):
        return kernel.FusedFeedForward.apply(*given, False, True)

    found, expected = (
        torch.autograd.grad(torch.add(*function(*given)).square().sum(), given) for function in (ours, plain)
    )
    assert all(torch.allclose(one, other, atol=1e-3) for one, other in zip(found, expected, strict=True))
