"""Projection of vectors to two dimensions.

PCA (Pearson 1901) keeps the two directions of largest variance, so that equal differences stay equal; t-SNE (van der
Maaten & Hinton 2008) and UMAP (McInnes, Healy & Melville 2018) preserve neighbourhoods only.
"""

import warnings
from typing import Literal, get_args

import numpy as np

from keel.errors import MissingExtra, UsageError
from keel.events import OnEvent, ignore, note

ProjectionMethod = Literal["pca", "tsne", "umap"]
NAMES: dict[ProjectionMethod, str] = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}

NEIGHBORS = 15
"""Nearest neighbours of each point in UMAP's graph."""
NEIGHBOR_WIDTH = 100
"""Principal components in which they are searched."""
EXACT_WIDTH = 1024
"""Width of vectors up to which principal components are exact; of wider ones they are found by random projections."""
FEW_POINTS = 10_000
"""Points up to which UMAP runs 500 epochs instead of 200, as in umap-learn."""
SLOW_TSNE = 5_000
"""Points above which t-SNE takes minutes."""
BLOCK = 1_000
"""Points whose similarities to all others are computed at once."""


def project(
    vectors: np.ndarray, by: ProjectionMethod = "pca", seed: int = 0, on_event: OnEvent = ignore
) -> tuple[np.ndarray, float | None]:
    """Project vectors [n, width] to points [n, 2]; also returns PCA's explained variance ratio, None for others."""
    if by not in get_args(ProjectionMethod):
        raise UsageError(f"--by must be one of {', '.join(get_args(ProjectionMethod))}, not {by!r}")
    if len(vectors) < 2:
        raise UsageError("a map needs two words or texts or more: name words with --words or --pairs, or use --top 200")
    if by == "pca":
        return principal_components(vectors, 2)
    if len(vectors) < 5:
        raise UsageError(f"{NAMES[by]} needs five points or more, not {len(vectors)}: give more, or use --by pca")
    if by == "umap":
        return _umap(vectors, seed, on_event), None
    if len(vectors) > SLOW_TSNE:
        note(on_event, f"t-SNE of {len(vectors):,} points takes minutes: --by umap is faster")
    return _tsne(vectors, seed), None


def principal_components(vectors: np.ndarray, count: int) -> tuple[np.ndarray, float]:
    """Coordinates [n, count] in the directions of largest variance, and their share of the variance; the largest
    coordinate of each axis is positive.

    Above a width of 1,024 the directions are found in the image of random vectors, by four power iterations (Halko,
    Martinsson & Tropp 2011).
    """
    centered = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    basis = None
    if (width := centered.shape[1]) > EXACT_WIDTH:
        size = min(count + 10, *centered.shape)
        basis = np.random.default_rng(0).normal(size=(width, size))
        for _ in range(4):
            basis = np.linalg.qr(centered.T @ (centered @ basis))[0]
    inside = centered if basis is None else centered @ basis
    values, axes = np.linalg.eigh(inside.T @ inside)
    axes = axes[:, ::-1][:, :count]
    axes = axes if basis is None else basis @ axes
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
    points = np.zeros((len(vectors), count))
    points[:, : axes.shape[1]] = centered @ axes
    total = np.einsum("nw,nw->", centered, centered)
    return points, float(values[::-1][:count].sum() / total) if total > 0 else 1.0


def nearest_points(vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and Euclidean distances [n, count] of the nearest other points, in ascending order; the search is exact."""
    from keel.kernels.umap_layout import select_nearest  # imports Numba

    points = np.ascontiguousarray(vectors, np.float32)
    squares = np.einsum("nw,nw->n", points, points)
    rows = np.empty((len(points), count), np.int32)
    found = np.empty((len(points), count), np.float32)
    scores = np.empty((min(BLOCK, len(points)), len(points)), np.float32)
    for start in range(0, len(points), BLOCK):
        part = points[start : start + BLOCK]
        block = scores[: len(part)]
        np.matmul(part, points.T, out=block)
        block -= squares / 2  # x.y - y.y / 2 is largest for the nearest y
        select_nearest(block, start, found[start : start + BLOCK], rows[start : start + BLOCK])
    distances = np.sqrt(np.maximum(squares[:, None] - 2 * found, 0))
    return rows, distances


def _umap(vectors: np.ndarray, seed: int, on_event: OnEvent) -> np.ndarray:
    """UMAP from the principal components: a graph of the nearest neighbours, whose edges attract."""
    from keel.kernels.umap_layout import neighbor_weights, optimize_layout  # imports Numba

    count = len(vectors)
    if count > FEW_POINTS:
        note(on_event, f"layout of {count:,} points by UMAP")
    reduced, _ = principal_components(vectors, min(NEIGHBOR_WIDTH, vectors.shape[1]))
    rows, distances = nearest_points(reduced, min(NEIGHBORS, count - 1))
    heads, tails, weights = _fuzzy_union(rows, neighbor_weights(distances))
    epochs = 500 if count <= FEW_POINTS else 200
    strongest = weights.max()
    kept = weights >= strongest / epochs
    intervals = (strongest / weights[kept]).astype(np.float32)
    start = reduced[:, :2] if reduced.shape[1] > 1 else np.hstack([reduced, np.zeros((count, 1))])
    noise = np.random.default_rng(seed).normal(0, 1e-4, start.shape)
    points = (start * (10 / max(np.abs(start).max(), 1e-12)) + noise).astype(np.float32)
    optimize_layout(points, heads[kept], tails[kept], intervals, epochs, seed)
    return points.astype(np.float64)


def _fuzzy_union(rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Heads, tails and weights w(i, j) + w(j, i) - w(i, j) w(j, i) of all edges, each in both directions."""
    count, neighbors = rows.shape
    heads, tails = np.repeat(np.arange(count), neighbors), rows.ravel().astype(np.int64)
    keys = np.concatenate([heads * count + tails, tails * count + heads])
    unique, index = np.unique(keys, return_inverse=True)
    one, other = (np.zeros(len(unique), np.float32) for _ in range(2))
    one[index[: len(heads)]] = other[index[len(heads) :]] = weights.ravel()
    return unique // count, unique % count, one + other - one * other


def _tsne(vectors: np.ndarray, seed: int) -> np.ndarray:
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise MissingExtra("scikit-learn", "eval", "a map by t-SNE") from None
    start, _ = principal_components(vectors, 2)
    start = (start / max(start[:, 0].std(), 1e-12) * 1e-4).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own defaults
        learner = TSNE(init=start, perplexity=min(30.0, (len(vectors) - 1) / 3), random_state=seed)
        return np.asarray(learner.fit_transform(vectors.astype(np.float32)), np.float64)
