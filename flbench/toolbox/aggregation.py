"""The weighted mean of rows, with one summation order whatever the company.

A row is averaged in ascending client order with a float64 accumulator and never together with
other rows, so it is the same bits whatever K is, whoever else was sampled into other groups, and
however many processes share the work.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from flbench.core.model_bank import ModelBank
from flbench.core.state import Membership, Upload

Weighting = Literal["samples", "uniform"]
"""Whether clients weigh by their numbers of samples, or all alike."""


BLOCK = 2**16
"""Scalars that are averaged at once."""


def weighted_mean(
    rows: Tensor, uploads: Tensor, weights: Tensor, counters: Tensor | None = None
) -> Tensor:
    """Average uploads into rows: row k becomes sum_j weights[k, j] u_j / sum_j weights[k, j].

    Args:
        rows: the bank, shape (K, W), float32; a row whose weights are all zero is kept.
        uploads: shape (n, W), in ascending client order.
        weights: shape (K, n), float64, >= 0.
        counters: mask of scalars of which the maximum is kept, shape (W,), bool (BatchNorm's
            `num_batches_tracked`).

    Returns:
        The new bank, shape (K, W), float32.

    Example:
        >>> weighted_mean(torch.zeros(1, 2), torch.tensor([[1.0, 2.0], [4.0, 8.0]]),
        ...               torch.tensor([[1.0, 2.0]], dtype=torch.float64))
        tensor([[3., 6.]])
    """
    averaged = rows.clone()
    if not len(uploads):
        return averaged
    touched = (weights != 0).any(dim=1).nonzero()[:, 0]
    patterns, pattern_of = torch.unique(weights[touched], dim=0, return_inverse=True)
    for index, pattern in enumerate(patterns):
        members = pattern.nonzero()[:, 0].tolist()
        shares, total = [float(pattern[member]) for member in members], 0.0
        for share in shares:
            total += share
        mean = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
        for at in range(0, rows.shape[1], BLOCK):  # a block stays in the cache
            block = torch.zeros_like(mean[at : at + BLOCK], dtype=torch.float64)
            for member, share in zip(members, shares, strict=True):
                block.add_(uploads[member, at : at + BLOCK].double(), alpha=share)
            mean[at : at + BLOCK] = block.div_(total)
        if counters is not None and bool(counters.any()):
            columns = counters.nonzero()[:, 0].to(uploads.device)
            mean[columns] = uploads[:, columns][members].amax(dim=0)
        averaged[touched[pattern_of == index]] = mean
    return averaged


def member_mean(
    models: Tensor,
    upload: Upload,
    membership: Membership,
    counters: Tensor | None = None,
    weighting: Weighting = "samples",
) -> Tensor:
    """The mean of each row's members' uploads, which is what FedAvg does.

    Args:
        models: the bank, shape (K, W); rows without an upload are kept.
        upload: its kept candidates are averaged; candidates for several rows (`upload.rows`) go
            to the rows they are for.
        membership: who belongs to which row, with which share.
        counters: see `weighted_mean`.
        weighting: shares are multiplied by the clients' sample counts, or not.

    Returns:
        The new bank, shape (K, W).
    """
    shares = membership.shares(upload.ids, len(models))
    if weighting == "samples":
        shares = shares * upload.samples
    if upload.rows is None:
        return weighted_mean(models, upload.selected(), shares, counters)
    averaged = models.clone()
    for candidate, row in enumerate(upload.rows.tolist()):
        trained, share = upload.params[:, candidate], shares[row] * upload.active[:, candidate]
        averaged[row] = weighted_mean(averaged[row, None], trained, share[None], counters)[0]
    return averaged


def partial_mean(
    models: Tensor,
    upload: Upload,
    shared: Tensor,
    counters: Tensor | None = None,
    weighting: Weighting = "samples",
) -> Tensor:
    """Partial averaging with one row per client: some scalars are common, the others personal.

    Args:
        models: row i = the model of client i, shape (N, W).
        upload: acting clients keep what they trained outside `shared`.
        shared: mask of the common scalars, shape (W,), bool.
        counters: see `weighted_mean`.
        weighting: by sample counts, or every acting client alike.

    Returns:
        Rows that agree in the common scalars (the acting clients' mean), shape (N, W); clients
        that did not act keep their personal scalars bit for bit.
    """
    weights = upload.samples if weighting == "samples" else torch.ones_like(upload.samples)
    mean = weighted_mean(models[:1], upload.selected(), weights.double()[None], counters)[0]
    rows = models.clone()
    rows[upload.ids] = upload.selected()
    if isinstance(rows, ModelBank):
        rows.share(shared, mean[shared])
    else:
        rows[:, shared] = mean[shared]
    return rows


def effective_steps(steps: Tensor, momentum: float = 0.0, shrink: float = 0.0) -> Tensor:
    """How many plain gradient steps the local steps weigh: FedNova's a_i (Wang et al., 2020).

    Args:
        steps: T_i, optimiser steps made, any shape.
        momentum: rho of local SGD: the sum over the steps of the running counter rho z + 1.
        shrink: eta mu of a proximal term: (1 - (1 - shrink)^T) / shrink, without momentum.

    Returns:
        a_i, the shape of `steps`, float64.

    Example:
        >>> float(effective_steps(torch.tensor(3), 0.5)), float(effective_steps(torch.tensor(3)))
        (4.25, 3.0)
    """
    steps = steps.double()
    if shrink:
        return (1 - (1 - shrink) ** steps) / shrink
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
