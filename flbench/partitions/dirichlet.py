"""The Dirichlet partition: label shares of a client are drawn from a Dirichlet distribution."""

from __future__ import annotations

import logging
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from flbench.core.dataset import Indices, Partition
from flbench.errors import UserError

DRAWN = 10_000_000  # numbers of samples per label and client that are drawn in all tries
TRIES = 1000  # at most


def dirichlet(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    alpha: Annotated[float, Gt(0), Le(1e6)] = 0.1,
    min_samples: Annotated[int, Ge(1)] = 10,
) -> Partition:
    """Dirichlet: each label is split by shares from Dir(alpha, ..., alpha) (FLIS, NIID-Bench).

    Labels are split one after the other; a client that already has an equal share of all samples
    gets no samples of the next label. The draw is repeated until every client has `min_samples`,
    at most 1000 times and less often for many clients. If no draw reaches this, the draw that lacks
    the fewest samples is used, and random samples of the largest clients are given to clients
    with too few, which is logged.

    Args:
        alpha: concentration; the smaller, the fewer clients share a label.
        min_samples: least number of samples of a client.
    """
    refuse_too_few(len(labels), clients, min_samples)
    classes, sizes = np.unique(labels, return_counts=True)
    tries = min(max(DRAWN // (clients * len(classes)), 1), TRIES)
    best_counts, fewest_missing = np.zeros((0, clients), dtype=np.int64), len(labels) + 1
    for _ in range(tries):
        counts = _draw_counts(sizes, clients, alpha, rng)
        missing = int(np.maximum(min_samples - counts.sum(axis=0), 0).sum())
        if missing < fewest_missing:
            best_counts, fewest_missing = counts, missing
        if not fewest_missing:
            break
    owner = np.empty(len(labels), dtype=np.int64)
    for label, row in zip(classes, best_counts, strict=True):
        samples = rng.permutation(np.flatnonzero(labels == label))
        owner[samples] = np.repeat(np.arange(clients), row)
    if fewest_missing:
        fill_up(owner, clients, min_samples, rng)
        say_filled_up("dirichlet", tries, clients, min_samples, fewest_missing)
    return Partition(of_owners(owner, clients))


def refuse_too_few(samples: int, clients: int, least: int) -> None:
    """Refuse a number of samples that cannot give each client so many.

    Raises:
        UserError: it cannot.
    """
    if samples < clients * least:
        raise UserError(
            f"{samples} samples cannot give {clients} clients {least} each; use fewer clients"
            + (" or set min_samples" if least > 1 else "")
        )


def of_owners(owner: Indices, clients: int) -> tuple[Indices, ...]:
    """The samples of each client, ascending, from the client of each sample, shape (m,)."""
    ends = np.bincount(owner, minlength=clients).cumsum()[:-1]
    return tuple(np.split(np.argsort(owner, kind="stable"), ends))


def _draw_counts(sizes: Indices, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Draw the number of samples per label and client, shape (labels, clients)."""
    equal_share, total = sizes.sum() / clients, np.zeros(clients, dtype=np.int64)
    counts = np.empty((len(sizes), clients), dtype=np.int64)
    for row, size in enumerate(sizes):
        below = total < equal_share
        shares = np.where(below, rng.dirichlet(np.full(clients, alpha)), 0)
        if not (shares.sum() > 0 and np.isfinite(shares).all()):
            # All weight is on clients that are full: the label goes to one client that is not.
            shares = np.eye(1, clients, rng.choice(np.flatnonzero(below)))[0]
        edges = shares.cumsum()
        # One random offset for all cuts: shares are rounded up or down, and exact on average.
        cuts = np.floor(edges / edges[-1] * size + rng.random()).astype(np.int64)
        counts[row] = np.diff(cuts, prepend=0)
        total += counts[row]
    return counts


def say_filled_up(name: str, tries: int, clients: int, least: int, given: int) -> None:
    """Log that no draw of a partition was good enough, so that samples were given to others."""
    logging.getLogger("flbench").warning(
        "%s: of %s draws none gave each of %s clients %s samples; %s samples of the largest"
        " clients were given to others", name, tries, clients, least, given,
    )  # fmt: skip


def fill_up(owner: Indices, clients: int, least: int, rng: np.random.Generator) -> None:
    """Give random samples of the largest clients to clients with fewer than `least`, in place."""
    sizes = np.bincount(owner, minlength=clients)
    need = np.maximum(least - sizes, 0)
    # The highest level such that the samples above it suffice, by bisection.
    low, high = least, int(sizes.max())
    while low < high:
        level = (low + high + 1) // 2
        if np.maximum(sizes - level, 0).sum() >= need.sum():
            low = level
        else:
            high = level - 1
    gives = np.maximum(sizes - low, 0)
    not_needed = rng.permutation(np.flatnonzero(gives))[: gives.sum() - need.sum()]
    gives[not_needed] -= 1
    order = np.lexsort((rng.random(len(owner)), owner))  # by owner, in random order within
    position = np.arange(len(owner)) - (sizes.cumsum() - sizes)[owner[order]]
    moved = rng.permutation(order[position < gives[owner[order]]])
    owner[moved] = np.repeat(np.arange(clients), need)
