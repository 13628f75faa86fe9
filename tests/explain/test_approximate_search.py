"""An index finds almost all of what an exact search finds, and is made once."""

import sys
from pathlib import Path

import numpy as np
import pytest

from keel.errors import MissingExtra
from keel.explain.approximate_search import build_index
from keel.explain.nearest_neighbors import VectorSpace


def test_an_index_finds_what_exact_search_finds(tmp_path: Path) -> None:
    pytest.importorskip("usearch")
    random = np.random.default_rng(0)
    space = VectorSpace([f"word{row}" for row in range(3000)], random.normal(size=(3000, 16)).astype(np.float32))
    notes: list[str] = []
    search = build_index(space, lambda event: notes.append(event["text"]), folder=tmp_path)
    again = build_index(space, lambda event: notes.append(event["text"]), folder=tmp_path)
    assert len(notes) == 1, "the second time it is read"
    assert len(list(tmp_path.iterdir())) == 1
    for each in (search, again):
        hits = 0
        for word in space.words[:100]:
            exact, found = space.nearest(word), space.nearest(word, search=each)
            assert word not in dict(found)
            assert len(found) == 10
            assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
            hits += len(dict(exact).keys() & dict(found).keys())
        assert hits > 950
    assert search(np.eye(16, dtype=np.float32)[0], 5).shape == (5,)


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(MissingExtra, match=r"approximate search needs the package 'usearch': pip install .*\[ann\]"):
        build_index(VectorSpace(["a", "b"], np.eye(2)))
