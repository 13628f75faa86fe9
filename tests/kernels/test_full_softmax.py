import pytest
import torch
from torch.nn import functional as F

from keel.kernels import full_softmax


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradients_are_those_of_all_scores_at_once(monkeypatch: pytest.MonkeyPatch, weighted: bool) -> None:
    monkeypatch.setattr(full_softmax, "ROOM", 3 * 50)  # three places at a time, the last part smaller
    rng = torch.Generator().manual_seed(0)
    vectors, table, bias = (
        torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_() for shape in ((10, 6), (50, 6), (50,))
    )
    targets, shares = torch.randint(50, (10,), generator=rng), torch.rand(10, generator=rng, dtype=torch.float64)
    weights = shares if weighted else None
    loss = full_softmax.softmax_loss(vectors, table, bias, targets, weights)
    each = F.cross_entropy(F.linear(vectors, table, bias), targets, reduction="none")
    wanted = (each * shares).sum() if weighted else each.sum()
    assert torch.allclose(loss, wanted)
    ours, theirs = (torch.autograd.grad(3 * value, [vectors, table, bias]) for value in (loss, wanted))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other)


def test_several_sums_are_those_of_each_column_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_softmax, "ROOM", 2 * 9)
    vectors, table, targets, weights = torch.randn(5, 4), torch.randn(9, 4), torch.arange(5), torch.rand(5, 3)
    found = full_softmax.softmax_loss(vectors, table, None, targets, weights)
    each = [full_softmax.softmax_loss(vectors, table, None, targets, column) for column in weights.unbind(1)]
    torch.testing.assert_close(found, torch.stack(each))


def test_without_gradients_the_loss_is_the_same() -> None:
    vectors, table, bias = torch.randn(5, 4), torch.randn(9, 4, requires_grad=True), torch.zeros(9)
    targets = torch.arange(5)
    learned = full_softmax.softmax_loss(vectors, table, bias, targets)
    with torch.no_grad():
        assert torch.equal(full_softmax.softmax_loss(vectors, table, bias, targets), learned)
