"""`HashDropout` on a CPU, in place."""

import numpy as np
from numba import njit


def drop_planes(x: np.ndarray, first_plane: int, seed: int, p: float) -> None:
    """Dropout of planes [planes, rows, columns] in place, as `HashDropout(p, seed)` of all planes from plane 0."""
    if p:
        _drop(x, first_plane, seed, round(p * 2**32), np.float32(1 / (1 - p)))


@njit(cache=True, nogil=True)
def _join(key, value):
    x = np.uint32((key ^ np.uint32(value)) + np.uint32(0x9E3779B9))
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(cache=True, nogil=True)
def _drop(x, first_plane, seed, threshold, scale):
    key = _join(_join(_join(np.uint32(0), seed & 0xFFFFFFFF), seed >> 32), 0)
    limit = np.uint32(threshold)
    planes, rows, columns = x.shape
    for plane in range(planes):
        plane_key = _join(key, first_plane + plane)
        for row in range(rows):
            hashed = _join(plane_key, row)
            line = x[plane, row]
            for column in range(columns):
                mixed = np.uint32(hashed + np.uint32(column) * np.uint32(0x9E3779B9))
                mixed = np.uint32((mixed ^ (mixed >> np.uint32(13))) * np.uint32(0x846CA68B))
                line[column] *= scale if mixed >= limit else np.float32(0.0)
