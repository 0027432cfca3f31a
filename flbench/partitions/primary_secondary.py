"""The partition `primary-secondary`: two labels make up most of a client's samples (DC-PFL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from flbench.core.dataset import Indices, Partition
from flbench.core.seeding import rng as generator_at
from flbench.errors import UserError
from flbench.toolbox.heterogeneity import mean_kld

Floats = npt.NDArray[np.float64]


Sigma = float | tuple[float, float]


BANDS = ("low", "mid", "high")


PLANS = 100  # data sets the bands are cut from


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

    A client has a share sigma_p of one label, sigma_s of another and the rest evenly of all
    others. sigma_s is at most 0.99 - sigma_p, and at least one sample is of the others.

    Args:
        sigma_p: share of the primary label, or the range it is drawn from uniformly.
        sigma_s: share of the secondary label, or the range it is drawn from uniformly.
        per: draw the shares once for the "dataset", or for every "client".
        overlap: "allow" draws every client's samples from the whole pool: a sample may be several
            clients', so test samples should come from a pool of their own. "balanced" gives every
            sample to one client at most: the labels take turns as primary ones, and clients get
            fewer samples where a label does not suffice.
        band: of a fixed list of 100 data sets, cut at equal intervals of their mean KL divergence,
            take the median one of the band; the seed then draws only the samples.
        samples: samples per client; by default the pool's size over the number of clients.

    Raises:
        UserError: fewer than three labels, no such range, too few samples, an empty band.
    """
    classes, supply = np.unique(labels, return_counts=True)
    if len(classes) < 3:
        raise UserError(f"partition 'primary-secondary' needs 3 labels, got {len(classes)}")
    ranges = _range("sigma_p", sigma_p), _range("sigma_s", sigma_s)
    size = samples or len(labels) // clients
    if size < 3:
        raise UserError(f"{len(labels)} samples cannot give {clients} clients 3 each")
    shape = (clients, len(classes))
    if band is None:
        plan = LabelPlan.drawn(shape, *ranges, per, overlap, rng)
    else:
        seeds = [generator_at(seed, "primary-secondary") for seed in range(PLANS)]
        plans = [LabelPlan.drawn(shape, *ranges, per, overlap, seed) for seed in seeds]
        plan = plans[in_band(np.array([mean_kld(one.counts(size)) for one in plans]), band)]
    if overlap == "balanced":
        size = _affordable(plan, size, supply)
    counts = plan.counts(size)
    if (counts > supply).any():
        client, label = (int(place) for place in np.argwhere(counts > supply)[0])
        raise UserError(
            f"label {classes[label]} has {supply[label]} samples, client {client} is to get"
            f" {counts[client, label]} of them; use more clients or set samples"
        )
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in classes]
    if overlap == "balanced":
        cut = [np.split(pool, k.cumsum())[:-1] for pool, k in zip(pools, counts.T, strict=True)]
        return Partition(tuple(np.sort(np.concatenate(mine)) for mine in zip(*cut, strict=True)))
    each = [[(pools[label], row[label]) for label in np.flatnonzero(row)] for row in counts]
    drawn = (
        [rng.choice(pool, k, replace=False, shuffle=False) for pool, k in mine] for mine in each
    )
    return Partition(tuple(np.sort(np.concatenate(mine)) for mine in drawn))


def in_band(values: Floats, band: str) -> int:
    """Position of the median of those values that lie in a third of their range.

    Args:
        values: shape (n,).
        band: "low", "mid" or "high": which third of [min, max]; of an even number of values there
            the lower median.

    Raises:
        UserError: no value lies there, or all are equal.

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
    """What the clients' labels are to be, before anybody knows how many samples there are.

    Attributes:
        shape: clients and labels.
        first: share of the primary label, shape (N,) or (1,).
        second: share of the secondary label, likewise.
        primary: shape (N,).
        secondary: shape (N,), never the primary.
        start: from which label on the others get what cannot be spread evenly, shape (N,).
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
        pairs = 1 if per == "dataset" else clients
        first = rng.uniform(*sigma_p, pairs)
        second = np.minimum(rng.uniform(*sigma_s, pairs), 0.99 - first)
        if overlap == "balanced":
            primary = rng.permutation(clients) % count
        else:
            primary = rng.integers(count, size=clients)
        secondary = (primary + rng.integers(1, count, size=clients)) % count
        return cls(shape, first, second, primary, secondary, rng.integers(count, size=clients))

    def counts(self, size: int) -> Indices:
        """Samples per client and label, shape (N, C); every client has `size` >= 3."""
        clients, count = self.shape
        each = np.arange(clients)
        first = np.clip(np.rint(self.first * size).astype(np.int64), 1, size - 2)
        second = np.clip(np.rint(self.second * size).astype(np.int64), 1, size - first - 1)
        rest = np.broadcast_to(size - first - second, clients)
        places = (np.arange(count) - self.start[:, None]) % count
        ours = np.sort(np.stack([places[each, self.primary], places[each, self.secondary]]), axis=0)
        rank = places - (places > ours[0][:, None]) - (places > ours[1][:, None])
        counts: Indices = rest[:, None] // (count - 2) + (rank < (rest % (count - 2))[:, None])
        counts[each, self.primary] = first
        counts[each, self.secondary] = second
        return counts


def _range(name: str, value: Sigma) -> tuple[float, float]:
    low, high = value if isinstance(value, tuple) else (value, value)
    if not 0 < low <= high < 0.99:
        raise UserError(
            f"partition 'primary-secondary': {name} expects a share or a range of shares, 0 < low"
            f" <= high < 0.99; got {value}"
        )
    return low, high


def _affordable(plan: LabelPlan, size: int, supply: Indices) -> int:
    """The most samples per client, up to `size`, that the labels' supply suffices for."""
    # Of each client rounding moves a label's count by 1 or 2: start above, and go down.
    wanted = plan.counts(size).sum(axis=0)
    found = min(size, int(size * (supply / np.maximum(wanted, 1)).min()) + 4 * len(supply))
    while found >= 3 and (plan.counts(found).sum(axis=0) > supply).any():
        found -= 1
    if found < 3:
        raise UserError(
            f"partition 'primary-secondary': {supply.sum()} samples cannot give {plan.shape[0]}"
            " clients 3 each without overlap; use fewer clients"
        )
    return found
