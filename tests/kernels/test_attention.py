from functools import partial

import pytest
import torch

from keel.kernels.attention import attend, attend_twin
from keel.kernels.attention_varlen import PackedSpans
from keel.kernels.dropout import HashDropout

# The interpreter multiplies the bits of bfloat16 as integers, so half precision stands in for it there.
TIGHT, LOOSE = (torch.float32, 1e-5), (torch.float16, 1e-2)
PLAIN = {"causal": False}
CAUSAL = {"causal": True}
DROPPED = {"causal": False, "p": 0.25, "salt": 5}
CAUSAL_DROPPED = {"causal": True, "p": 0.25}


@pytest.fixture
def check(hold, numbers, device):
    """Hold attention over rows (start, length) to the twin."""

    def run(
        rows, *, tokens, heads, d, max_seqlen, causal, p=0.0, salt=0, dtype=torch.float32, within=1e-5, uniform=False
    ):
        starts, lengths = torch.tensor(rows, device=device).T.contiguous()
        spans = PackedSpans(starts, lengths, max_seqlen, uniform)
        dropout = HashDropout(p, torch.tensor(11, device=device), salt)
        hold(
            lambda qkv, bias: attend(qkv, bias, spans, heads=heads, dropout=dropout, causal=causal),
            lambda qkv, bias: attend_twin(qkv, bias, spans, heads=heads, dropout=dropout, causal=causal),
            numbers(tokens, 3 * heads * d, dtype=dtype),
            numbers(3 * heads * d),
            within=within,
        )

    return run


@pytest.mark.parametrize(("dtype", "within"), [TIGHT, LOOSE])
@pytest.mark.parametrize("settings", [PLAIN, CAUSAL, DROPPED, CAUSAL_DROPPED])
def test_rows_in_one_block(check, dtype, within, settings):
    check([(0, 9), (9, 16), (25, 1)], tokens=26, heads=2, d=16, max_seqlen=16, dtype=dtype, within=within, **settings)


@pytest.mark.parametrize(("dtype", "within"), [TIGHT, LOOSE])
@pytest.mark.parametrize("settings", [PLAIN, CAUSAL, DROPPED, CAUSAL_DROPPED])
def test_rows_in_several_blocks(check, dtype, within, settings):
    check([(0, 150), (150, 40)], tokens=190, heads=1, d=32, max_seqlen=150, dtype=dtype, within=within, **settings)


@pytest.mark.parametrize("max_seqlen", [16, 200])
@pytest.mark.parametrize("settings", [PLAIN, DROPPED])
def test_tokens_of_no_row_are_zeros(check, max_seqlen, settings):
    check([(3, 7), (20, 0), (20, 11), (90, 16)], tokens=140, heads=2, d=16, max_seqlen=max_seqlen, **settings)


@pytest.mark.parametrize("d", [16, 32, 64, 128])
def test_any_width_of_a_head(check, d):
    check([(0, 20), (20, 20)], tokens=40, heads=2, d=d, max_seqlen=20, **DROPPED)


def test_a_head_of_another_width_takes_the_twin(check):
    check([(0, 5)], tokens=5, heads=2, d=24, max_seqlen=5, **PLAIN)


def test_padded_and_packed_rows_give_the_same(numbers, device):
    lengths = torch.tensor([5, 12, 8], device=device)
    packed = numbers(25, 96).detach()
    bias = numbers(96)
    run = partial(attend, heads=2, dropout=HashDropout(0.2, torch.tensor(3, device=device)))
    starts = lengths.cumsum(0) - lengths
    real = torch.arange(12, device=device) < lengths[:, None]
    padded = torch.randn(3, 12, 96, device=device)
    padded[real] = packed
    spans = PackedSpans(torch.arange(0, 36, 12, device=device), lengths, 12)
    out = run(padded.flatten(0, 1), bias, spans).view(3, 12, 32)
    assert torch.equal(out[real], run(packed, bias, PackedSpans(starts, lengths, 12)))


def test_a_gradient_is_nonzero_exactly_where_the_forward_pass_kept(device):
    """Values that tell keys apart show which weights were dropped: one head, one key a column."""
    rows, time = 8, 16
    qkv = torch.zeros(rows * time, 48, device=device)
    qkv[:, 32:] = torch.eye(time, device=device).repeat(rows, 1)
    qkv.requires_grad_()
    lengths = torch.full((rows,), time, device=device)
    spans = PackedSpans(torch.arange(0, rows * time, time, device=device), lengths, time)
    bias = torch.zeros(48, device=device)
    out = attend(qkv, bias, spans, heads=1, dropout=HashDropout(0.4, torch.tensor(9, device=device)))
    kept = out.view(rows, time, time) > 0
    assert 0.5 < kept.float().mean() < 0.7
    (gradient,) = torch.autograd.grad(out.sum(), qkv)
    expected = kept.sum(1) / time / 0.6  # [rows, keys]: how often a key's value was read
    assert torch.allclose(gradient[:, 32:].view(rows, time, time), expected[..., None].expand(-1, -1, time))


def test_two_runs_give_equal_bits(numbers, device):
    qkv, bias = numbers(150, 96), numbers(96)
    run = partial(attend, heads=2, dropout=HashDropout(0.1, torch.tensor(1, device=device)))
    starts, lengths = torch.tensor([[0, 90], [90, 60]], device=device).T.contiguous()
    spans = PackedSpans(starts, lengths, 90)
    gradients = [torch.autograd.grad(run(qkv, bias, spans).square().sum(), (qkv, bias)) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("max_seqlen", [32, 64, 100, 128, 256, 512, 1024])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("settings", [PLAIN, CAUSAL, DROPPED])
def test_tensor_cores_stay_near_the_twin(check, max_seqlen, d, settings):
    rows = [(0, max_seqlen), (max_seqlen, 7), (max_seqlen + 9, max_seqlen // 2)]
    tokens = 3 * max_seqlen
    check(rows, tokens=tokens, heads=3, d=d, max_seqlen=max_seqlen, dtype=torch.bfloat16, within=2e-2, **settings)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("settings", [PLAIN, CAUSAL, DROPPED, CAUSAL_DROPPED])
def test_even_rows_of_128(check, dtype, settings):
    rows = [(number * 128, 128 - number % 3 * 50) for number in range(150)]
    shape = {"tokens": 150 * 128, "heads": 5, "d": 64, "max_seqlen": 128}
    check(rows, **shape, dtype=dtype, within=2e-2, uniform=True, **settings)
