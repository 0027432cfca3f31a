"""Metrics: pure functions of per-client arrays and group labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def accuracy_summary(correct: Ints, judged: Ints) -> dict[str, float]:
    """Accuracy over clients.

    Args:
        correct: correct answers per client, shape (N,).
        judged: test samples per client, shape (N,), > 0.

    Returns:
        `accuracy_mean` (unweighted over clients), `accuracy_micro` (over samples),
        `accuracy_std_clients` (ddof=0: all clients are there), `accuracy_worst_decile` (the 10th
        percentile over clients) and `accuracy_worst`.

    Example:
        >>> accuracy_summary(np.array([1, 2]), np.array([1, 4]))["accuracy_mean"]
        0.75
    """
    each = correct / judged
    return {
        "accuracy_mean": float(each.mean()),
        "accuracy_micro": float(correct.sum() / judged.sum()),
        "accuracy_std_clients": float(each.std()),
        "accuracy_worst_decile": float(np.percentile(each, 10)),
        "accuracy_worst": float(each.min()),
    }


def clustering_summary(labels: Ints, groups: Ints | None) -> Mapping[str, float | int | None]:
    """How well groups were found; None where there is no truth.

    Args:
        labels: group label of each client, shape (N,); -1 = undecided, a group of its own.
        groups: true group of each client, shape (N,), or None.

    Returns:
        `groups`, the number of groups found; `ari` and `nmi` against the truth.
    """
    found = len(np.unique(labels))
    if groups is None:
        return {"groups": found, "ari": None, "nmi": None}
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    return {
        "groups": found,
        "ari": float(adjusted_rand_score(groups, labels)),
        "nmi": float(normalized_mutual_info_score(groups, labels)),
    }


def clustering_error(
    truth: npt.NDArray[np.bool_], chosen: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """FLIS's clustering error of overlapping sets: wrong members per client.

    Args:
        truth: truth[i, j] = client j belongs with client i, shape (n, n).
        chosen: chosen[i, j] = client i takes client j, shape (n, n).

    Returns:
        Mean over rows of `false_positives`, `false_negatives` and their sum `error`.

    Example:
        >>> t = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]], bool)
        >>> c = np.array([[1, 0, 0], [1, 1, 1], [0, 0, 1]], bool)
        >>> round(clustering_error(t, c)["error"], 4)
        0.6667
    """
    false_positives = float((chosen & ~truth).sum(axis=1).mean())
    false_negatives = float((truth & ~chosen).sum(axis=1).mean())
    return {
        "error": false_positives + false_negatives,
        "false_positives": false_positives,
        "false_negatives": false_negatives,
    }


def megabits_per_client(bytes_moved: int, clients: int) -> float:
    """FLIS's unit: megabits per client, averaged over all clients.

    Example:
        >>> round(megabits_per_client(62_006 * 4 * 2 * 10, 100), 6)
        0.396838
    """
    return 8 * bytes_moved / (clients * 1e6)


def link_seconds(bytes_moved: int, bits_per_second: float = 2e6) -> float:
    """DC-PFL's unit: seconds on a client's link, one direction.

    Example:
        >>> link_seconds(62_006 * 4)
        0.992096
    """
    return bytes_moved * 8 / bits_per_second
