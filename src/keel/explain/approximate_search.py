"""Approximate nearest-neighbour search by usearch: HNSW (Malkov & Yashunin, "Efficient and robust approximate nearest
neighbor search", 2016).

It may miss some neighbours; building the index takes far longer than one exact search, so it pays for thousands of
queries.
"""

import hashlib
from pathlib import Path

import numpy as np

from keel.config import cache_folder
from keel.errors import MissingExtra
from keel.events import OnEvent, ignore, note
from keel.explain.nearest_neighbors import ApproximateSearch, VectorSpace

CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 16, 64, 192
"""HNSW connectivity, and candidates when adding and searching: larger is more accurate and slower."""


def build_index(space: VectorSpace, on_event: OnEvent = ignore, *, folder: Path | None = None) -> ApproximateSearch:
    """Load the HNSW index of a vector space from `folder` (default: the cache), or build and store it."""
    try:
        from usearch.index import Index
    except ImportError:
        raise MissingExtra("usearch", "ann", "approximate search") from None
    matrix = np.ascontiguousarray(space.matrix)
    rows, width = matrix.shape
    name = hashlib.blake2b(matrix.data, digest_size=8, key=f"{CONNECTIVITY} {EXPANSION_ADD}".encode()).hexdigest()
    path = (folder or cache_folder() / "neighbours") / f"{rows}x{width}-{name}.usearch"
    graph = Index(ndim=width, metric="ip", dtype="f32", connectivity=CONNECTIVITY, expansion_add=EXPANSION_ADD)
    if path.exists():
        graph.load(str(path))
    else:
        note(on_event, f"building an index of {rows:,} words once, stored in {path}")
        graph.add(np.arange(rows), space.units(slice(None)))
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        graph.save(str(part))
        part.replace(path)
    graph.expansion_search = EXPANSION_SEARCH
    return lambda direction, count: np.asarray(graph.search(direction, count).keys, np.int64)
