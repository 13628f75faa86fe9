"""Thread pool: ordered results, one core per thread, clean-up after errors."""

from collections.abc import Iterator
from threading import Event

import pytest
import torch

from keel.generation.thread_pool import run_in_threads

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_are_ordered() -> None:
    found = [*run_in_threads(lambda number: (number, torch.get_num_threads()), range(7), CPU)]
    assert found == [(number, 1) for number in range(7)]
    assert torch.get_num_threads() == 2
    assert [*run_in_threads(lambda _: torch.get_num_threads(), range(2), torch.device("meta"))] == [2, 2]


def test_errors_propagate_and_restore_threads() -> None:
    with pytest.raises(ZeroDivisionError):
        list(run_in_threads(lambda number: 1 / number, [1, 0, 2], CPU))
    assert torch.get_num_threads() == 2


def test_an_error_cancels_the_rest() -> None:
    cancelled, second, begun = Event(), Event(), []

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            assert second.wait(30)
            raise KeyboardInterrupt
        second.set()
        assert cancelled.wait(30)

    with pytest.raises(KeyboardInterrupt):
        run_in_threads(work, range(9), CPU, cancelled)
    assert sorted(begun)[:2] == [0, 1]
    assert len(begun) <= 3
    assert torch.get_num_threads() == 2
