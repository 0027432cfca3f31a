"""Clusterers: pure functions of arrays, shared by methods and free for third parties."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import cdist

from flbench.errors import UserError

Features = Literal["zrow", "raw", "corr", "sym"]


Noise = Literal["nearest", "singleton", "global"]


Transform = Literal["none", "signed_sqrt", "clip"]


Floats = npt.NDArray[np.float64]


Labels = npt.NDArray[np.int64]


def standardised_rows(scores: Floats) -> Floats:
    """Centre each row and divide it by its standard deviation; rows without spread become 0.

    Args:
        scores: shape (n, m), finite.

    Returns:
        Shape (n, m), rounded to 1e-9 so that ties do not turn on rounding noise.

    Example:
        >>> standardised_rows(np.array([[1.0, 3.0], [5.0, 5.0]])).tolist()
        [[-1.0, 1.0], [0.0, 0.0]]
    """
    centred = scores - scores.mean(axis=1, keepdims=True)
    spread = centred.std(axis=1, keepdims=True)
    real = spread > 1e-9 * np.abs(scores).max(axis=1, keepdims=True, initial=0)
    divided = np.divide(centred, spread, out=np.zeros_like(centred), where=real)
    rounded: Floats = np.round(divided, 9)
    return rounded


def default_min_samples(clients: int) -> int:
    """OPTICS's `min_samples` for so many `clients`: a tenth, at least 4.

    Example:
        >>> [default_min_samples(n) for n in (100, 50, 20, 15)]
        [10, 5, 4, 3]
    """
    return min(max(4, int(0.1 * clients + 0.5)), max(3, clients // 4))


def optics(
    features: Floats, min_samples: int, xi: float = 0.05, metric: str = "euclidean"
) -> Labels:
    """Density-based groups without a given number of them (Ankerst et al., 1999).

    Args:
        features: shape (n, d), or distances, shape (n, n), where `metric` is "precomputed".
        min_samples: points that make a neighbourhood, and the smallest cluster.
        xi: steepness that ends a cluster.

    Returns:
        Labels, shape (n,); -1 = noise. Everybody is in group 0 where there are fewer than four
        points or they all coincide.

    Raises:
        UserError: `min_samples` exceeds the number of points.
    """
    spread = (
        features.max() - features.min()
        if metric == "precomputed"
        else np.ptp(features, axis=0).max()
    )
    if len(features) < 4 or spread == 0:
        return np.zeros(len(features), dtype=np.int64)
    if min_samples > len(features):
        raise UserError(f"min_samples {min_samples}: expected at most {len(features)}, all clients")
    from sklearn.cluster import OPTICS

    rule = OPTICS(min_samples=min_samples, min_cluster_size=min_samples, xi=xi, metric=metric)
    with np.errstate(divide="ignore", invalid="ignore"):
        labels: Labels = rule.fit(features).labels_.astype(np.int64)
    return labels


@dataclass(frozen=True)
class Groups:
    """What OPTICS found.

    Attributes:
        labels: group of each client, shape (n,), int64, 0..k-1.
        noise: how many clients were noise before they were given a group.
        sweep: diagnostic: groups found at other values of `min_samples`.
    """

    labels: Labels
    noise: int
    sweep: dict[str, int]


def optics_groups(
    scores: Floats, features: Features, min_samples: int | None, xi: float, noise: Noise
) -> Groups:
    """Group clients whose rows of a score matrix look alike.

    Args:
        scores: row i = what client i thinks of everybody, shape (n, n), finite.
        features: "zrow": rows standardised, Euclidean; "raw": rows as they are; "corr": 1 - row
            correlation as distance; "sym": max - (Z + Z^T) / 2 of the standardised rows Z.
        min_samples: see `optics`; None = `default_min_samples`.
        xi: see `optics`.
        noise: "nearest": to the group with the smallest mean distance; "singleton": a group
            each; "global": one group of all noise points. If OPTICS finds no group, everybody
            is in one.
    """
    rows = np.round(scores, 9) if features == "raw" else standardised_rows(scores)
    metric = "euclidean"
    if features == "corr":
        rows, metric = np.round(1 - rows @ rows.T / rows.shape[1], 9).clip(min=0), "precomputed"
        np.fill_diagonal(rows, 0)
    elif features == "sym":
        similarity = (rows + rows.T) / 2
        rows, metric = np.round(similarity.max() - similarity, 9), "precomputed"
        np.fill_diagonal(rows, 0)
    min_samples = min_samples or default_min_samples(len(scores))
    labels = optics(rows, min_samples, xi, metric)
    outliers = labels < 0
    if outliers.all():
        labels = np.zeros_like(labels)
    elif noise == "nearest":
        distance = rows if metric == "precomputed" else cdist(rows, rows)
        labels = adopt_noise(labels, distance)
    else:
        steps = np.arange(outliers.sum()) if noise == "singleton" else 0
        labels[outliers] = labels.max() + 1 + steps
    tried = [m for m in sorted({3, 5, 10, min_samples}) if m <= len(scores)]
    sweep = {str(m): int(optics(rows, m, xi, metric).max()) + 1 for m in tried}
    return Groups(labels, int(outliers.sum()), sweep)


def adopt_noise(labels: Labels, distance: Floats) -> Labels:
    """Give each noise point (-1) to the group with the smallest mean distance, shape (n,).

    Args:
        labels: shape (n,), at least one of them >= 0.
        distance: shape (n, n).
    """
    found = np.unique(labels[labels >= 0])
    mean = np.stack([distance[:, labels == group].mean(axis=1) for group in found], axis=1)
    return np.where(labels >= 0, labels, found[mean.argmin(axis=1)])


def select_peers(scores: Floats, transform: Transform = "none") -> npt.NDArray[np.bool_]:
    """Which clients each client keeps: the better group of an exact 2-means.

    A client keeps itself always, and everybody where all others help (> 0) and the two group means
    differ by less than a tenth of the larger.

    Args:
        scores: row i = what client i thinks of everybody, shape (n, n), finite.
        transform: applied to each row first: "signed_sqrt", or "clip" to +- its largest gain.

    Returns:
        Shape (n, n), bool; row i = the set of client i.
    """
    chosen = np.eye(len(scores), dtype=bool)
    for client, row in enumerate(scores):
        others = np.arange(len(scores)) != client
        values = row[others]
        if transform == "signed_sqrt":
            values = np.sign(values) * np.sqrt(np.abs(values))
        elif transform == "clip" and values.size and values.max() > 0:
            values = values.clip(-values.max(), values.max())
        upper = two_means(values)
        if not upper.all() and (values > 0).all():
            high, low = values[upper].mean(), values[~upper].mean()
            upper |= high - low < 0.1 * high
        chosen[client, others] = upper
    return chosen


def two_means(values: Floats) -> npt.NDArray[np.bool_]:
    """Exact one-dimensional 2-means: sort, try every cut, keep the best.

    Args:
        values: shape (n,), finite.

    Returns:
        Mask of the group with the larger mean, shape (n,), bool; all True without spread.

    Example:
        >>> two_means(np.array([1.0, 0.8, -0.6, -0.4])).tolist()
        [True, True, False, False]
    """
    if len(values) < 2 or values.min() == values.max():
        return np.ones(len(values), dtype=bool)
    order = np.argsort(values, kind="stable")
    ordered = values[order] - values.mean()  # sums of squares far from zero would cancel
    sizes = np.arange(1, len(values))
    sums = np.cumsum(ordered)
    # Minimising the scatter within is maximising the scatter between the two means.
    between = sums[:-1] ** 2 / sizes + (sums[-1] - sums[:-1]) ** 2 / sizes[::-1]
    between[ordered[:-1] == ordered[1:]] = -np.inf
    upper = np.zeros(len(values), dtype=bool)
    upper[order[int(between.argmax()) + 1 :]] = True
    return upper


def threshold_sets(scores: Floats, threshold: float) -> npt.NDArray[np.bool_]:
    """Overlapping neighbourhoods: whose score reaches the `threshold`, and oneself (FLIS).

    Args:
        scores: shape (n, n).

    Returns:
        Shape (n, n), bool; row i = the set of client i.
    """
    chosen: npt.NDArray[np.bool_] = (scores >= threshold) | np.eye(len(scores), dtype=bool)
    return chosen


def dendrogram(distances: Floats, method: str = "average") -> Floats:
    """Agglomerative clustering of a distance matrix: scipy's linkage, shape (n - 1, 4).

    Args:
        distances: shape (n, n), symmetric; its diagonal is not read.
        method: "average", "complete" or "single".
    """
    upper: Floats = distances[np.triu_indices(len(distances), 1)]
    merges: Floats = linkage(upper, method) if len(upper) else np.empty((0, 4))
    return merges


def cut(merges: Floats, height: float) -> Labels:
    """Groups of a dendrogram whose merges lie at most at a `height`.

    Args:
        merges: from `dendrogram`, shape (n - 1, 4).

    Returns:
        Labels 0..k-1 by first appearance, shape (n,), int64.

    Example:
        >>> far = np.array([[0, 1, 9], [1, 0, 9], [9, 9, 0]], float)
        >>> [cut(dendrogram(far), height).tolist() for height in (0.5, 1, 9)]
        [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
    """
    return relabel_by_first_seen(
        fcluster(merges, height, "distance") if len(merges) else np.zeros(1)
    )


def relabel_by_first_seen(labels: npt.NDArray[Any]) -> Labels:
    """`labels`, shape (n,), renumbered 0..k-1 in order of first appearance, int64."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    renumbered: Labels = rank[inverse]
    return renumbered


def bipartition(similarity: Floats, method: str = "single") -> npt.NDArray[np.bool_]:
    """Two groups of a similarity matrix (CFL).

    With `method` "single" the largest similarity across the groups is as small as it can be.

    Args:
        similarity: shape (n, n), n >= 2.

    Returns:
        Mask of the second group, shape (n,), bool; the first client is in the first.
    """
    merges = dendrogram(1 - similarity, method)
    merges[:, 2] = np.arange(len(merges))  # ranks: undo the last merge alone, ties or not
    second: npt.NDArray[np.bool_] = cut(merges, len(merges) - 1.5) > 0
    return second


def k_means(rows: Floats, k: int, rng: np.random.Generator) -> Labels:
    """Lloyd's k-means of `k` groups with ten k-means++ starts, drawn from `rng`.

    Args:
        rows: shape (n, d), n >= k.

    Returns:
        Labels by first appearance, shape (n,), int64; fewer groups where points coincide.

    Example:
        >>> k_means(np.array([[0.0], [9.0], [1.0]]), 2, np.random.default_rng(0)).tolist()
        [0, 1, 0]
    """
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct points than k: fewer groups
        rule = KMeans(k, n_init=10, random_state=int(rng.integers(2**31)))
        return relabel_by_first_seen(rule.fit_predict(rows))
