"""Vectors in two dimensions, for the eye.

PCA (Pearson 1901) keeps the two directions in which they differ most, so that equal differences stay equal; t-SNE (van
der Maaten & Hinton 2008) keeps neighbours together and nothing else.
"""

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np

from keel.errors import MissingExtra, UsageError

Flattening = Literal["pca", "tsne"]


@dataclass(frozen=True, eq=False)
class Projection:
    """Points, and how much of what the vectors differ by is left in them (None where that has no meaning)."""

    points: np.ndarray  # [vectors, 2]
    kept: float | None


def project(vectors: np.ndarray, by: Flattening = "pca", seed: int = 0) -> Projection:
    """Lay vectors [n, width] into a plane."""
    if len(vectors) < 2:
        raise UsageError("a map needs two words or more: name some by --words or --pairs, or say --top 200")
    return _by_neighbours(vectors, seed) if by == "tsne" else _by_variance(vectors)


def _by_variance(vectors: np.ndarray) -> Projection:
    """The eigenvectors of the covariance with the largest eigenvalues; which way they point is settled by a sign."""
    centered = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    values, axes = np.linalg.eigh(centered.T @ centered)
    axes = axes[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
    points = np.zeros((len(vectors), 2))
    points[:, : axes.shape[1]] = centered @ axes
    total = values.sum()
    return Projection(points, float(values[::-1][:2].sum() / total) if total > 0 else 1.0)


def _by_neighbours(vectors: np.ndarray, seed: int) -> Projection:
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise MissingExtra("scikit-learn", "eval", "a map by t-SNE") from None
    if len(vectors) < 5:
        raise UsageError(f"t-SNE has nothing to arrange in {len(vectors)} words: name five or more, or take --by pca")
    start = _by_variance(vectors).points
    start = (start / max(start[:, 0].std(), 1e-12) * 1e-4).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own defaults
        learner = TSNE(init=start, perplexity=min(30.0, (len(vectors) - 1) / 3), random_state=seed)
        return Projection(np.asarray(learner.fit_transform(vectors.astype(np.float32)), np.float64), None)
