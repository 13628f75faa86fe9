import pytest
import torch
from torch import Tensor

from keel.kernels.dropout import NO_DROPOUT, HashDropout

P = 0.1


@pytest.fixture(scope="module")
def mask() -> Tensor:
    """[planes, rows, columns]."""
    return HashDropout(P, torch.tensor(5), 3).mask([60, 96, 80])


def deviations(mask: Tensor) -> Tensor:
    """Values with mean zero and variance one, if a share P is dropped at random."""
    return ((~mask).double() - P) / (P * (1 - P)) ** 0.5


def test_the_share_dropped_is_p(mask):
    assert abs(deviations(mask).mean()) < 4 / mask.numel() ** 0.5
    fine = HashDropout(0.015625 + 2**-20, torch.tensor(5), 3).mask([1, 2000, 2000])
    assert abs((~fine).double().mean() - 0.015625) < 3e-4


def test_rows_columns_and_planes_are_independent(mask):
    planes, rows, columns = mask.shape
    x = deviations(mask)
    for pairs, count in ((x.mT @ x, rows), (x @ x.mT, columns)):
        off = pairs[:, ~torch.eye(pairs.shape[-1], dtype=torch.bool)] / count**0.5
        assert abs(off.mean()) < 4 / off.numel() ** 0.5 * 2
        assert 0.97 < off.std() < 1.03
    flat = x.flatten(1)
    across = (flat @ flat.T)[~torch.eye(planes, dtype=torch.bool)] / (rows * columns) ** 0.5
    assert 0.9 < across.std() < 1.1
    # Four corners of a rectangle share two row hashes and two column hashes.
    corners = x[:, ::2, ::2] * x[:, ::2, 1::2] * x[:, 1::2, ::2] * x[:, 1::2, 1::2]
    assert abs(corners.mean()) < 4 / corners.numel() ** 0.5


def test_another_seed_salt_or_plane_is_another_mask(mask):
    for seed, salt in ((6, 3), (5, 4), (5 + 2**32, 3), (5 - 2**63, 3)):
        other = HashDropout(P, torch.tensor(seed), salt).mask([60, 96, 80])
        agree = (deviations(mask) * deviations(other)).sum() / mask.numel() ** 0.5
        assert abs(agree) < 4, (seed, salt)


def test_the_mean_is_kept(mask):
    x = torch.ones(mask.shape, dtype=torch.float64)
    assert abs(HashDropout(P, torch.tensor(5), 3)(x).mean() - 1) < 4 * (P / (1 - P) / mask.numel()) ** 0.5
    assert torch.equal(NO_DROPOUT(x), x)
