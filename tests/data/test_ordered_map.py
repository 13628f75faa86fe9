"""The number of workers of a parallel map."""

import sys

import pytest

from keel.data.ordered_map import default_workers


@pytest.mark.parametrize("limit", ["1", "1,2", " 1", "", "many"])
def test_workers_without_torch_follow_openmp(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert default_workers() == 1 if "1" in limit else default_workers() >= 1
