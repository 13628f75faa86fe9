"""The loss with smoothed labels and its gradient are torch's."""

import pytest
import torch
from torch.nn import functional as F

from keel.kernels.label_smoothing import smoothed_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradient_are_torchs(smoothing: float) -> None:
    torch.manual_seed(0)
    vectors, words = torch.randn(6, 4), torch.randn(9, 4, requires_grad=True)
    targets, weights = torch.randint(9, (6,)), torch.rand(6)
    twin = F.cross_entropy(F.linear(vectors, words), targets, reduction="none", label_smoothing=smoothing)
    (wanted,) = torch.autograd.grad((twin * weights).sum(), words)
    found = smoothed_cross_entropy(F.linear(vectors, words), targets, smoothing)
    (gradient,) = torch.autograd.grad((found * weights).sum(), words)
    torch.testing.assert_close(found, twin)
    torch.testing.assert_close(gradient, wanted)
