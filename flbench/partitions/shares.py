"""Shares drawn from a Dirichlet distribution, and whole numbers of samples made of them.

Shares are kept as logarithms, because those of a small concentration are too small for a float: of
any labels that are left, the shares can still be compared.
"""

from __future__ import annotations

import numpy as np

from flbench.core.dataset import Indices
from flbench.metrics import Floats

SMALLEST = 1e-300
"""Of a smaller concentration logarithms of shares are not finite."""


def log_shares(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Logarithms of shares from Dir(alpha, ..., alpha) along the last axis, up to a constant.

    A share is a Gamma(alpha) variable over the sum of all; Gamma(alpha) is Gamma(alpha + 1) times
    U^(1 / alpha), U uniform (Marsaglia and Tsang, ACM TOMS 26, 2000, section 6).
    """
    alpha = max(alpha, SMALLEST)
    powers: Floats = np.log1p(-rng.random(shape)) / alpha
    found: Floats = np.log(rng.standard_gamma(alpha + 1, shape)) + powers
    return found


def normalised(logs: Floats) -> Floats:
    """Shares of sum 1 along the last axis; of -inf the share is 0.

    Example:
        >>> normalised(np.log([[1.0, 3.0], [5.0, 5.0]])).tolist()
        [[0.25, 0.75], [0.5, 0.5]]
    """
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    shares: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return shares


def cut(shares: Floats, total: int, rng: np.random.Generator) -> Indices:
    """Whole numbers of sum `total`: each share is rounded up or down, and exact on average.

    One random offset serves all cuts.

    Args:
        shares: of sum 1, shape (n,).
    """
    edges = shares.cumsum()
    cuts = np.floor(edges / edges[-1] * total + rng.random()).astype(np.int64)
    numbers: Indices = np.diff(cuts, prepend=0)
    return numbers
