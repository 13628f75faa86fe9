"""The number of workers of a parallel map."""

import sys

import pytest

from keel.data.ordered_map import default_workers


@pytest.mark.parametrize(("limit", "workers"), [("2", 2), ("2,1", 2), (" 2 ", 2), ("", 4), ("many", 4)])
def test_workers_without_torch_follow_openmp(limit: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(4)}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert default_workers() == workers
