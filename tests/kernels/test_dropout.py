import pytest
import torch
from torch import Tensor

from keel.kernels.dropout import dropout_mask, hash_dropout

P = 0.1


@pytest.fixture(scope="module")
def kept() -> Tensor:
    """[planes, rows, columns]."""
    return dropout_mask(torch.tensor(5), 3, [60], 96, 80, P)


def deviations(mask: Tensor) -> Tensor:
    """Of mean zero and variance one, if a share P is dropped at random."""
    return ((~mask).double() - P) / (P * (1 - P)) ** 0.5


def test_the_share_dropped_is_p(kept):
    assert abs(deviations(kept).mean()) < 4 / kept.numel() ** 0.5
    fine = dropout_mask(torch.tensor(5), 3, [1], 2000, 2000, 0.015625 + 2**-20)
    assert abs((~fine).double().mean() - 0.015625) < 3e-4


def test_rows_columns_and_planes_are_independent(kept):
    planes, rows, columns = kept.shape
    x = deviations(kept)
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


def test_another_seed_salt_or_plane_is_another_mask(kept):
    for seed, salt in ((6, 3), (5, 4), (5 + 2**32, 3), (5 - 2**63, 3)):
        other = dropout_mask(torch.tensor(seed), salt, [60], 96, 80, P)
        agree = (deviations(kept) * deviations(other)).sum() / kept.numel() ** 0.5
        assert abs(agree) < 4, (seed, salt)


def test_the_mean_is_kept(kept):
    x = torch.ones(kept.shape, dtype=torch.float64)
    assert abs(hash_dropout(x, P, torch.tensor(5), 3).mean() - 1) < 4 * (P / (1 - P) / kept.numel()) ** 0.5
    assert torch.equal(hash_dropout(x, 0.0, None, 0), x)
