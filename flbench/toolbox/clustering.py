"""Clustering of clients: pure functions from score or distance matrices to groups."""

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
WIDE = 2**20
"""Numbers of a row beyond which k-means looks at coordinates: it reads all of them often."""
BLOCK = 2**16
"""Columns whose QR decomposition is computed at once."""


def standardised_rows(scores: Floats) -> Floats:
    """Centre each row and divide it by its standard deviation; constant rows become 0.

    Args:
        scores: shape (n, m), finite.

    Returns:
        Shape (n, m), rounded to 1e-9 so that rounding errors do not break ties.

    Example:
        >>> standardised_rows(np.array([[1.0, 3.0], [5.0, 5.0]])).tolist()
        [[-1.0, 1.0], [0.0, 0.0]]
    """
    centred = scores - scores.mean(axis=1, keepdims=True)
    deviation = centred.std(axis=1, keepdims=True)
    varies = deviation > 1e-9 * np.abs(scores).max(axis=1, keepdims=True, initial=0)
    divided = np.divide(centred, deviation, out=np.zeros_like(centred), where=varies)
    rounded: Floats = np.round(divided, 9)
    return rounded


def default_min_samples(clients: int) -> int:
    """Default `min_samples` of OPTICS: a tenth of the clients, at least 4, at most a quarter or 3.

    Example:
        >>> [default_min_samples(n) for n in (100, 50, 20, 15)]
        [10, 5, 4, 3]
    """
    return min(max(4, int(0.1 * clients + 0.5)), max(3, clients // 4))


def optics(distance: Floats, min_samples: int, xi: float = 0.05) -> Labels:
    """Density-based clustering, OPTICS; it finds the number of groups (Ankerst et al., 1999).

    Its order of points has many ties, which rounding errors must not break: points of one
    neighbourhood are equally far from its core. So distances are rounded, not computed by OPTICS.

    Args:
        distance: shape (n, n), rounded.
        min_samples: points of a neighbourhood, and the least size of a cluster.
        xi: least steepness at the border of a cluster.

    Returns:
        Labels, shape (n,); -1 = noise. All points are in group 0 if there are fewer than four or
        if they are all equal.

    Raises:
        UserError: `min_samples` is not from 2 to the number of points, or xi not from 0 to below 1.
    """
    if not 0 <= xi < 1:
        raise UserError(f"xi {xi}: expected 0 to below 1")
    if min_samples < 2:
        raise UserError(f"min_samples {min_samples}: expected 2 or more")
    if len(distance) < 4 or distance.max() == 0:
        return np.zeros(len(distance), dtype=np.int64)
    if min_samples > len(distance):
        raise UserError(f"min_samples {min_samples}: expected at most {len(distance)}, all clients")
    from sklearn import config_context
    from sklearn.cluster import OPTICS
    from sklearn.utils import assert_all_finite

    model = OPTICS(
        min_samples=min_samples, min_cluster_size=min_samples, xi=xi, metric="precomputed"
    )
    assert_all_finite(distance)  # once; OPTICS would look at all of them for each point
    checked = config_context(assume_finite=True, skip_parameter_validation=True)
    with checked, np.errstate(divide="ignore", invalid="ignore"):
        labels: Labels = model.fit(distance).labels_.astype(np.int64)
    return labels


@dataclass(frozen=True)
class Groups:
    """The groups that OPTICS found.

    Attributes:
        labels: group of each client, shape (n,), int64, 0..k-1.
        noise: number of clients that OPTICS labelled as noise, before they were assigned.
        sweep: diagnostic: number of groups at other values of `min_samples`.
    """

    labels: Labels
    noise: int
    sweep: dict[str, int]


def optics_groups(
    scores: Floats, features: Features, min_samples: int | None, xi: float, noise: Noise
) -> Groups:
    """Group the clients whose rows of a score matrix are similar.

    Args:
        scores: row i = the scores that client i gives, shape (n, n), finite.
        features: "zrow": standardised rows, Euclidean distance; "raw": rows unchanged; "corr":
            1 - correlation of rows as distance; "sym": max - (Z + Z^T) / 2 of the standardised
            rows Z as distance.
        min_samples: see `optics`; None = `default_min_samples`.
        xi: see `optics`.
        noise: assignment of noise points. "nearest": to the group with the smallest mean distance;
            "singleton": each to a group of its own; "global": all to one new group. If OPTICS
            finds no group, all clients are in one.
    """
    distance = distance_between_clients(scores, features)
    min_samples = min_samples or default_min_samples(len(scores))
    labels = optics(distance, min_samples, xi)
    sweep = {min_samples: int(labels.max()) + 1}
    for other in (3, 5, 10):
        if other <= len(scores) and other not in sweep:
            sweep[other] = int(optics(distance, other, xi).max()) + 1
    outliers = labels < 0
    if outliers.all():
        labels = np.zeros_like(labels)
    elif noise == "nearest":
        labels = adopt_noise(labels, distance)
    else:
        offsets = np.arange(outliers.sum()) if noise == "singleton" else 0
        labels[outliers] = labels.max() + 1 + offsets
    return Groups(labels, int(outliers.sum()), {str(m): sweep[m] for m in sorted(sweep)})


def distance_between_clients(scores: Floats, features: Features) -> Floats:
    """Distance of each client to each other one; the arguments are those of `optics_groups`.

    Returns:
        Shape (n, n), rounded to 1e-9, 0 on the diagonal.

    Example:
        >>> distance_between_clients(np.array([[3.0, 1.0], [0, 5]]), "raw").tolist()
        [[0.0, 5.0], [5.0, 0.0]]
    """
    rows = scores if features == "raw" else standardised_rows(scores)
    if features == "corr":
        distance = (1 - rows @ rows.T / rows.shape[1]).clip(min=0)
    elif features == "sym":
        similarity = (rows + rows.T) / 2
        distance = similarity.max() - similarity
    else:
        distance = euclidean_distances(rows)
    np.fill_diagonal(distance, 0)
    rounded: Floats = np.round(distance, 9)
    return rounded


def euclidean_distances(rows: Floats) -> Floats:
    """Distances of rows from each other, shape (n, n), by one product of matrices.

    Squares are rounded to 1e-11 of the largest one, more than rounding errors, so that equal rows
    have the distance 0 and d[i, j] is d[j, i], also on machines that add in another order.
    """
    centred = rows - rows.mean(axis=0)
    products = centred @ centred.T
    norms = products.diagonal()
    squares = (norms[:, None] + norms - 2 * products).clip(min=0)
    largest = squares.max() or 1.0
    distance: Floats = np.sqrt(np.round(squares / largest, 11) * largest)
    return distance


def distance_to_clients(rows: Floats, scores: Floats, features: Features) -> Floats:
    """Distance of newcomers to the clients, by the features that `optics_groups` used.

    Args:
        rows: the scores that each newcomer gives to the N clients, shape (n, N), finite.
        scores: the scores of the clients, shape (N, N), finite.
        features: as in `optics_groups`; for "sym" the newcomer's scores alone are used, because no
            client scores the newcomer.

    Returns:
        Shape (n, N), rounded to 1e-9.

    Example:
        >>> distance_to_clients(np.array([[0.0, 4.0]]), np.array([[3.0, 1.0], [0, 9]]), "raw")
        array([[4.24264069, 5.        ]])
    """
    if features == "raw":
        distance = cdist(rows, scores)
    else:
        new, known = standardised_rows(rows), standardised_rows(scores)
        if features == "zrow":
            distance = cdist(new, known)
        else:
            distance = 1 - new @ known.T / known.shape[1] if features == "corr" else -new
    rounded: Floats = np.round(distance, 9)
    return rounded


def adopt_noise(labels: Labels, distance: Floats) -> Labels:
    """Assign each noise point (-1) to the group with the smallest mean distance, shape (n,).

    Args:
        labels: shape (n,), at least one of them >= 0.
        distance: shape (n, n).
    """
    found = np.unique(labels[labels >= 0])
    mean = np.stack([distance[:, labels == group].mean(axis=1) for group in found], axis=1)
    return np.where(labels >= 0, labels, found[mean.argmin(axis=1)])


def select_peers(scores: Floats, transform: Transform = "none") -> npt.NDArray[np.bool_]:
    """Select the peers of each client: the `upper_group` of its scores for the others, and itself.

    Args:
        scores: row i = the scores that client i gives, shape (n, n), finite.
        transform: see `upper_group`; applied to each row.

    Returns:
        Shape (n, n), bool; row i = the peers of client i.
    """
    selected = np.eye(len(scores), dtype=bool)
    for client, row in enumerate(scores):
        others = np.arange(len(scores)) != client
        selected[client, others] = upper_group(row[others], transform)
    return selected


def upper_group(values: Floats, transform: Transform = "none") -> npt.NDArray[np.bool_]:
    """Select the group with the larger mean of an exact 2-means, or all that help about equally.

    All are selected if all values are positive and the two group means differ by less than a tenth
    of the larger.

    Args:
        values: the scores that one client gives to others, shape (n,), finite.
        transform: applied first: "signed_sqrt", or "clip" to +- the largest value.

    Returns:
        Mask of the selected, shape (n,), bool.

    Example:
        >>> upper_group(np.array([1.0, 0.9, -1.0, -9.0])).tolist()
        [True, True, True, False]
        >>> upper_group(np.array([1.0, 0.9, -1.0, -9.0]), "signed_sqrt").tolist()
        [True, True, False, False]
    """
    if transform == "signed_sqrt":
        values = np.sign(values) * np.sqrt(np.abs(values))
    elif transform == "clip" and values.size and values.max() > 0:
        values = values.clip(-values.max(), values.max())
    upper = two_means(values)
    if not upper.all() and (values > 0).all():
        high, low = values[upper].mean(), values[~upper].mean()
        upper |= np.round((high - low) / high, 9) < 0.1
    return upper


def two_means(values: Floats) -> npt.NDArray[np.bool_]:
    """Exact one-dimensional 2-means: sort, try every cut, keep the best.

    Values are rounded to 1e-9 of their range, and so is the quality of a cut, so that rounding
    errors do not break ties. Of equally good cuts the lowest is kept.

    Args:
        values: shape (n,), finite.

    Returns:
        Mask of the group with the larger mean, shape (n,), bool; all True if all are equal.

    Example:
        >>> two_means(np.array([1.0, 0.8, -0.6, -0.4])).tolist()
        [True, True, False, False]
    """
    spread = np.ptp(values) if len(values) else 0.0
    if spread <= 1e-9 * np.abs(values).max(initial=0):
        return np.ones(len(values), dtype=bool)
    scaled = np.round((values - values.min()) / spread, 9)
    order = np.argsort(scaled, kind="stable")
    ordered = scaled[order] - scaled.mean()
    sizes = np.arange(1, len(values))
    sums = np.cumsum(ordered)
    # The least variance within the groups is the largest variance between the two means.
    between = sums[:-1] ** 2 / sizes + (sums[-1] - sums[:-1]) ** 2 / sizes[::-1]
    between = np.round(between / between.max(), 9)
    between[ordered[:-1] == ordered[1:]] = -np.inf
    upper = np.zeros(len(values), dtype=bool)
    upper[order[int(between.argmax()) + 1 :]] = True
    return upper


def threshold_sets(scores: Floats, threshold: float) -> npt.NDArray[np.bool_]:
    """Overlapping sets of clients: those whose score is at least `threshold`, and itself (FLIS).

    Args:
        scores: shape (n, n).
        threshold: least score.

    Returns:
        Shape (n, n), bool; row i = the set of client i.
    """
    return (scores >= threshold) | np.eye(len(scores), dtype=bool)


def dendrogram(distances: Floats, method: str = "average") -> Floats:
    """Agglomerative clustering of a distance matrix: scipy's linkage, shape (n - 1, 4).

    Distances are rounded to ten digits of the largest, so that rounding errors do not break ties.
    Equal distances are merged in the order of clients.

    Args:
        distances: shape (n, n), symmetric; the diagonal is ignored.
        method: as in scipy: "average", "weighted", "complete", "single"; "ward" for Euclidean ones.
    """
    upper: Floats = distances[np.triu_indices(len(distances), 1)]
    if not len(upper):
        return np.empty((0, 4))
    largest = np.abs(upper).max()
    digits = 10 - int(np.floor(np.log10(largest))) if 0 < largest < np.inf else 0
    merges: Floats = linkage(np.round(upper, digits), method)
    return merges


def cut(merges: Floats, height: float) -> Labels:
    """Groups of a dendrogram that is cut at a height: merges up to that height are made.

    Args:
        merges: from `dendrogram`, shape (n - 1, 4).
        height: largest distance of a merge; a billionth of the last merge's distance is added, so
            that rounding errors do not undo a merge at this height.

    Returns:
        Labels 0..k-1 by first appearance, shape (n,), int64.

    Example:
        >>> far = np.array([[0, 1, 9], [1, 0, 9], [9, 9, 0]], float)
        >>> [cut(dendrogram(far), height).tolist() for height in (0.5, 1, 9)]
        [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
    """
    if not len(merges):
        return np.zeros(1, dtype=np.int64)
    return relabel_by_first_seen(fcluster(merges, height + 1e-9 * merges[-1, 2], "distance"))


def relabel_by_first_seen(labels: npt.NDArray[Any]) -> Labels:
    """Renumber `labels`, shape (n,), 0..k-1 in the order of first appearance, int64."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def bipartition(similarity: Floats, method: str = "single") -> npt.NDArray[np.bool_]:
    """Divide the clients of a similarity matrix into two groups (CFL).

    With `method` "single" the largest similarity between the groups is the smallest possible. Of
    equally good divisions, the order of clients decides (see `dendrogram`).

    Args:
        similarity: shape (n, n), n >= 2.
        method: linkage, as in `dendrogram`.

    Returns:
        Mask of the second group, shape (n,), bool; the first client is in the first.
    """
    merges = dendrogram(1 - similarity, method)
    merges[:, 2] = np.arange(len(merges))  # ranks as heights, so that ties undo one merge only
    return cut(merges, len(merges) - 1.5) > 0


def _coordinates(rows: Floats) -> Floats:
    """Points in the space that they span: with the same distances, n numbers each instead of d.

    By a QR decomposition of the columns, block after block, so that little memory is needed.

    Args:
        rows: shape (n, d), d >= n.

    Returns:
        Shape (n, n), rounded to 1e-9 of the largest, so that equal points stay equal.

    Example:
        >>> np.abs(_coordinates(np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]]))).tolist()
        [[5.0, 0.0], [0.0, 0.0]]
    """
    found = np.zeros((0, len(rows)))
    for at in range(0, rows.shape[1], BLOCK):
        block = np.concatenate([found, rows[:, at : at + BLOCK].T])
        found = np.asarray(np.linalg.qr(block, mode="r"))
    unit = 1e-9 * np.abs(found).max(initial=0) or 1.0
    rounded: Floats = np.round(found.T / unit) * unit
    return rounded


def k_means(
    rows: Floats, k: int, rng: np.random.Generator, weights: Floats | None = None
) -> Labels:
    """Lloyd's k-means with the best of ten k-means++ starts.

    Args:
        rows: shape (n, d), n >= k.
        k: number of groups.
        rng: source of the seed.
        weights: of the rows in the means, shape (n,), > 0; None = equal.

    Returns:
        Labels by first appearance, shape (n,), int64; fewer than k groups if points are equal.

    Example:
        >>> k_means(np.array([[0.0], [9.0], [1.0]]), 2, np.random.default_rng(0)).tolist()
        [0, 1, 0]
    """
    from sklearn.cluster import KMeans

    tolerance, width = 1e-4, rows.shape[1]  # of the mean variance of a column
    if width > max(WIDE, len(rows)):
        rows = _coordinates(rows)
        tolerance *= rows.shape[1] / width
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fewer distinct points than k, which is allowed
        model = KMeans(k, n_init=10, tol=tolerance, random_state=int(rng.integers(2**31)))
        return relabel_by_first_seen(model.fit_predict(rows, sample_weight=weights))
