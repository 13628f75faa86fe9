"""SIMD lanes equal numpy."""

import numpy as np
import pytest
from numba import njit

from keel.kernels.simd import (
    broadcast,
    exp2_of_integer,
    lane_sums,
    load,
    maximum,
    prefetch,
    round_up_to_lanes,
    store,
    truncate,
    where_nonnegative,
    zeros,
)


@njit
def _each(table, out):
    a, b = load(table, 0, 0), load(table, 1, 0)
    prefetch(table, 1, 0)
    store(out, 0, 0, a + b)
    store(out, 1, 0, a - b)
    store(out, 2, 0, a * b)
    store(out, 3, 0, a / b)
    store(out, 4, 0, maximum(a, b))
    store(out, 5, 0, where_nonnegative(a, b, broadcast(np.float32(7.0))))
    store(out, 6, 0, truncate(a))
    store(out, 7, 0, exp2_of_integer(truncate(a)))
    store(out, 8, 0, lane_sums((a, b, a * b)))


@pytest.mark.parametrize("seed", range(3))
def test_lanes_equal_numpy(seed: int) -> None:
    a, b = table = np.random.default_rng(seed).normal(0, 20, (2, 16)).astype(np.float32)
    out = zeros(9, 16)
    _each(table, out)
    expected = [a + b, a - b, a * b, a / b, np.maximum(a, b), np.where(a >= 0, b, 7), np.trunc(a), 2 ** np.trunc(a)]
    np.testing.assert_allclose(out[:8], expected, rtol=1e-6)
    np.testing.assert_allclose(out[8, :3], [a.sum(), b.sum(), (a * b).sum()], rtol=1e-5)
    assert not out[8, 3:].any()


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 112), (5, 304)])
def test_rows_start_cache_lines(rows: int, width: int) -> None:
    array = zeros(rows, width)
    assert array.shape == (rows, width)
    assert all(row.ctypes.data % 64 == 0 for row in array)
    assert not array.any()


def test_widths_round_up_to_lanes() -> None:
    assert [round_up_to_lanes(width) for width in (1, 16, 17, 100)] == [16, 16, 32, 112]
