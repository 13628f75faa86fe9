"""The nearest of very many words without a look at each of them.

By usearch: a graph of small worlds in layers (HNSW; Malkov & Yashunin, "Efficient and robust approximate nearest
neighbor search", 2016). It may miss some of the nearest; building it takes far longer than one exact search, so it pays
for thousands of questions.
"""

import hashlib
from pathlib import Path
from typing import Any, Self

import numpy as np

from keel.config import cache_folder
from keel.errors import MissingExtra
from keel.events import OnEvent, ignore, note
from keel.explain.nearest_neighbors import VectorSpace

LINKS, EFFORT_TO_ADD, EFFORT_TO_FIND = 16, 64, 192
"""Neighbours of each word in the graph, and how many are weighed: the more, the fewer are missed, and the slower."""


class Approximate:
    """An index of a space's words."""

    def __init__(self, graph: Any):
        self.graph = graph

    @classmethod
    def of(cls, space: VectorSpace, on_event: OnEvent = ignore, *, folder: Path | None = None) -> Self:
        """The index of these vectors, made now unless it is kept in `folder` (without one: in the cache)."""
        try:
            from usearch.index import Index
        except ImportError:
            raise MissingExtra("usearch", "ann", "approximate search") from None
        width = space.matrix.shape[1]
        graph = Index(
            ndim=width,
            metric="ip",
            dtype="f32",
            connectivity=LINKS,
            expansion_add=EFFORT_TO_ADD,
            expansion_search=EFFORT_TO_FIND,
        )
        matrix = np.ascontiguousarray(space.matrix)
        name = hashlib.blake2b(matrix.data, digest_size=8, key=f"{LINKS} {EFFORT_TO_ADD}".encode()).hexdigest()
        path = (folder or cache_folder() / "neighbours") / f"{len(matrix)}x{width}-{name}.usearch"
        if path.exists():
            graph.load(str(path))
        else:
            note(on_event, f"making an index of {len(matrix):,} words, once: it is kept as {path}")
            graph.add(np.arange(len(matrix)), space.units(slice(None)))
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            graph.save(str(part))
            part.replace(path)
        graph.expansion_search = EFFORT_TO_FIND
        return cls(graph)

    def near(self, direction: np.ndarray, count: int) -> np.ndarray:
        """[count] rows near a vector of length one."""
        return np.asarray(self.graph.search(direction, count).keys, np.int64)
