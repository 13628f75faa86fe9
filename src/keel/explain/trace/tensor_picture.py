"""A small picture of a tensor, with 8 bits per cell, and its statistics."""

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

MAX_SIDE = 64
"""Rows and columns of a picture at most."""
MAX_PANELS = 64
"""Matrices of one picture, such as heads."""
MASKED = 255
"""Byte of a cell that is minus infinity, or no number."""


class Statistics(NamedTuple):
    """Statistics of the finite values of a tensor, and how many are minus infinity."""

    min: float
    max: float
    mean: float
    std: float
    masked: int

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        finite = values[np.isfinite(values)].astype(np.float64)
        masked = values.size - finite.size
        if not finite.size:
            return cls(0.0, 0.0, 0.0, 0.0, masked)
        return cls(float(finite.min()), float(finite.max()), float(finite.mean()), float(finite.std()), masked)


class TensorPicture(NamedTuple):
    """A tensor as matrices of bytes, reduced to the values of largest magnitude in blocks of cells.

    With c = byte / 254, a value is limit * c^2, or with signed values, c = byte / 127 - 1, limit * c |c|; 255 is minus
    infinity. Square roots leave more of the 8 bits to small values.
    """

    cells: np.ndarray  # [panels, rows, columns] uint8
    limit: float
    signed: bool

    @classmethod
    def of(cls, values: np.ndarray, side: int = MAX_SIDE) -> Self:
        """The picture with at most `side` rows and columns; the axes before the last two are panels."""
        matrices = values.reshape(-1, *((1, *values.shape)[-2:])).astype(np.float32)[:MAX_PANELS]
        masked = ~np.isfinite(matrices)
        matrices = np.where(masked, 0, matrices)
        for axis in (1, 2):
            count = matrices.shape[axis]
            if count > side:
                starts = np.arange(side) * count // side
                high = np.maximum.reduceat(matrices, starts, axis)
                low = np.minimum.reduceat(matrices, starts, axis)
                matrices = np.where(-low > high, low, high)
                masked = np.logical_and.reduceat(masked, starts, axis)
        limit, signed = float(np.abs(matrices).max(initial=0)) or 1.0, bool((matrices < 0).any())
        roots = np.sqrt(np.abs(matrices) / limit)
        cells = 127 + 127 * np.sign(matrices) * roots if signed else 254 * roots
        return cls(np.where(masked, MASKED, np.round(cells)).astype(np.uint8), limit, signed)

    @property
    def error(self) -> float:
        """The largest difference of a stored value to the exact one."""
        return self.limit * (1 - (1 - 0.5 / (127 if self.signed else 254)) ** 2)

    def decoded(self) -> np.ndarray:
        """[panels, rows, columns] the values."""
        shares = self.cells / 127 - 1 if self.signed else self.cells / 254
        return np.where(self.cells == MASKED, -np.inf, self.limit * shares * np.abs(shares))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; the cells in base64."""
        panels, rows, columns = self.cells.shape
        return {
            "panels": panels,
            "rows": rows,
            "columns": columns,
            "signed": self.signed,
            "limit": float(f"{self.limit:.5g}"),
            "error": float(f"{self.error:.2g}"),
            "data": base64.b64encode(self.cells.tobytes()).decode(),
        }


def picture_size(shape: Sequence[int], side: int) -> int:
    """Bytes of the picture of a tensor of this shape."""
    *leading, rows, columns = (1, 1, *shape)
    return min(int(np.prod(leading)), MAX_PANELS) * min(rows, side) * min(columns, side)
