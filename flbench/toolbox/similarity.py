"""Similarity of models, updates and predictions: pure functions that return score matrices.

Higher is better; a row for each client that scores. Scores from losses are the negated result of
`Context.evaluate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

WIDE = 2**20
"""Numbers of a model that are compared at once, in float64; those of larger ones part by part."""


def cosine(rows: Tensor, others: Tensor | None = None) -> Tensor:
    """Cosine similarity of vectors (CFL: of updates).

    Args:
        rows: shape (n, d); NaN rows give NaN.
        others: shape (m, d); None = `rows`.

    Returns:
        Shape (n, m), float64, in [-1, 1]; 0 where a vector is zero.

    Example:
        >>> cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]))[0].tolist()
        [1.0, 0.0, -1.0]
    """
    pairs = [(rows, _lengths(rows))]
    if others is not None:
        pairs.append((others, _lengths(others)))
    products: list[Tensor] = []
    for parts in zip(*(one.split(WIDE, dim=1) for one, _ in pairs), strict=True):
        units = [part.double() / length for part, (_, length) in zip(parts, pairs, strict=True)]
        products.append(units[0] @ units[-1].T)
    total = products[0] if len(products) == 1 else torch.stack(products).sum(dim=0)
    return total.clamp(-1, 1)


def _lengths(rows: Tensor) -> Tensor:
    """Lengths of vectors, shape (n, 1), float64; 1 where a vector is zero."""
    parts = [part.double().norm(dim=1, keepdim=True) for part in rows.split(WIDE, dim=1)]
    lengths = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1).norm(dim=1, keepdim=True)
    return torch.where(lengths > 0, lengths, 1.0)  # F.normalize would raise small ones to 1e-12


def neg_distance(rows: Tensor, centres: Tensor) -> Tensor:
    """Negated Euclidean distance to centres (FeSEM).

    Args:
        rows: shape (n, d).
        centres: shape (k, d).

    Returns:
        Shape (n, k), float64, <= 0.

    Example:
        >>> neg_distance(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])).tolist()
        [[-5.0]]
    """
    parts = [
        torch.cdist(one.double(), other.double(), compute_mode="donot_use_mm_for_euclid_dist")
        for one, other in zip(rows.split(WIDE, dim=1), centres.split(WIDE, dim=1), strict=True)
    ]
    return -(parts[0] if len(parts) == 1 else torch.stack(parts).norm(dim=0))


def predictions(logits: Tensor, kind: Literal["onehot", "softmax"] = "onehot") -> Tensor:
    """Predictions of models: one-hot rows of the largest logit, or probabilities.

    Args:
        logits: shape (n, M, C), or (n, M, T, C) for text, where each token is a sample.
        kind: "onehot" or "softmax".

    Returns:
        Shape (n, M, C), or (n, M T, C): int64 zeros and ones, or floats that sum to 1 per sample.

    Example:
        >>> predictions(torch.tensor([[[0.1, 2.0], [3.0, 1.0]]])).tolist()
        [[[0, 1], [1, 0]]]
    """
    logits = logits.flatten(1, -2)
    if kind == "softmax":
        return F.softmax(logits, dim=2)
    return F.one_hot(logits.argmax(dim=2), logits.shape[2])


def prediction_agreement(predictions: Tensor) -> Tensor:
    """Cosine similarity of predictions on the same samples: <B_i, B_j> / (|B_i| |B_j|) (FLIS).

    Args:
        predictions: one-hot rows or probabilities per sample, shape (n, M, C).

    Returns:
        Shape (n, n), float64, symmetric, in [0, 1] with diagonal 1; for one-hot rows the share of
        samples on which two models agree, exactly.

    Example:
        >>> labels = torch.tensor([[0, 1, 0, 1], [0, 1, 1, 1]])  # two models, four samples
        >>> prediction_agreement(F.one_hot(labels)).tolist()
        [[1.0, 0.75], [0.75, 1.0]]
    """
    flat = predictions.flatten(1).double()
    scores = flat @ flat.T
    squares = scores.diagonal().clamp(min=1e-30)
    scores = (scores / (squares[:, None] * squares).sqrt()).clamp(0, 1)
    scores = (scores + scores.T) / 2
    return scores.fill_diagonal_(1.0)


def best_group(scores: Tensor, labels: Tensor) -> Tensor:
    """The group of each newcomer: the one whose members have the largest mean score.

    Args:
        scores: scores of each newcomer for each client, shape (n, N), finite.
        labels: group of each client, shape (N,), 0..k-1; a group may be empty.

    Returns:
        Group of each newcomer, shape (n,), int64; never an empty group; ties give the first.

    Example:
        >>> best_group(torch.tensor([[1.0, 0.0, 0.6]]), torch.tensor([0, 0, 1])).tolist()
        [1]
    """
    members = F.one_hot(labels).to(scores)
    sizes = members.sum(dim=0)
    means = (scores @ members / sizes.clamp(min=1)).masked_fill(sizes == 0, -torch.inf)
    return means.argmax(dim=1)


def min_max(rows: Tensor) -> Tensor:
    """(x - min x) / (max x - min x) of each row, float64; a constant row becomes 0.

    Args:
        rows: shape (n, d), or any shape whose last dimension is a row.

    Returns:
        The shape of `rows`.

    Example:
        >>> min_max(torch.tensor([[1.0, 3.0, 5.0], [7.0, 7.0, 7.0]])).tolist()
        [[0.0, 0.5, 1.0], [0.0, 0.0, 0.0]]
    """
    rows = rows.double()
    low, high = rows.amin(dim=-1, keepdim=True), rows.amax(dim=-1, keepdim=True)
    return (rows - low) / torch.where(high > low, high - low, 1.0)


def neg_discrepancy(rows: Tensor, parts: Sequence[int] | None = None) -> Tensor:
    """Negated mean absolute difference of min-max scaled vectors (DC-PFL).

    Args:
        rows: shape (n, d).
        parts: lengths of the sections of a row that are scaled separately, summing to d; None =
            the row is scaled as one section.

    Returns:
        Shape (n, n), float64, symmetric, in [-1, 0] with diagonal 0; unchanged if a row x becomes
        a x + c with a > 0.

    Example:
        >>> round(float(neg_discrepancy(torch.tensor([[0.0, 1, 2], [2.0, 1, 0]]))[0, 1]), 4)
        -0.6667
    """
    sections = [rows] if parts is None else rows.split(list(parts), dim=1)
    scaled = torch.cat([min_max(section) for section in sections], dim=1)
    return -torch.cdist(scaled, scaled, p=1) / rows.shape[1]


def layer_discrepancy(rows: Tensor, others: Tensor, layers: Tensor) -> Tensor:
    """Mean absolute difference of min-max scaled layers of two stacks of models (DC-PFL).

    Args:
        rows: shape (n, W).
        others: the model that each row is compared with, shape (n, W).
        layers: masks, shape (L, W), bool.

    Returns:
        Shape (n, L), float64, in [0, 1].

    Example:
        >>> layers = torch.tensor([[True, True, False, False], [False, False, True, True]])
        >>> mine, mean = torch.tensor([[0.0, 1, 0, 1]]), torch.tensor([[0.0, 1, 1, 0]])
        >>> layer_discrepancy(mine, mean, layers).tolist()
        [[0.0, 1.0]]
    """
    discrepancies = [
        (min_max(rows[:, mask]) - min_max(others[:, mask])).abs().mean(1) for mask in layers
    ]
    return torch.stack(discrepancies, dim=1)
