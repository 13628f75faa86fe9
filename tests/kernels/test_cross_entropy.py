from functools import partial

import pytest
import torch
from torch.nn import functional as F

from keel.kernels.cross_entropy import cross_entropy, cross_entropy_twin, smoothed_cross_entropy


@pytest.mark.parametrize(("width", "columns"), [(64, 64), (128, 100), (4672, 4611)])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_loss_and_gradient_equal_the_twin(hold, numbers, device, width, columns, dtype, within):
    targets = torch.tensor([0, columns - 1, 7, 7, 50], device=device)
    ours = partial(cross_entropy, targets=targets, columns=columns)
    hold(
        lambda x: ours(x * 1),
        partial(cross_entropy_twin, targets=targets, columns=columns),
        logits := numbers(5, width, dtype=dtype),
        within=within,
    )
    assert logits.grad is None


def test_padding_changes_no_loss_and_gets_no_gradient(numbers, device):
    logits = numbers(4, 128)
    with torch.no_grad():
        logits[:, 100:] = 1e4
    before = logits.detach().clone()
    losses = cross_entropy(logits * 1, torch.tensor([1, 2, 3, 99], device=device), 100)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert losses.max() < 20
    assert gradient[:, 100:].eq(0).all()
    assert torch.allclose(gradient[:, :100].sum(1), torch.zeros(4, device=device), atol=1e-5)
    assert torch.equal(logits, before)


def test_large_logits_do_not_overflow(device):
    logits = torch.tensor([[3e4, 0.0, -3e4] + [0.0] * 61], device=device)
    losses = cross_entropy(logits, torch.tensor([1], device=device), 64)
    assert torch.allclose(losses, torch.tensor([3e4], device=device))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradient_with_label_smoothing_equal_torch(smoothing: float) -> None:
    torch.manual_seed(0)
    vectors, words = torch.randn(6, 4), torch.randn(9, 4, requires_grad=True)
    targets, weights = torch.randint(9, (6,)), torch.rand(6)
    twin = F.cross_entropy(F.linear(vectors, words), targets, reduction="none", label_smoothing=smoothing)
    (wanted,) = torch.autograd.grad((twin * weights).sum(), words)
    found = smoothed_cross_entropy(F.linear(vectors, words), targets, smoothing)
    (gradient,) = torch.autograd.grad((found * weights).sum(), words)
    torch.testing.assert_close(found, twin)
    torch.testing.assert_close(gradient, wanted)
