"""Batches side by side: in order, a core each, and nothing left behind."""

from collections.abc import Iterator

import pytest
import torch

from keel.decode.parallel import side_by_side

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_from_threads_with_one_core_each() -> None:
    found = [*side_by_side(lambda number: (number, torch.get_num_threads()), range(7), CPU)]
    assert found == [(number, 1) for number in range(7)]
    assert torch.get_num_threads() == 2
    assert [*side_by_side(lambda _: torch.get_num_threads(), range(2), torch.device("meta"))] == [2, 2]


def test_what_goes_wrong_in_a_thread_is_heard_and_all_cores_are_back() -> None:
    with pytest.raises(ZeroDivisionError):
        list(side_by_side(lambda number: 1 / number, [1, 0, 2], CPU))
    assert torch.get_num_threads() == 2
