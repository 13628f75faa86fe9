"""Projection of vectors to two dimensions.

PCA (Pearson 1901) keeps the two directions of largest variance, so that equal differences stay equal; t-SNE (van der
Maaten & Hinton 2008) preserves neighbourhoods only.
"""

import warnings
from typing import Literal

import numpy as np

from keel.errors import MissingExtra, UsageError

ProjectionMethod = Literal["pca", "tsne"]


def project(vectors: np.ndarray, by: ProjectionMethod = "pca", seed: int = 0) -> tuple[np.ndarray, float | None]:
    """Project vectors [n, width] to points [n, 2]; also returns the explained variance ratio, None for t-SNE."""
    if len(vectors) < 2:
        raise UsageError("a map needs two words or more: name them with --words or --pairs, or use --top 200")
    return (_tsne(vectors, seed), None) if by == "tsne" else _pca(vectors)


def _pca(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Principal components; the largest coordinate of each axis is positive."""
    centered = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    values, axes = np.linalg.eigh(centered.T @ centered)
    axes = axes[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
    points = np.zeros((len(vectors), 2))
    points[:, : axes.shape[1]] = centered @ axes
    total = values.sum()
    return points, float(values[::-1][:2].sum() / total) if total > 0 else 1.0


def _tsne(vectors: np.ndarray, seed: int) -> np.ndarray:
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise MissingExtra("scikit-learn", "eval", "a map by t-SNE") from None
    if len(vectors) < 5:
        raise UsageError(f"t-SNE needs five words or more, not {len(vectors)}: name more, or use --by pca")
    start, _ = _pca(vectors)
    start = (start / max(start[:, 0].std(), 1e-12) * 1e-4).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own defaults
        learner = TSNE(init=start, perplexity=min(30.0, (len(vectors) - 1) / 3), random_state=seed)
        return np.asarray(learner.fit_transform(vectors.astype(np.float32)), np.float64)
