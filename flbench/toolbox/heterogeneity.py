"""Heterogeneity of the clients' label distributions: pure functions of label counts.

`counts` is the number of samples per client and label, shape (N, C), integers >= 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64] | Floats


def kld(counts: Counts, smoothing: float = 0.5) -> Floats:
    """Symmetric Kullback-Leibler divergence of every pair of clients (DC-PFL Eq. 1).

    D(i||j) = sum over labels of P_i ln(P_i / P_j), in nats; the value of a pair is the mean of
    D(i||j) and D(j||i). P_i is client i's share of each label after `smoothing` is added to every
    count.

    Args:
        counts: samples per client and label, shape (N, C).
        smoothing: added to every count; with 0, the divergence of two clients is infinite if only
            one of them holds some label.

    Returns:
        Shape (N, N), symmetric, 0 on the diagonal, >= 0.

    Raises:
        ValueError: `smoothing` is 0 and a client has no samples.

    Example:
        >>> kld(np.array([[2, 2], [3, 1]]), smoothing=0).round(6)
        array([[0.      , 0.137327],
               [0.137327, 0.      ]])
    """
    shares = _shares(counts, smoothing)
    logs = np.log(np.where(shares > 0, shares, 1))
    directed = (shares * logs).sum(axis=1)[:, None] - shares @ logs.T
    holds = (shares > 0).astype(np.float64)
    if not holds.all():
        directed[holds @ (1 - holds).T > 0] = np.inf
    symmetric: Floats = np.maximum((directed + directed.T) / 2, 0)
    np.fill_diagonal(symmetric, 0)
    return symmetric


def mean_kld(counts: Counts, smoothing: float = 0.5) -> float:
    """Mean of `kld` over unordered pairs of clients (DC-PFL Eq. 2, with factor 2 / (N (N-1))).

    The paper prints the factor 2 / N. The sum over pairs is computed per label, in time N * C,
    without an N x N matrix.

    Args:
        counts: samples per client and label, shape (N, C).
        smoothing: added to every count, as in `kld`.

    Returns:
        Nats, >= 0; 0 for fewer than two clients.

    Raises:
        ValueError: `smoothing` is 0 and a client has no samples.

    Example:
        >>> round(mean_kld(np.array([[2, 2], [3, 1]]), smoothing=0), 6)
        0.137327
    """
    n = len(counts)
    if n < 2:
        return 0.0
    shares = _shares(counts, smoothing)
    held = (shares > 0).any(axis=0)
    if not (shares[:, held] > 0).all():
        return float("inf")
    logs = np.log(shares[:, held])
    same_client = float((shares[:, held] * logs).sum())
    all_pairs = float(shares[:, held].sum(axis=0) @ logs.sum(axis=0))
    return max((n * same_client - all_pairs) / (n * (n - 1)), 0.0)


def earth_movers(counts: Counts) -> Floats:
    """Earth mover's distance between each client's label shares and those of all samples.

    Labels have no order, so that moving a share from one label to any other costs 1: the distance
    is the total variation, half the sum of |p - q|.

    Args:
        counts: samples per client and label, shape (N, C); every client has samples.

    Returns:
        Shape (N,), from 0 (equal shares) to 1 (no common label).

    Raises:
        ValueError: a client has no samples.

    Example:
        >>> earth_movers(np.array([[4, 0], [0, 4], [2, 2]]))
        array([0.5, 0.5, 0. ])
    """
    shares = _shares(counts, 0)
    overall = counts.sum(axis=0) / counts.sum()
    distance: Floats = np.abs(shares - overall).sum(axis=1) / 2
    return distance


def label_overlap_truth(counts: Counts) -> npt.NDArray[np.bool_]:
    """Pairs of clients that belong together by FLIS's code: j holds half of i's labels.

    truth[i, j] = 1 iff |labels_i & labels_j| >= ceil(|labels_i| / 2). It is not symmetric where
    the numbers of labels differ. It is the ground truth of `flbench.metrics.clustering_error`.

    Args:
        counts: samples per client and label, shape (N, C).

    Returns:
        Shape (N, N), bool.

    Example:
        >>> label_overlap_truth(np.array([[5, 5, 0, 0], [0, 5, 5, 0], [0, 1, 1, 1]])).astype(int)
        array([[1, 1, 1],
               [1, 1, 1],
               [0, 1, 1]])
    """
    holds = (counts > 0).astype(np.float32)  # integers up to 2^24 are exact
    needed = np.ceil(holds.sum(axis=1) / 2)
    truth: npt.NDArray[np.bool_] = holds @ holds.T >= needed[:, None]
    return truth


def summary(counts: Counts) -> dict[str, str]:
    """Key figures of a partition, name -> text.

    Args:
        counts: samples per client and label, shape (N, C); every client has samples.

    Example:
        >>> for name, value in summary(np.array([[4, 0], [1, 3], [2, 2]])).items():
        ...     print(f"{name}: {value}")
        clients: 3
        samples per client: min 4, median 4, max 4
        labels per client: min 1, median 2, max 2
        mean KL divergence of two clients: 0.479 nats
        mean earth mover's distance to all: 0.278
    """
    return {
        "clients": str(len(counts)),
        "samples per client": _spread(counts.sum(axis=1)),
        "labels per client": _spread((counts > 0).sum(axis=1)),
        "mean KL divergence of two clients": f"{mean_kld(counts):.3f} nats",
        "mean earth mover's distance to all": f"{earth_movers(counts).mean():.3f}",
    }


def _spread(values: npt.NDArray[np.int64]) -> str:
    return f"min {values.min():g}, median {np.median(values):g}, max {values.max():g}"


def _shares(counts: Counts, smoothing: float) -> Floats:
    """Each client's share of each label, shape (N, C)."""
    smoothed = counts + float(smoothing)
    totals = smoothed.sum(axis=1, keepdims=True)
    if (totals == 0).any():
        raise ValueError(f"client {int((totals[:, 0] == 0).argmax())} has no samples")
    shares: Floats = smoothed / totals
    return shares
