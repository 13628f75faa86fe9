"""Attention with dropout on a CPU, against the formula with the same dropped weights."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from keel.kernels import attention_dropout
from keel.kernels.attention_dropout import attend_with_dropout, fits
from keel.kernels.dropout import HashDropout
from keel.nn.multihead_attention import MultiHeadAttention

TIME, HEADS = 70, 3
LENGTHS = torch.tensor([TIME, 40, 1])
PADDING = (torch.arange(TIME) < LENGTHS[:, None])[:, None, None]


def by_formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, seed: int) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return HashDropout(p, torch.tensor(seed))(scores.softmax(-1)) @ v


@pytest.mark.parametrize("chunk", [1, 2 * TIME * TIME, 1 << 20])  # one head, two heads, a sequence at a time
@pytest.mark.parametrize(("mask", "causal"), [(None, False), (PADDING, False), (None, True)])
def test_output_and_gradients_are_those_of_the_formula(
    mask: Tensor | None, causal: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_dropout, "CHUNK", chunk)
    qkv = torch.randn(3, len(LENGTHS), HEADS, TIME, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    direction = torch.randn(len(LENGTHS), HEADS, TIME, 8, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    torch.manual_seed(2)
    q, k, v = qkv
    found = attend_with_dropout(q, k, v, mask, 0.3, causal=causal)
    seen = torch.ones(TIME, TIME, dtype=torch.bool).tril() if causal else mask
    expected = by_formula(q, k, v, seen, 0.3, seed)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each, qkv, direction)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_cross_attention_has_other_numbers_of_queries() -> None:
    q, k, v = torch.randn(2, HEADS, 9, 8), *torch.randn(2, 2, HEADS, TIME, 8)
    torch.testing.assert_close(
        attend_with_dropout(q, k, v, None, 0.0, causal=False), F.scaled_dot_product_attention(q, k, v)
    )


def test_only_long_sequences_with_padding_masks() -> None:
    long, short = torch.randn(2, HEADS, TIME, 8), torch.randn(2, HEADS, 9, 8)
    assert fits(long, long, None)
    assert fits(long, long, PADDING[:2])
    assert not fits(short, short, None)
    assert not fits(long, long, torch.ones(TIME, TIME, dtype=torch.bool)[None, None])


def test_under_bf16_autocast_it_is_computed_in_fp32() -> None:
    """The output of rounded queries, keys and values is that in fp32, to the bit; gradients are rounded once."""
    half = torch.randn(3, 2, HEADS, TIME, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    results: list[Tensor] = []
    for given, autocast in ((half, True), (half.float(), False)):
        given = given.clone().requires_grad_()
        torch.manual_seed(2)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            q, k, v = given
            found = attend_with_dropout(q, k, v, PADDING[:2], 0.3, causal=False)
        assert found.dtype == torch.float32
        (gradient,) = torch.autograd.grad(found.square().sum(), given)
        results += [found, gradient]
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3].bfloat16())


def test_dropout_of_a_layer_depends_on_the_random_state() -> None:
    layer = MultiHeadAttention(16, 2, 0.5)
    x = torch.randn(2, TIME, 16)
    torch.manual_seed(0)
    first = layer(x, None)
    assert not torch.equal(first, layer(x, None))
    torch.manual_seed(0)
    assert torch.equal(first, layer(x, None))
    mean = torch.stack([layer(x, None) for _ in range(200)]).mean(0)
    torch.testing.assert_close(mean, layer.eval()(x, None), atol=0.1, rtol=0.1)
