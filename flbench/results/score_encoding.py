"""Matrices in result files: one byte per entry, for figures and for later clustering."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LEVELS = 254
MISSING = 255


def encode(values: Floats) -> tuple[str, float, float]:
    """A matrix as text, and the range it covers.

    Args:
        values: shape (n, m); what is not finite counts as missing.

    Returns:
        Base64 of n * m bytes, row by row: 0 is the lowest value, 254 the highest, steps are equal,
        255 is missing; then the lowest and the highest value.

    Example:
        >>> encode(np.array([[0.0, 0.5], [np.nan, 1.0]]))
        ('AH///g==', 0.0, 1.0)
    """
    known = np.isfinite(values)
    low = float(f"{values[known].min():.6g}") if known.any() else 0.0
    high = float(f"{values[known].max():.6g}") if known.any() else 0.0
    span = (high - low) or 1.0
    steps = np.rint((np.where(known, values, low) - low) / span * LEVELS).clip(0, LEVELS)
    cells = np.where(known, steps, MISSING).astype(np.uint8)
    return base64.b64encode(cells.tobytes()).decode(), low, high


def decode(text: str, low: float, high: float, rows: int) -> Floats:
    """The matrix again, shape (rows, m), each value within 1/508 of the range; missing is NaN.

    Example:
        >>> decode("AH///g==", 0.0, 1.0, rows=2)
        array([[0. , 0.5],
               [nan, 1. ]])
    """
    cells = np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(rows, -1)
    values = low + cells.astype(np.float64) / LEVELS * (high - low)
    return np.where(cells == MISSING, np.nan, values)
