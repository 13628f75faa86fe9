from functools import partial

import pytest
import torch

from keel.kernels.gelu import bias_gelu, bias_gelu_twin


@pytest.mark.parametrize("shape", [(5, 48), (2, 3, 512), (9, 300)])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_equals_the_twin(hold, numbers, shape, dtype, within, tanh):
    h = numbers(*shape, dtype=dtype)
    hold(partial(bias_gelu, tanh=tanh), partial(bias_gelu_twin, tanh=tanh), h, numbers(shape[-1]), within=within)


@pytest.mark.filterwarnings("ignore:overflow")  # as it should
@pytest.mark.parametrize("tanh", [False, True])
def test_the_far_ends_are_zero_and_the_identity(device, tanh):
    x = torch.tensor([[-1e4, -30.0, -12.0, 0.0, 12.0, 30.0, 1e4]], device=device, requires_grad=True)
    out = bias_gelu(x, torch.zeros(7, device=device), tanh=tanh)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.allclose(out, x.clamp(min=0), atol=1e-6)
    assert torch.allclose(gradient, torch.tensor([[0, 0, 0, 0.5, 1, 1, 1]], device=device), atol=1e-6)


def test_two_runs_give_equal_bits(numbers):
    h, bias = numbers(33, 256, dtype=torch.bfloat16), numbers(256)
    gradients = [torch.autograd.grad(bias_gelu(h, bias).float().square().sum(), (h, bias)) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
