"""What the parts of every Transformer promise."""

import torch

from keel.systems.bert import Bert
from keel.systems.blocks import Dropout
from keel.systems.rows import Rows


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    dropout = Dropout(0.1).train()
    x = torch.ones(401, 999, requires_grad=True)
    torch.manual_seed(0)
    y = dropout(x)
    assert abs(float((y == 0).float().mean()) - 0.1) < 5 * (0.1 * 0.9 / x.numel()) ** 0.5
    assert set(y.detach().unique().tolist()) == {0.0, float(torch.tensor(1 / 0.9))}
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


def test_dropout_is_drawn_by_the_seed_and_rests_outside_training() -> None:
    dropout = Dropout(0.5).train()
    x = torch.randn(7, 5, 3)
    torch.manual_seed(1)
    first = dropout(x)
    second = dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)
    assert torch.equal(dropout.eval()(x), x)


def test_the_gist_is_what_the_whole_output_would_give() -> None:
    torch.manual_seed(0)
    encoder = Bert(layers=3, width=64, head_width=16, positions=32, length=32).encoder(100).eval()
    rows = Rows.pad([[1, *range(5, 5 + length)] for length in (3, 9, 20)])
    whole, short = encoder.pick(encoder(rows), rows), encoder.gist(rows)
    torch.testing.assert_close(short, whole, rtol=1e-5, atol=1e-6)
    expected = torch.autograd.grad(whole.square().sum(), list(encoder.stack.parameters()))
    found = torch.autograd.grad(short.square().sum(), list(encoder.stack.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
