"""Records of tensors are changed as one."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from keel.training.objective import Tensors


@dataclass(frozen=True, kw_only=True)
class Inner(Tensors):
    values: Tensor
    missing: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Outer(Tensors):
    ids: Tensor
    inner: Inner
    name: str


def test_rows_are_taken_in_any_order_and_more_than_once() -> None:
    record = Outer(
        ids=torch.arange(3), inner=Inner(values=torch.tensor([[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]])), name="kept"
    )
    taken = record.index_select(torch.tensor([2, 0, 2, 2]))
    assert taken.ids.tolist() == [2, 0, 2, 2]
    assert taken.inner.values.tolist() == [[2.0, 2.5], [0.0, 0.5], [2.0, 2.5], [2.0, 2.5]]
    assert (taken.inner.missing, taken.name) == (None, "kept")
    taken.ids.zero_()
    assert record.ids.tolist() == [0, 1, 2], "they are copies"
    assert record.index_select(torch.tensor([], dtype=torch.long)).inner.values.shape == (0, 2)
    with pytest.raises(IndexError):
        record.index_select(torch.tensor([3]))
