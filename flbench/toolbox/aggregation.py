"""Aggregation: the weighted mean of uploaded models, in a fixed order of summation.

A row is averaged in ascending client order with a float64 accumulator, separately from the other
rows. So its bits depend neither on K, nor on the clients of other groups, nor on the number of
processes. On a device it is a product in float64, whose bits depend on its own clients only, too.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flbench.core.file_memory import give_back
from flbench.core.model_bank import ModelBank
from flbench.core.state import Membership, Upload
from flbench.toolbox.similarity import neg_distance

Weighting = Literal["samples", "uniform"]
"""Whether clients are weighted by their numbers of samples or uniformly."""
BLOCK = 2**16
"""Scalars averaged at a time, few enough for the CPU's cache."""
TABLE = 2**26
"""Scalars of uploads that are averaged at a time on a device, in double precision."""
STEPS = 100
"""Most steps of a k-means."""


def weighted_mean(
    rows: Tensor, uploads: Tensor, weights: Tensor, counters: Tensor | None = None
) -> Tensor:
    """Average uploads into rows: row k becomes sum_j weights[k, j] u_j / sum_j weights[k, j].

    Args:
        rows: the bank, shape (K, W), float32; a row whose weights are all zero is kept.
        uploads: shape (n, W), in ascending client order.
        weights: shape (K, n), float64, >= 0.
        counters: mask of the scalars whose maximum is taken instead, shape (W,), bool (BatchNorm's
            `num_batches_tracked`).

    Returns:
        The new bank, shape (K, W), float32.

    Example:
        >>> weighted_mean(torch.zeros(1, 2), torch.tensor([[1.0, 2.0], [4.0, 8.0]]),
        ...               torch.tensor([[1.0, 2.0]], dtype=torch.float64))
        tensor([[3., 6.]])
    """
    return _set_means(rows.clone(), torch.arange(len(rows)), uploads, weights, counters)


def _set_means(
    rows: Tensor, places: Tensor, uploads: Tensor, weights: Tensor, counters: Tensor | None
) -> Tensor:
    """Set rows of a bank, at `places`, shape (k,), to means with `weights`, shape (k, n)."""
    if not len(uploads):
        return rows
    # Rows with equal weights have equal means, which are computed once.
    alike: dict[bytes, list[int]] = {}
    table = weights.numpy(force=True)
    for row in np.flatnonzero(table.any(axis=1)).tolist():
        alike.setdefault(table[row].tobytes(), []).append(row)
    is_bank, width = isinstance(rows, ModelBank), rows.shape[1]
    columns = None if counters is None else counters.nonzero()[:, 0].to(uploads.device)
    set_mean = _mean_in_blocks if rows.device.type == "cpu" else _mean_at_once
    for same in alike.values():
        members = table[same[0]].nonzero()[0].tolist()
        shares = table[same[0], members].tolist()
        first, *others = places[same].tolist()
        mean = torch.empty(width, dtype=rows.dtype, device=rows.device) if is_bank else rows[first]
        set_mean(mean, uploads, members, shares)
        if columns is not None and len(columns):
            mean[columns] = uploads[:, columns][members].amax(dim=0).to(mean.device)
            give_back(uploads)
        if is_bank:  # it stores the row once
            rows[places[same]] = mean
            continue
        for other in others:
            rows[other] = mean
    return rows


def _mean_in_blocks(mean: Tensor, uploads: Tensor, members: list[int], shares: list[float]) -> None:
    """Set a row, shape (W,), to the mean of some uploads, added one after the other."""
    total = 0.0
    for share in shares:
        total += share
    sums = torch.empty(min(BLOCK, len(mean)), dtype=torch.float64)
    wide = torch.empty_like(sums)
    for at in range(0, len(mean), BLOCK):
        end = min(at + BLOCK, len(mean))
        block, upload = sums[: end - at].zero_(), wide[: end - at]
        for member, share in zip(members, shares, strict=True):
            block.add_(upload.copy_(uploads[member, at:end]), alpha=share)
        mean[at:end] = block.div_(total)
        give_back(uploads)


