"""UMAP (McInnes, Healy & Melville 2018) in Numba: nearest neighbours, weights of the neighbour graph, and the layout.

One thread and a random generator of its own, so that a layout is the same in every run. The references are numpy
twins in the tests.
"""

import numpy as np
from numba import njit

from keel.kernels.splitmix import GAMMA, mix, random_below

A, B = 1.5769434603113077, 0.8950608779109733
"""1 / (1 + A d^2B), the similarity of points at distance d, for min_dist 0.1 and spread 1."""
CLIP = 4.0
NEGATIVES = 5
EPSILON = 1e-3


@njit(cache=True, nogil=True)
def select_nearest(scores, first, scored, rows):
    """Write the largest `scores` [block, rows] of each row and their columns, in descending order, to `scored` and
    `rows` [block, neighbours]; row i is point `first` + i, which is no neighbour of itself."""
    last = scored.shape[1] - 1
    for i in range(scores.shape[0]):
        given, best, chosen = scores[i], scored[i], rows[i]
        best[:] = -np.inf
        chosen[:] = -1
        least = best[last]
        for j in range(len(given)):
            score = given[j]
            if score > least and j != first + i:
                place = last
                while place > 0 and best[place - 1] < score:
                    best[place], chosen[place] = best[place - 1], chosen[place - 1]
                    place -= 1
                best[place], chosen[place] = score, j
                least = best[last]


@njit(cache=True, nogil=True)
def neighbor_weights(distances):
    """[points, neighbours] exp(-max(0, d - rho) / sigma) of distances in ascending order, where rho is the smallest
    positive distance of a point, and sigma makes the weights sum to log2(neighbours)."""
    points, count = distances.shape
    weights = np.empty((points, count), np.float32)
    target = np.log2(count) if count > 1 else 1.0
    mean = distances.mean()
    for i in range(points):
        given = distances[i]
        rho = 0.0
        for distance in given:
            if distance > 0:
                rho = distance
                break
        low, high, sigma = 0.0, np.inf, 1.0
        for _ in range(64):
            total = 0.0
            for distance in given:
                total += np.exp(-max(0.0, distance - rho) / sigma)
            if abs(total - target) < 1e-5:
                break
            if total > target:
                high = sigma
                sigma = (low + high) / 2
            else:
                low = sigma
                sigma = sigma * 2 if high == np.inf else (low + high) / 2
        sigma = max(sigma, EPSILON * (given.mean() if rho > 0 else mean), 1e-12)
        for j in range(count):
            weights[i, j] = np.exp(-max(0.0, given[j] - rho) / sigma)
    return weights


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def optimize_layout(points, heads, tails, intervals, epochs, seed):
    """Move `points` [points, 2] by stochastic gradient descent: an edge attracts its ends every `intervals` epochs, and
    each time the head is repelled by five random points; the learning rate falls from 1 to 0."""
    count = len(points)
    due = intervals.copy()
    state = mix(np.uint64(seed) + GAMMA)
    for epoch in range(epochs):
        lr = np.float32(1.0 - epoch / epochs)
        for edge in range(len(heads)):
            if due[edge] > epoch + 1:
                continue
            due[edge] += intervals[edge]
            head, tail = points[heads[edge]], points[tails[edge]]
            x, y = head[0] - tail[0], head[1] - tail[1]
            square = x * x + y * y
            if square > 0:
                power = square**B
                pull = -2.0 * A * B * power / (square * (1.0 + A * power))
                dx, dy = lr * _clip(pull * x), lr * _clip(pull * y)
                head[0] += dx
                head[1] += dy
                tail[0] -= dx
                tail[1] -= dy
            for _ in range(NEGATIVES):
                state += GAMMA
                other = random_below(mix(state), count)
                if other == heads[edge]:
                    continue
                x, y = head[0] - points[other, 0], head[1] - points[other, 1]
                square = x * x + y * y
                push = 2.0 * B / ((EPSILON + square) * (1.0 + A * square**B))
                head[0] += lr * _clip(push * x)
                head[1] += lr * _clip(push * y)


@njit(cache=True, nogil=True, inline="always")
def _clip(value):
    return min(CLIP, max(-CLIP, value))
