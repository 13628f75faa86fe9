"""UMAP's kernels equal their definitions in numpy."""

import numpy as np
import pytest

from keel.kernels.umap_layout import A, B, neighbor_weights, optimize_layout, select_nearest


def test_the_largest_scores_are_selected_in_order() -> None:
    scores = np.random.default_rng(0).normal(size=(5, 30)).astype(np.float32)
    found, rows = np.empty((5, 4), np.float32), np.empty((5, 4), np.int32)
    select_nearest(scores, 3, found, rows)
    scores[np.arange(5), 3 + np.arange(5)] = -np.inf  # the points themselves
    assert (rows == np.argsort(-scores, axis=1)[:, :4]).all()
    assert (found == np.take_along_axis(scores, rows, 1)).all()


def test_weights_sum_to_the_logarithm_of_the_neighbours() -> None:
    distances = np.sort(np.random.default_rng(0).uniform(0.1, 2, size=(20, 8)).astype(np.float32), axis=1)
    weights = neighbor_weights(distances)
    assert weights.sum(1) == pytest.approx(np.full(20, 3), abs=1e-3)
    assert weights[:, 0] == pytest.approx(1)
    assert (np.diff(weights, axis=1) <= 0).all()
    assert np.isfinite(neighbor_weights(np.zeros((3, 4), np.float32))).all()


def test_an_edge_attracts_its_ends_along_the_gradient() -> None:
    """One step of one edge: its tail moves by the gradient of -log(1 / (1 + A d^2B)); only the head is repelled too."""
    start = np.array([[0, 0], [1.5, 0.5]], np.float32)
    points = start.copy()
    optimize_layout(points, np.array([0]), np.array([1]), np.ones(1, np.float32), 1, 0)

    def loss(tail: np.ndarray) -> float:
        return float(np.log(1 + A * ((start[0] - tail) ** 2).sum() ** B))

    step = 1e-4 * np.eye(2)
    gradient = [(loss(start[1] + each) - loss(start[1] - each)) / 2e-4 for each in step]
    assert points[1] - start[1] == pytest.approx(-np.array(gradient), rel=1e-3)
    assert points[0] - start[0] != pytest.approx(np.array(gradient), rel=1e-2)


def test_an_edge_is_used_in_its_epochs() -> None:
    """An edge of interval 2 attracts in every second epoch; the learning rate falls from 1."""
    start = np.array([[0, 0], [1.5, 0.5]], np.float32)
    moved = []
    for epochs in (1, 2):
        points = start.copy()
        optimize_layout(points, np.array([0]), np.array([1]), np.array([2], np.float32), epochs, 0)
        moved.append(not np.array_equal(points, start))
    assert moved == [False, True]