def _mean_at_once(mean: Tensor, uploads: Tensor, members: list[int], shares: list[float]) -> None:
    """`_mean_in_blocks` on a device, of as many columns at once as fit.

    One after the other, the uploads of a small network would take longer to call than to add.
    """
    columns = max(1, TABLE // len(members))
    factors = torch.tensor(shares, dtype=torch.float64, device=mean.device)
    for at in range(0, len(mean), columns):
        table = uploads[members, at : at + columns].to(factors)
        mean[at : at + columns] = (factors @ table) / factors.sum()


def client_weights(upload: Upload, weighting: Weighting = "samples") -> Tensor:
    """How much each client counts by a rule: what a method answers to the hook `weights`.

    Returns:
        Weights, shape (n,), float64.
    """
    samples = upload.samples.double()
    return samples if weighting == "samples" else torch.ones_like(samples)


def _weights(upload: Upload, weighting: Weighting) -> Tensor:
    """Those of the hook `weights`, unless a method averages uniformly whatever it says."""
    return upload.client_weights if weighting == "samples" else client_weights(upload, "uniform")


def member_mean(
    models: Tensor,
    upload: Upload,
    membership: Membership,
    counters: Tensor | None = None,
    weighting: Weighting = "samples",
) -> Tensor:
    """Average the uploads of each row's members, as FedAvg does.

    Args:
        models: the bank, shape (K, W); rows without an upload are kept.
        upload: the candidate that each client keeps is averaged; where `upload.rows` names a row
            for each candidate, a candidate is averaged into its row.
        membership: the share of each client in each row.
        counters: see `weighted_mean`.
        weighting: "samples" multiplies the shares by what the hook `weights` says, which is the
            clients' sample counts unless a plugin answers; "uniform" does not ask it.

    Returns:
        The new bank, shape (K, W).
    """
    each = _weights(upload, weighting)
    if upload.rows is None and membership.weights is None:  # few rows of many have an upload
        homes = membership.home[upload.ids]
        rows = homes[homes >= 0].unique()
        shares = (homes == rows[:, None]).double() * each
        return _set_means(models.clone(), rows, upload.selected(), shares, counters)
    shares = membership.shares(upload.ids, len(models)) * each
    if upload.rows is None:
        return weighted_mean(models, upload.selected(), shares, counters)
    averaged = models.clone()
    for candidate, row in enumerate(upload.rows.tolist()):
        trained, share = upload.params[:, candidate], shares[row] * upload.active[:, candidate]
        averaged[row] = weighted_mean(averaged[row, None], trained, share[None], counters)[0]
    return averaged


def lloyd(centres: Tensor, uploads: Tensor, weights: Tensor) -> Tensor:
    """Lloyd's k-means from given centres: every centre becomes the mean of the nearest uploads.

    Args:
        centres: where it starts, shape (K, d); centre k stays in place k, and as it is where no
            upload is nearest to it.
        uploads: shape (n, d).
        weights: of the uploads in the means, shape (n,), float64, > 0.

    Returns:
        The centres when no upload changes its nearest centre any more, shape (K, d).

    Example:
        >>> uploads = torch.tensor([[0.0], [3.0], [10.0]])
        >>> lloyd(torch.tensor([[0.0], [5.0]]), uploads, torch.tensor([2.0, 1.0, 1.0]).double())
        tensor([[ 1.],
                [10.]])
    """
    nearest = torch.full((len(uploads),), -1)
    for _ in range(STEPS):
        before, nearest = nearest, neg_distance(uploads, centres).cpu().argmax(dim=1)
        if torch.equal(nearest, before):
            break
        centres = weighted_mean(centres, uploads, F.one_hot(nearest, len(centres)).T * weights)
    return centres


def partial_mean(
    models: Tensor,
    upload: Upload,
    shared: Tensor,
    counters: Tensor | None = None,
    weighting: Weighting = "samples",
) -> Tensor:
    """Average some scalars over the acting clients; the others stay personal (one row per client).

    Args:
        models: row i = the model of client i, shape (N, W).
        upload: the trained models; outside `shared` they become the acting clients' rows.
        shared: mask of the averaged scalars, shape (W,), bool.
        counters: see `weighted_mean`.
        weighting: see `member_mean`.

    Returns:
        Rows that are equal in the shared scalars (the acting clients' mean), shape (N, W); clients
        that did not act keep their personal scalars bit for bit.
    """
    each = _weights(upload, weighting)
    mean = weighted_mean(models[:1], upload.selected(), each[None], counters)[0]
    rows = models.clone()
    rows[upload.ids] = upload.selected()
    if isinstance(rows, ModelBank):
        rows.share(shared, mean[shared])
    else:
        rows[:, shared] = mean[shared]
    return rows


def effective_steps(steps: Tensor, momentum: float = 0.0, shrink: float = 0.0) -> Tensor:
    """Effective number of plain gradient steps: FedNova's a_i (Wang et al., 2020).

    Args:
        steps: T_i, optimiser steps made, any shape.
        momentum: rho of local SGD: a_i is the sum over the steps of z <- rho z + 1.
        shrink: eta mu of a proximal term: a_i = (1 - (1 - shrink)^T) / shrink, without momentum.

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
