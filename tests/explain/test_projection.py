"""Planes: PCA equals the singular vectors, t-SNE keeps neighbours together."""

import numpy as np
import pytest

from keel.errors import UsageError
from keel.explain.projection import project


def test_pca_keeps_what_differs_most() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(50, 6)) * [9, 5, 1, 1, 1, 1] + 3
    points, explained_variance = project(vectors)
    _, sizes, axes = np.linalg.svd(vectors - vectors.mean(0))
    assert np.abs(points) == pytest.approx(np.abs((vectors - vectors.mean(0)) @ axes[:2].T))
    assert explained_variance == pytest.approx((sizes[:2] ** 2).sum() / (sizes**2).sum())
    assert project(-vectors + 6)[0] == pytest.approx(-points), "no sign is left to chance"


@pytest.mark.parametrize("vectors", [np.ones((3, 4)), np.array([[1.0], [2.0]])])
def test_projection_of_one_dimension(vectors: np.ndarray) -> None:
    points, explained_variance = project(vectors)
    assert points.shape == (len(vectors), 2)
    assert explained_variance == pytest.approx(1)


def test_tsne_keeps_neighbours_together_and_is_the_same_every_time() -> None:
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(3), 20)
    vectors = random.normal(size=(60, 10)) + 12 * np.eye(10)[groups]
    points, explained_variance = project(vectors, "tsne")
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    np.fill_diagonal(distances, np.inf)
    assert (groups[distances.argmin(1)] == groups).all()
    assert (project(vectors, "tsne")[0] == points).all()
    assert explained_variance is None


def test_too_few() -> None:
    with pytest.raises(UsageError, match="two words or more"):
        project(np.ones((1, 3)))
    with pytest.raises(UsageError, match="needs five words or more, not 4"):
        project(np.ones((4, 3)), "tsne")
