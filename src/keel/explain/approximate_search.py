"""Approximate nearest-neighbour search by usearch: HNSW (Malkov & Yashunin, "Efficient and robust approximate nearest
neighbor search", 2016).

It may miss some neighbours; building the index takes far longer than one exact search, so it pays for thousands of
queries.
"""

import hashlib
from pathlib import Path
from typing import Any, Self

import numpy as np

from keel.config import cache_folder
from keel.errors import MissingExtra
from keel.events import OnEvent, ignore, note
from keel.explain.nearest_neighbors import VectorSpace

CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 16, 64, 192
"""HNSW connectivity, and candidates when adding and searching: larger is more accurate and slower."""


class ApproximateIndex:
    """HNSW index of the words of a vector space."""

    def __init__(self, graph: Any):
        self.graph = graph

    @classmethod
    def of(cls, space: VectorSpace, on_event: OnEvent = ignore, *, folder: Path | None = None) -> Self:
        """Load the index from `folder` (default: the cache), or build and store it."""
        try:
            from usearch.index import Index
        except ImportError:
            raise MissingExtra("usearch", "ann", "approximate search") from None
        width = space.matrix.shape[1]
        graph = Index(
            ndim=width,
            metric="ip",
            dtype="f32",
            connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD,
            expansion_search=EXPANSION_SEARCH,
        )
        matrix = np.ascontiguousarray(space.matrix)
        name = hashlib.blake2b(matrix.data, digest_size=8, key=f"{CONNECTIVITY} {EXPANSION_ADD}".encode()).hexdigest()
        path = (folder or cache_folder() / "neighbours") / f"{len(matrix)}x{width}-{name}.usearch"
        if path.exists():
            graph.load(str(path))
        else:
            note(on_event, f"building an index of {len(matrix):,} words once, stored in {path}")
            graph.add(np.arange(len(matrix)), space.units(slice(None)))
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            graph.save(str(part))
            part.replace(path)
        graph.expansion_search = EXPANSION_SEARCH
        return cls(graph)

    def near(self, direction: np.ndarray, count: int) -> np.ndarray:
        """Row numbers [count] near a unit vector."""
        return np.asarray(self.graph.search(direction, count).keys, np.int64)
