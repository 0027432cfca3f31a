"""The partition `primary-secondary`: two labels make up most of a client's samples (DC-PFL)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from flbench.core.dataset import Indices, Partition
from flbench.core.seeding import rng as generator_at
from flbench.errors import UserError
from flbench.metrics import Floats
from flbench.partitions.sharding import dealt
from flbench.toolbox.heterogeneity import mean_kld

Sigma = float | tuple[float, float]
BANDS = ("low", "mid", "high")
PLANS = 100  # label plans from which a band is chosen


def primary_secondary(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    sigma_p: Sigma = (0.4, 0.6),
    sigma_s: Sigma = (0.2, 0.4),
    per: Literal["dataset", "client"] = "dataset",
    overlap: Literal["allow", "balanced"] = "allow",
    band: Literal["low", "mid", "high"] | None = None,
    samples: Annotated[int, Ge(3)] | None = None,
) -> Partition:
    """Primary and secondary label: two labels make up most of a client's samples (DC-PFL).

    A client has a share sigma_p of one label, sigma_s of another, and equal shares of all other
    labels. sigma_s is at most 0.99 - sigma_p, and at least one sample has another label.

    Args:
        sigma_p: share of the primary label, or the range from which it is drawn uniformly.
        sigma_s: share of the secondary label, or the range from which it is drawn uniformly.
        per: draw the shares once for the "dataset", or for every "client".
        overlap: "allow" draws every client's samples from the whole pool, so that several clients
            can have the same sample and test samples must come from a pool of their own.
            "balanced" gives every sample to at most one client: primary labels are spread evenly
            over the clients, and clients get fewer samples where a label has too few.
        band: 100 fixed label plans are divided into three bands by equal intervals of their mean KL
            divergence; the median plan of this band is used, and the seed draws only the samples.
        samples: samples per client; by default the pool's size over the number of clients.
    """
    classes, supply = np.unique(labels, return_counts=True)
    if len(classes) < 3:
        raise UserError(f"partition 'primary-secondary' needs 3 labels, got {len(classes)}")
    ranges = _range("sigma_p", sigma_p), _range("sigma_s", sigma_s)
    size = samples or len(labels) // clients
    if size < 3:
        raise UserError(f"{len(labels)} samples cannot give {clients} clients 3 each")
    draw = partial(LabelPlan.drawn, (clients, len(classes)), *ranges, per, overlap)
    plan = draw(rng) if band is None else plan_in_band(draw, size, band)
    if overlap == "balanced":
        size = _largest_size(plan, size, supply)
    counts = plan.counts(size)
    if (counts > supply).any():
        client, label = (int(index) for index in np.argwhere(counts > supply)[0])
        raise UserError(
            f"label {classes[label]} has {supply[label]} samples, client {client} is to get"
            f" {counts[client, label]} of them; use more clients or set samples"
        )
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in classes]
    if overlap == "balanced":
        return Partition(dealt(pools, counts))
    return Partition(drawn_from_all(pools, counts, rng))


def drawn_from_all(
    pools: list[Indices], counts: Indices, rng: np.random.Generator
) -> tuple[Indices, ...]:
    """The samples of each client, ascending, drawn from whole pools; arguments as `dealt`."""
    drawn = []
    for row in counts:
        held = np.flatnonzero(row)
        parts = [rng.choice(pools[k], row[k], replace=False, shuffle=False) for k in held]
        drawn.append(np.sort(np.concatenate(parts)))
    return tuple(drawn)


def plan_in_band(
    draw: Callable[[np.random.Generator], LabelPlan], size: int, band: str
) -> LabelPlan:
    """The median of the fixed plans that are in a band, for clients of `size` samples."""
    plans = [draw(generator_at(seed, "primary-secondary")) for seed in range(PLANS)]
    divergences = np.array([mean_kld(plan.counts(size)) for plan in plans])
    return plans[in_band(divergences, band)]


def in_band(values: Floats, band: str) -> int:
    """Position of the median of the values that are in one third of their range.

    Args:
        values: shape (n,); of an even number in the band the lower median is taken.
        band: "low", "mid" or "high".

    Raises:
        UserError: no value is in the band, or all are equal.

    Example:
        >>> in_band(np.array([0.0, 9.0, 4.0, 5.0, 3.5]), "mid")
        2
    """
    if values.min() == values.max():
        raise UserError(
            "partition 'primary-secondary' has no bands here: all data sets differ equally"
        )
    edges = np.linspace(values.min(), values.max(), 4)[1:3]
    inside = np.flatnonzero(np.searchsorted(edges, values, side="right") == BANDS.index(band))
    if not len(inside):
        raise UserError(
            f"partition 'primary-secondary': none of {len(values)} data sets lies in band '{band}'"
        )
    return int(inside[np.argsort(values[inside], kind="stable")[(len(inside) - 1) // 2]])


@dataclass(frozen=True)
class LabelPlan:
    """The clients' labels and their shares, independent of the number of samples.

    Attributes:
        shape: number of clients and of labels.
        first: share of the primary label, shape (N,) or (1,).
        second: share of the secondary label, shape (N,) or (1,).
        primary: primary label of each client, shape (N,).
        secondary: secondary label of each client, shape (N,), never the primary.
        start: label from which the remainder of the other labels' samples is distributed, one
            sample per label, shape (N,).
    """

    shape: tuple[int, int]
    first: Floats
    second: Floats
    primary: Indices
    secondary: Indices
    start: Indices

    @classmethod
    def drawn(
        cls,
        shape: tuple[int, int],
        sigma_p: tuple[float, float],
        sigma_s: tuple[float, float],
        per: str,
        overlap: str,
        rng: np.random.Generator,
    ) -> LabelPlan:
        """Draw the plan of every client; `shape` is (clients, labels)."""
        clients, count = shape
        draws = 1 if per == "dataset" else clients
        first = rng.uniform(*sigma_p, draws)
        second = np.minimum(rng.uniform(*sigma_s, draws), 0.99 - first)
        if overlap == "balanced":
            primary = rng.permutation(clients) % count
        else:
            primary = rng.integers(count, size=clients)
        secondary = (primary + rng.integers(1, count, size=clients)) % count
        return cls(shape, first, second, primary, secondary, rng.integers(count, size=clients))

    def counts(self, size: int) -> Indices:
        """Samples per client and label, shape (N, C); every client has `size` >= 3 samples."""
        clients, count = self.shape
        client = np.arange(clients)
        first = np.clip(np.rint(self.first * size).astype(np.int64), 1, size - 2)
        second = np.clip(np.rint(self.second * size).astype(np.int64), 1, size - first - 1)
        rest = np.broadcast_to(size - first - second, clients)

        # Rank of each other label, counted from `start` without the two main labels.
        position = (np.arange(count) - self.start[:, None]) % count
        main = np.stack([position[client, self.primary], position[client, self.secondary]])
        earlier, later = np.sort(main, axis=0)[:, :, None]
        rank = position - (position > earlier) - (position > later)

        others = count - 2
        counts: Indices = rest[:, None] // others + (rank < (rest % others)[:, None])
        counts[client, self.primary] = first
        counts[client, self.secondary] = second
        return counts


def _range(name: str, value: Sigma) -> tuple[float, float]:
    low, high = value if isinstance(value, tuple) else (value, value)
    if not 0 < low <= high < 0.99:
        raise UserError(
            f"partition 'primary-secondary': {name} expects a share or a range of shares, 0 < low"
            f" <= high < 0.99; got {value}"
        )
    return low, high


def _largest_size(plan: LabelPlan, size: int, supply: Indices) -> int:
    """The largest number of samples per client, up to `size`, for which all labels suffice."""
    # Rounding changes a client's count of a label by 1 or 2, so start above the estimate.
    wanted = plan.counts(size).sum(axis=0)
    largest = min(size, int(size * (supply / np.maximum(wanted, 1)).min()) + 4 * len(supply))
    while largest >= 3 and (plan.counts(largest).sum(axis=0) > supply).any():
        largest -= 1
    if largest < 3:
        raise UserError(
            f"partition 'primary-secondary': {supply.sum()} samples cannot give {plan.shape[0]}"
            " clients 3 each without overlap; use fewer clients"
        )
    return largest
