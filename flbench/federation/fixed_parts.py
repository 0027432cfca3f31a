"""Parts that the data fix: the test part of a person's file, and the later part of a sequence.

They are cut from all samples before these are divided among clients. What clients train on is
divided by the suite's partition; validation and test samples are then dealt to those clients that
train on samples of the same kind (`shared_test_sets.kinds`), each sample to one client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flbench.core.dataset import Dataset, Indices
from flbench.core.seeding import rng
from flbench.errors import UserError


@dataclass(frozen=True)
class FixedParts:
    """Samples by part, ascending; what is in none of them is left out.

    Attributes:
        train: what clients and the server train on.
        test: what clients are tested on; None = a share of their own.
        validation: what clients validate on; None = a share of their own.
        notes: what was left out, and why.
    """

    train: Indices
    test: Indices | None = None
    validation: Indices | None = None
    notes: tuple[str, ...] = ()


def fixed_parts(dataset: Dataset, test_fraction: float, validation_fraction: float) -> FixedParts:
    """The parts that the data fix; all samples are training samples where they fix none.

    Raises:
        UserError: no domain is long enough to be divided by time.
    """
    every = np.arange(len(dataset.y))
    test: Indices | None = None
    if dataset.test is not None and (dataset.keeps_test or dataset.gap is not None):
        is_test = dataset.test.numpy()
        every, test = every[~is_test], every[is_test]
    if dataset.gap is None:
        return FixedParts(every, test)
    domains = np.zeros_like(every) if dataset.domains is None else dataset.domains.numpy()[every]
    shares = [test_fraction] * (test is None) + [validation_fraction]
    found: list[list[Indices]] = [[], *([] for _ in shares)]
    short = []
    for domain in np.unique(domains):
        rows = every[domains == domain]
        cut = by_time(rows, shares, dataset.gap)
        if cut is None:
            short.append((_named(dataset, int(domain)), len(rows)))
            continue
        for part, piece in zip(found, cut, strict=True):
            part.append(piece)
    notes = _notes(dataset, short, len(np.unique(domains)))
    train, *others = (np.sort(np.concatenate(part)) for part in found)
    return FixedParts(train, others[0] if test is None else test, others[-1], notes)


def by_time(rows: Indices, shares: Sequence[float], gap: int) -> list[Indices] | None:
    """Cut samples in order of time: the last share is cut off, then the next one of the rest.

    Args:
        rows: in order of time.
        shares: of what is left each time; 0 = none is cut off.
        gap: samples left out before each piece.

    Returns:
        What is left, then the pieces; None if there are too few.

    Example:
        >>> [part.tolist() for part in by_time(np.arange(10), (0.2, 0.25), 1) or ()]
        [[0, 1, 2, 3], [8, 9], [5, 6]]
    """
    pieces = []
    for share in shares:
        size = max(1, round(share * len(rows))) if share > 0 else 0
        pieces.append(rows[len(rows) - size :])
        rows = rows[: max(0, len(rows) - size - (gap if size else 0))]
    return [rows, *pieces] if len(rows) else None


def _named(dataset: Dataset, domain: int) -> str:
    return f"'{dataset.domain_names[domain]}'" if dataset.domain_names else str(domain)


def _notes(dataset: Dataset, short: list[tuple[str, int]], domains: int) -> tuple[str, ...]:
    """What to say of domains that are too short.

    Raises:
        UserError: all of them are.
    """
    if not short:
        return ()
    name, size = max(short, key=lambda pair: pair[1])
    gap = f"{dataset.gap} samples are left out between parts, which are divided by time"
    if len(short) == domains:
        raise UserError(
            f"{dataset.name}: its longest domain, {name}, has {size} samples, too few: {gap};"
            " use longer sequences"
        )
    return (f"{len(short)} of {domains} domains, such as {name}, are left out as too short: {gap}",)


def dealt(
    kind: Indices, domain: Indices, pool: Indices, clients: Sequence[Indices], seed: int, part: str
) -> list[Indices]:
    """Deal a pool to clients, in proportion to what they train on: each sample to one client.

    A sample of a kind that nobody trains on goes to the clients that train on its domain. Those of
    a domain that nobody trains on are left out.

    Args:
        kind: of all samples; so is `domain`.
        pool: samples that no client trains on.
        clients: training samples of each client.
        part: name of the part, for the random generator.

    Returns:
        Samples of each client, ascending.
    """
    owners = np.repeat(np.arange(len(clients)), [len(rows) for rows in clients])
    trained = np.concatenate(clients)
    generator, owed = rng(seed, "dealt", part), np.zeros(len(clients))
    found: list[list[Indices]] = [[] for _ in clients]
    rest = pool
    for groups in (kind, domain):
        held = _held(groups[trained], owners)
        left = []
        for group, rows in _grouped(groups, rest):
            if group not in held:
                left.append(rows)
                continue
            ids, counts = held[group]
            owed[ids] += len(rows) * counts / counts.sum()
            for client, share in _shares(ids, owed, generator.permutation(rows)):
                found[client].append(share)
        rest = np.concatenate([np.arange(0), *left])
    return [np.sort(np.concatenate([np.arange(0), *shares])) for shares in found]


def _grouped(groups: Indices, rows: Indices) -> list[tuple[int, Indices]]:
    """The rows of each group that has some."""
    order = rows[np.argsort(groups[rows], kind="stable")]
    names, starts = np.unique(groups[order], return_index=True)
    return list(zip(names.tolist(), np.split(order, starts[1:]), strict=True)) if len(rows) else []


def _held(groups: Indices, owners: Indices) -> dict[int, tuple[Indices, Indices]]:
    """Group -> the clients that have samples of it, and how many."""
    pairs, counts = np.unique(np.stack([groups, owners], axis=1), axis=0, return_counts=True)
    names, starts = np.unique(pairs[:, 0], return_index=True)
    parts = zip(np.split(pairs[:, 1], starts[1:]), np.split(counts, starts[1:]), strict=True)
    return dict(zip(names.tolist(), parts, strict=True))


def _shares(ids: Indices, owed: np.ndarray, rows: Indices) -> list[tuple[int, Indices]]:
    """Give each row to the client that is owed most, and take it off; shape of `ids`: (n,)."""
    take = np.maximum(np.floor(owed[ids] + 1e-9), 0).astype(np.int64)
    while take.sum() > len(rows):
        take[int(np.argmax(take))] -= 1
    for _ in range(len(rows) - int(take.sum())):
        take[int(np.argmax(owed[ids] - take))] += 1
    owed[ids] -= take
    pieces = np.split(rows, np.cumsum(take)[:-1])
    return [(int(one), piece) for one, piece in zip(ids, pieces, strict=True) if len(piece)]
