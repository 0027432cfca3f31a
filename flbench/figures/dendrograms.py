"""Similarity of clients in a score matrix: a dendrogram, or the reachability of OPTICS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flbench.metrics import Floats, Ints


@dataclass(frozen=True)
class Tree:
    """Clients in an order, and the distances between them.

    Attributes:
        order: clients from top to bottom, shape (n,).
        merges: scipy's linkage, shape (n - 1, 4), or None.
        reach: reachability in that order, shape (n,), inf at the start of a component; or None.
    """

    order: Ints
    merges: Floats | None = None
    reach: Floats | None = None


def distances(scores: Floats) -> Floats:
    """1 - normalised symmetrised score: 0 for the most similar pair, 1 for the least similar.

    Args:
        scores: shape (n, n), higher is better; NaN = not measured. The diagonal is not read.

    Returns:
        Shape (n, n); 1 where neither direction is measured, 0 on the diagonal.

    Example:
        >>> distances(np.array([[9.0, 4.0, 0.0], [4.0, 9.0, 0.0], [0.0, 2.0, 9.0]])).tolist()
        [[0.0, 0.0, 1.0], [0.0, 0.0, 0.75], [1.0, 0.75, 0.0]]
    """
    both = np.stack([scores, scores.T])
    known = np.isfinite(both)
    mean = np.where(known, both, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    seen = known.any(axis=0) & ~np.eye(len(scores), dtype=bool)
    low, high = (mean[seen].min(), mean[seen].max()) if seen.any() else (0.0, 1.0)
    found: Floats = np.where(seen, (high - mean) / ((high - low) or 1.0), 1.0)
    np.fill_diagonal(found, 0)
    return found


def dendrogram(scores: Floats) -> Tree:
    """Average linkage of `distances`."""
    from scipy.cluster.hierarchy import leaves_list

    from flbench.toolbox import clustering

    merges = clustering.dendrogram(distances(scores))
    return Tree(leaves_list(merges).astype(np.int64), merges=merges)


def with_features(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters of the plugin that has `features`, by their own names; all if none has.

    Example:
        >>> with_features({"pfedlia.features": "zrow", "qsgd.levels": 4})
        {'features': 'zrow'}
    """
    owner = next((name for name in params if name.endswith(".features")), "").rpartition(".")[0]
    start = f"{owner}." if owner else ""
    return {
        name.removeprefix(start): value for name, value in params.items() if name.startswith(start)
    }


def groups_by_density(params: Mapping[str, Any], scores: Floats) -> bool:
    """Whether a method clusters rows by density: it has `features`, and the server clusters."""
    return (
        "features" in params
        and params.get("mode", "central") == "central"
        and bool(np.isfinite(scores).all())
    )


def reachability(scores: Floats, params: Mapping[str, Any]) -> Tree:
    """Reachability of the rows (OPTICS, Ankerst et al., 1999).

    Args:
        scores: shape (n, n), finite.
        params: the method's, with `features` and `min_samples` as in `clustering.optics_groups`.
    """
    from sklearn.cluster import OPTICS

    from flbench.toolbox.clustering import default_min_samples, distance_between_clients

    least = params.get("min_samples") or default_min_samples(len(scores))
    rule = OPTICS(min_samples=min(least, len(scores)), metric="precomputed")
    with np.errstate(divide="ignore", invalid="ignore"):
        rule.fit(distance_between_clients(scores, params["features"]))
    order = rule.ordering_.astype(np.int64)
    return Tree(order, reach=rule.reachability_[order])


def dendrogram_lines(merges: Floats, order: Ints, most: int = 200) -> tuple[Floats, Floats]:
    """The lines of a dendrogram: heights and positions along the leaves, NaN between merges.

    Args:
        merges: shape (n - 1, 4).
        order: leaves, shape (n,).
        most: at most this many merges, the highest ones.

    Returns:
        Two arrays, shape (5 * merges,).

    Example:
        >>> dendrogram_lines(np.array([[0, 1, 2.0, 2]]), np.array([0, 1]))
        (array([ 0.,  2.,  2.,  0., nan]), array([ 0.,  0.,  1.,  1., nan]))
    """
    n = len(order)
    place, height = np.zeros(2 * n - 1), np.zeros(2 * n - 1)
    place[order] = np.arange(n)
    heights, places = [], []
    for step, (left, right, top, _) in enumerate(merges):
        one, two = int(left), int(right)
        place[n + step], height[n + step] = (place[one] + place[two]) / 2, top
        heights.append([height[one], top, top, height[two], np.nan])
        places.append([place[one], place[one], place[two], place[two], np.nan])
    return np.array(heights[-most:]).ravel(), np.array(places[-most:]).ravel()
