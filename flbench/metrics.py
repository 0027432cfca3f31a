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
        `groups`, the number of groups found; `noise`, clients in none; against the truth `ari`,
        `nmi` and `purity`, the share of clients whose group is mostly of their true group.
    """
    found = {"groups": len(np.unique(labels)), "noise": int((labels < 0).sum())}
    if groups is None:
        return {**found, "ari": None, "nmi": None, "purity": None}
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
    from sklearn.metrics.cluster import contingency_matrix

    return {
        **found,
        "ari": float(adjusted_rand_score(groups, labels)),
        "nmi": float(normalized_mutual_info_score(groups, labels)),
        "purity": float(contingency_matrix(groups, labels).max(axis=0).sum() / len(labels)),
    }


def churn(before: Ints, after: Ints) -> float:
    """Share of clients that moved to another group, under the best matching of group names.

    Args:
        before: group label of each client, shape (N,).
        after: the same, later.

    Example:
        >>> churn(np.array([0, 0, 1, 1]), np.array([5, 5, 5, 2]))
        0.25
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    together = contingency_matrix(before, after)
    rows, columns = linear_sum_assignment(together, maximize=True)
    return float(1 - together[rows, columns].sum() / len(before))


BINS = 15
"""Bins of the expected calibration error."""


def calibration_error(table: Floats) -> float:
    """Expected calibration error: mean gap between confidence and accuracy, weighted by bin.

    Args:
        table: per bin of confidence the number judged, the sum of confidences and the number
            correct, shape (bins, 3).

    Example:
        >>> calibration_error(np.array([[4, 3.5, 2], [0, 0, 0], [1, 1.0, 1]]))
        0.3
    """
    return float(np.abs(table[:, 1] - table[:, 2]).sum() / table[:, 0].sum())


def to_target(
    curves: Mapping[str, list[float | None]], clients: int, target: float | None
) -> dict[str, float | None]:
    """First round that reaches an accuracy, and what had crossed until then.

    Args:
        curves: `accuracy` and the cumulative `bytes_<direction>`, one entry per round.
        clients: N.
        target: the accuracy, or None: nothing is reported.

    Returns:
        `target`, `rounds_to_target` and `megabits_to_target` per client; None where it is never
        reached.
    """
    if target is None:
        return {}
    reached = (i for i, value in enumerate(curves["accuracy"]) if (value or 0.0) >= target)
    first = next(reached, None)
    if first is None:
        return {"target": target, "rounds_to_target": None, "megabits_to_target": None}
    moved = sum(curves[f"bytes_{way}"][first] or 0 for way in ("down", "up", "peer"))
    return {
        "target": target,
        "rounds_to_target": first + 1,
        "megabits_to_target": megabits_per_client(int(moved), clients),
    }


def flis_compat(megabits: float, parameters: int) -> float:
    """Megabits as FLIS's tables count them: every LeNet-5 as the one for 3x32x32 images.

    Args:
        megabits: the honest cost.
        parameters: of the network that was trained; other networks than LeNet-5 stay as they are.

    Example:
        >>> round(flis_compat(0.28433, 44_426), 4)
        0.3968
    """
    return megabits * 62_006 / parameters if parameters == 44_426 else megabits


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
