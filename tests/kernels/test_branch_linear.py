import pytest
import torch

from keel.kernels.branch_linear import branch_linear, branch_linear_twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_gradients_of_the_input_are_added(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(6, 5, generator=generator), torch.randn(4, 5, generator=generator)
    bias = torch.randn(4, generator=generator, requires_grad=True)

    def gradients(function):
        given = x.to(dtype).requires_grad_(), weight.clone().requires_grad_()
        y, again = function(*given, bias)
        loss = (y.float().square().sum() + again.float().pow(3).sum()) * 0.1
        return y, *torch.autograd.grad(loss, given)

    for ours, theirs in zip(gradients(branch_linear), gradients(branch_linear_twin), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.allclose(ours, theirs, atol=1e-5 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_two_may_be_used_alone(used: int) -> None:
    x, weight = torch.randn(6, 5, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    bias = torch.zeros(4)
    ours, theirs = (
        torch.autograd.grad(function(x, weight, bias)[used].square().sum(), (x, weight), materialize_grads=True)
        for function in (branch_linear, branch_linear_twin)
    )
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(ours, theirs, strict=True))


def test_what_is_frozen_gets_no_gradient() -> None:
    x, weight = torch.randn(6, 5), torch.randn(4, 5, requires_grad=True)
    y, _ = branch_linear(x, weight, torch.zeros(4))
    (gradient,) = torch.autograd.grad(y.sum(), weight)
    assert torch.allclose(gradient, x.sum(0).expand(4, 5), atol=1e-5)


def test_one_gradient_may_be_that_of_both() -> None:
    """As norms without dropout give it: it must be read before it is added to."""
    x, weight = torch.randn(6, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    ours, theirs = (
        torch.autograd.grad(torch.add(*function(x, weight, torch.zeros(5))).sum(), (x, weight))
        for function in (branch_linear, branch_linear_twin)
    )
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(ours, theirs, strict=True))
