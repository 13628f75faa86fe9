from functools import partial

import pytest
import torch
from torch import Tensor

from keel.kernels.layer_norm import add_norm, add_norm_twin, add_then_norm, drop_rows, layer_norm, layer_norm_twin

PLAIN = {"epsilon": 1e-5}
DROPPED = {"epsilon": 1e-5, "dropout": 0.25, "salt": 7}
TIGHT, LOOSE = (torch.float32, 1e-5), (torch.bfloat16, 3e-2)


@pytest.fixture
def seed(device) -> Tensor:
    return torch.tensor(2**40 + 3, device=device)


@pytest.fixture
def inputs(numbers):
    """x, y, bias, weight, shift; weights near one, as those of a norm are."""

    def draw(dtype: torch.dtype, *shape: int) -> list[Tensor]:
        width = shape[-1]
        weight = (1 + 0.2 * numbers(width)).detach().requires_grad_()
        return [numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype), numbers(width), weight, numbers(width)]

    return draw


def add_then_norm_twin(x, y, bias, weight, shift, *, epsilon, dropout=0.0, seed, salt=0):
    total = (x.float() + drop_rows(y.float() + bias, dropout, seed, salt)).to(x.dtype)
    return total, layer_norm_twin(total, weight, shift, epsilon=epsilon, out_dtype=y.dtype)


@pytest.mark.parametrize("shape", [(5, 48), (2, 3, 128), (9, 768)])
@pytest.mark.parametrize(("dtype", "within"), [TIGHT, LOOSE])
@pytest.mark.parametrize("settings", [PLAIN, DROPPED])
def test_sum_and_norm_equal_the_twin(hold, inputs, seed, shape, dtype, within, settings):
    settings = {**settings, "seed": seed}
    hold(partial(add_norm, **settings), partial(add_norm_twin, **settings), *inputs(dtype, *shape), within=within)


@pytest.mark.parametrize("shape", [(5, 48), (3, 768)])
@pytest.mark.parametrize(("dtype", "within"), [TIGHT, LOOSE])
@pytest.mark.parametrize("settings", [PLAIN, DROPPED])
def test_the_sum_and_its_norm_equal_the_twin(hold, inputs, seed, shape, dtype, within, settings):
    settings = {**settings, "seed": seed}
    tensors = inputs(dtype, *shape)
    hold(partial(add_then_norm, **settings), partial(add_then_norm_twin, **settings), *tensors, within=within)


def test_the_norm_alone_or_the_sum_alone_may_be_used(hold, inputs, seed):
    settings = {**DROPPED, "seed": seed}
    for used in (0, 1):
        tensors = inputs(torch.float32, 6, 48)
        if used == 0:
            tensors[3:] = [tensor.detach() for tensor in tensors[3:]]
        hold(
            lambda *tensors, used=used: add_then_norm(*tensors, **settings)[used],
            lambda *tensors, used=used: add_then_norm_twin(*tensors, **settings)[used],
            *tensors,
            within=1e-5,
        )


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", [PLAIN, DROPPED])
def test_the_norm_of_embeddings_equals_the_twin(hold, inputs, seed, out_dtype, settings):
    settings = {**settings, "seed": seed, "out_dtype": out_dtype}
    x, _, _, weight, shift = inputs(torch.float32, 4, 3, 128)
    within = 1e-5 if out_dtype == torch.float32 else 3e-2
    hold(partial(layer_norm, **settings), partial(layer_norm_twin, **settings), x, weight, shift, within=within)


def test_no_dropout_is_dropout_of_nothing(inputs, seed):
    tensors = inputs(torch.float32, 4, 48)
    assert torch.equal(add_norm(*tensors, epsilon=1e-5), add_norm(*tensors, epsilon=1e-5, dropout=0.0, seed=seed))


def test_a_gradient_is_nonzero_exactly_where_the_forward_pass_kept(numbers, device, seed):
    x = numbers(16, 64)
    weight, shift = torch.zeros(64, device=device), torch.ones(64, device=device, requires_grad=True)
    out = layer_norm(x, weight, shift, epsilon=1e-5, dropout=0.3, seed=seed)
    kept = out > 0
    assert 0.6 < kept.float().mean() < 0.8
    (gradient,) = torch.autograd.grad(out.sum(), shift)
    assert torch.allclose(gradient, kept.sum(0) / 0.7)


def test_two_runs_give_equal_bits(inputs, seed):
    tensors = inputs(torch.bfloat16, 9, 128)
    once, again = (add_norm(*tensors, **DROPPED, seed=seed) for _ in range(2))
    assert torch.equal(once, again)
    gradients = [torch.autograd.grad(out.float().square().sum(), tensors) for out in (once, again)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
