from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from keel.kernels.dropout import NO_DROPOUT, HashDropout
from keel.kernels.layer_norm import (
    add_norm,
    add_norm_twin,
    add_then_norm,
    add_then_norm_twin,
    layer_norm,
    layer_norm_twin,
)

DROPOUT = [0.0, 0.25]
TIGHT, LOOSE = (torch.float32, 1e-5), (torch.bfloat16, 3e-2)


@pytest.fixture
def seed(device) -> Tensor:
    return torch.tensor(2**40 + 3, device=device)


def with_norm(function: Callable[..., Any], *settings: Any, **more: Any) -> Callable[..., Any]:
    """The function of tensors, of which the last two are the weight and bias of a norm."""

    def run(*tensors: Tensor) -> Any:
        *given, weight, bias = tensors
        return function(*given, SimpleNamespace(weight=weight, bias=bias, eps=1e-5), *settings, **more)

    return run


@pytest.fixture
def inputs(numbers):
    """x, y, bias, weight, shift; weights near one, as those of a norm are."""

    def sample(dtype: torch.dtype, *shape: int) -> list[Tensor]:
        width = shape[-1]
        weight = (1 + 0.2 * numbers(width)).detach().requires_grad_()
        return [numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype), numbers(width), weight, numbers(width)]

    return sample


@pytest.mark.parametrize("shape", [(5, 48), (2, 3, 128), (9, 768)])
@pytest.mark.parametrize(("dtype", "within"), [TIGHT, LOOSE])
@pytest.mark.parametrize("p", DROPOUT)
def test_sum_and_norm_equal_the_twin(hold, inputs, seed, shape, dtype, within, p):
    dropout = HashDropout(p, seed, 7)
    hold(with_norm(add_norm, dropout), with_norm(add_norm_twin, dropout), *inputs(dtype, *shape), within=within)


@pytest.mark.parametrize("shape", [(5, 48), (3, 768)])
@pytest.mark.parametrize(("dtype", "within"), [TIGHT, LOOSE])
@pytest.mark.parametrize("p", DROPOUT)
def test_the_sum_and_its_norm_equal_the_twin(hold, inputs, seed, shape, dtype, within, p):
    dropout, tensors = HashDropout(p, seed, 7), inputs(dtype, *shape)
    hold(with_norm(add_then_norm, dropout), with_norm(add_then_norm_twin, dropout), *tensors, within=within)


def test_the_norm_alone_or_the_sum_alone_may_be_used(hold, inputs, seed):
    dropout = HashDropout(0.25, seed, 7)
    for used in (0, 1):
        tensors = inputs(torch.float32, 6, 48)
        if used == 0:
            tensors[3:] = [tensor.detach() for tensor in tensors[3:]]
        hold(
            lambda *tensors, used=used: with_norm(add_then_norm, dropout)(*tensors)[used],
            lambda *tensors, used=used: with_norm(add_then_norm_twin, dropout)(*tensors)[used],
            *tensors,
            within=1e-5,
        )


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", DROPOUT)
def test_the_norm_of_embeddings_equals_the_twin(hold, inputs, seed, out_dtype, p):
    settings = {"dropout": HashDropout(p, seed, 7), "out_dtype": out_dtype}
    x, _, _, weight, shift = inputs(torch.float32, 4, 3, 128)
    within = 1e-5 if out_dtype == torch.float32 else 3e-2
    ours, twin = with_norm(layer_norm, **settings), with_norm(layer_norm_twin, **settings)
    hold(ours, twin, x, weight, shift, within=within)


def test_no_dropout_is_dropout_of_nothing(inputs, seed):
    tensors = inputs(torch.float32, 4, 48)
    ours = [with_norm(add_norm, dropout)(*tensors) for dropout in (NO_DROPOUT, HashDropout(0.0, seed))]
    assert torch.equal(*ours)


def test_a_gradient_is_nonzero_exactly_where_the_forward_pass_kept(numbers, device, seed):
    x = numbers(16, 64)
    weight, shift = torch.zeros(64, device=device), torch.ones(64, device=device, requires_grad=True)
    out = with_norm(layer_norm, HashDropout(0.3, seed), out_dtype=torch.float32)(x, weight, shift)
    kept = out > 0
    assert 0.6 < kept.float().mean() < 0.8
    (gradient,) = torch.autograd.grad(out.sum(), shift)
    assert torch.allclose(gradient, kept.sum(0) / 0.7)


def test_two_runs_give_equal_bits(inputs, seed):
    tensors = inputs(torch.bfloat16, 9, 128)
    once, again = (with_norm(add_norm, HashDropout(0.25, seed, 7))(*tensors) for _ in range(2))
    assert torch.equal(once, again)
    gradients = [torch.autograd.grad(out.float().square().sum(), tensors) for out in (once, again)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
