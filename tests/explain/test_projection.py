"""Planes: PCA equals the singular vectors, t-SNE and UMAP keep neighbours together."""

import numpy as np
import pytest

from keel.errors import UsageError
from keel.explain import projection
from keel.explain.projection import ProjectionMethod, nearest_points, principal_components, project


def three_groups(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    groups = np.arange(count) % 3
    return random.normal(size=(count, 10)) + 12 * np.eye(10)[groups], groups


def test_pca_keeps_what_differs_most() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(50, 6)) * [9, 5, 1, 1, 1, 1] + 3
    points, explained_variance = project(vectors)
    _, sizes, axes = np.linalg.svd(vectors - vectors.mean(0))
    assert np.abs(points) == pytest.approx(np.abs((vectors - vectors.mean(0)) @ axes[:2].T))
    assert explained_variance == pytest.approx((sizes[:2] ** 2).sum() / (sizes**2).sum())
    assert project(-vectors + 6)[0] == pytest.approx(-points), "no sign is left to chance"


def test_components_of_wide_vectors_are_those_of_the_exact_method(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(300, 5)) * [9, 7, 5, 3, 2] @ random.normal(size=(5, 40)) + random.normal(
        size=(300, 40)
    )
    exact, share = principal_components(vectors, 3)
    monkeypatch.setattr(projection, "EXACT_WIDTH", 20)
    found, found_share = principal_components(vectors, 3)
    assert found == pytest.approx(exact, abs=1e-6)
    assert found_share == pytest.approx(share)


@pytest.mark.parametrize("vectors", [np.ones((3, 4)), np.array([[1.0], [2.0]])])
def test_projection_of_one_dimension(vectors: np.ndarray) -> None:
    points, explained_variance = project(vectors)
    assert points.shape == (len(vectors), 2)
    assert explained_variance == pytest.approx(1)


@pytest.mark.parametrize("by", ["tsne", "umap"])
def test_neighbours_stay_together_and_the_plane_is_the_same_every_time(by: ProjectionMethod) -> None:
    vectors, groups = three_groups()
    points, explained_variance = project(vectors, by)
    assert (groups[nearest_points(points, 1)[0][:, 0]] == groups).all()
    assert (project(vectors, by)[0] == points).all()
    assert explained_variance is None


def test_nearest_points_equal_a_full_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "BLOCK", 7)
    vectors = np.random.default_rng(1).normal(size=(40, 6))
    rows, distances = nearest_points(vectors, 5)
    expected = np.linalg.norm(vectors[:, None] - vectors, axis=-1)
    np.fill_diagonal(expected, np.inf)
    assert (rows == expected.argsort(1)[:, :5]).all()
    assert distances == pytest.approx(np.sort(expected, 1)[:, :5], abs=1e-3)


def test_umap_keeps_neighbours_that_pca_does_not() -> None:
    """UMAP keeps most neighbours of a curved sheet, which PCA folds onto itself."""
    random = np.random.default_rng(0)
    turn, across = 1.5 * np.pi * (1 + 2 * random.random(800)), 20 * random.random(800)
    sheet = np.stack([turn * np.cos(turn), across, turn * np.sin(turn)], 1)
    vectors = sheet @ np.linalg.qr(random.normal(size=(10, 3)))[0].T
    rows, _ = nearest_points(vectors, 10)
    kept: dict[ProjectionMethod, float] = {}
    for by in ("pca", "umap"):
        found, _ = nearest_points(project(vectors, by)[0], 10)
        kept[by] = float(np.mean([len({*one} & {*other}) / 10 for one, other in zip(found, rows, strict=True)]))
    assert kept["umap"] > 0.55 > 1.5 * kept["pca"]


@pytest.mark.parametrize("vectors", [np.ones((6, 3)), np.repeat(np.eye(3), 20, 0), np.arange(8.0)[:, None]])
def test_equal_and_narrow_vectors_have_a_layout(vectors: np.ndarray) -> None:
    points, _ = project(vectors, "umap")
    assert np.isfinite(points).all()


def test_too_few() -> None:
    with pytest.raises(UsageError, match="two words or texts or more"):
        project(np.ones((1, 3)))
    for by in ("tsne", "umap"):
        with pytest.raises(UsageError, match="needs five points or more, not 4"):
            project(np.ones((4, 3)), by)
