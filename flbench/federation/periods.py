"""Periods: the clients' data and presence from some rounds on, as a suite's `periods` say.

A period follows from the suite, the seed and the first federation alone, so a run that is resumed
in it, and every process of a run, has the same. What is drawn depends on the clients' names, so it
follows them when ids change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Indices
from flbench.core.period_settings import PeriodSettings, starts_of
from flbench.core.seeding import rng
from flbench.errors import UserError
from flbench.federation.federation import Samples
from flbench.federation.row_lists import RowLists

LabelsAndTurn = tuple[tuple[int, ...], int]
"""What was done to a data set: the label that each label has become, and degrees of rotation."""


@dataclass(frozen=True)
class Period:
    """What holds from a round on; client i is the one with id i.

    Attributes:
        first: its first round.
        origin: client i has the data set that client `origin[i]` had first, shape (N,), int64.
        transforms: what was done to the data set that each client had first.
        present: whether each client is there, shape (N,), bool.
        groups: true group per client, shape (N,), int64, or None.
    """

    first: int
    origin: Tensor
    transforms: tuple[LabelsAndTurn, ...]
    present: Tensor
    groups: Tensor | None

    def of(self, samples: Samples) -> Samples:
        """The samples of this period, from those of the first one.

        Raises:
            UserError: they cannot be rotated.
        """
        splits = {name: list(lists) for name, lists in samples.splits.items() if name != "server"}
        x, y, count = [samples.x], [samples.y], len(samples.y)
        places = [torch.arange(count)]
        for client, (labels, degrees) in enumerate(self.transforms):
            if labels == tuple(range(len(labels))) and not degrees:
                continue
            for lists in splits.values():
                rows = lists[client]
                x.append(rotated(samples.x[rows], degrees))
                own = samples.y[rows]
                table = torch.tensor(labels, device=own.device)
                y.append(table[own] if labels else own)
                places.append(rows)
                lists[client] = torch.arange(count, count + len(rows))
                count += len(rows)
        order = self.origin.tolist()
        changed = {
            name: RowLists.of(lists[client] for client in order) for name, lists in splits.items()
        }
        if len(x) > 1:
            known = None if samples.places is None else samples.places[torch.cat(places)]
            samples = replace(samples, x=torch.cat(x), y=torch.cat(y), places=known)
        return replace(samples, splits={**samples.splits, **changed})


def rotated(x: Tensor, degrees: int) -> Tensor:
    """Images, shape (m, ..., h, w), turned by a multiple of 90 degrees."""
    if not degrees:
        return x
    if x.dim() < 4 or x.shape[-1] != x.shape[-2]:
        shape = tuple(x.shape[1:])
        raise UserError(f"periods: rotate: samples of shape (..., h, h) expected, got {shape}")
    return x.rot90(degrees // 90, (-2, -1))


@dataclass(frozen=True)
class Periods:
    """All periods of a run, and the samples of the first one.

    Attributes:
        table: the periods, in the order of their first rounds.
        visible: the samples that methods may use.
        held_out: the test samples.
    """

    table: tuple[Period, ...]
    visible: Samples
    held_out: Samples

    @cached_property
    def keep_all(self) -> bool:
        """Whether every client is there in all of them."""
        return all(bool(period.present.all()) for period in self.table)

    @cached_property
    def starts(self) -> list[int]:
        """First round of each period."""
        return [period.first for period in self.table]

    def at(self, round_: int) -> Period:
        """The period of a round; the first one before round 1."""
        return self.table[max(0, bisect_right(self.starts, round_) - 1)]


def periods_of(
    changes: Sequence[PeriodSettings],
    rounds: int,
    seed: int,
    groups: Tensor | None,
    names: Sequence[int],
    classes: int,
    held: Sequence[Collection[int]] | None = None,
) -> tuple[Period, ...]:
    """The periods of a federation.

    Args:
        changes: those of the suite.
        rounds: of the run.
        seed: of the run.
        groups: true group per client at first, shape (N,), or None.
        names: number of each client in the addresses of random generators, by id.
        classes: number of labels; 0 = samples have no classes.
        held: the labels of each client's samples, by id; None = not known. A swap of labels that a
            client does not have changes nothing of it, so that it keeps its true group.

    Raises:
        UserError: a change names what is not there, cannot be made, or leaves nobody.
    """
    by_id = np.asarray(names)
    ids = np.argsort(by_id)  # of each name
    of_names = None if held is None else [held[at] for at in ids.tolist()]
    first = None if groups is None else groups.numpy()[ids]
    plan = _Plan(seed, len(names), classes, first, of_names)
    found = []
    for start in (1, *starts_of(changes, rounds)):
        for number, change in enumerate(changes):
            if change.start == start:
                plan.apply(number, change)
        found.append(plan.period(start, by_id, ids))
    for number, change in enumerate(changes):
        if change.start > rounds:  # who comes later is not there before
            plan.apply(number, change)
    return tuple(
        replace(period, present=torch.as_tensor(plan.present(period.first)[by_id]))
        for period in found
    )


class _Plan:
    """What changes have done so far; everything is by the clients' names."""

    def __init__(
        self,
        seed: int,
        clients: int,
        classes: int,
        groups: Indices | None,
        held: Sequence[Collection[int]] | None,
    ) -> None:
        self.seed, self.clients, self.first_groups, self.held = seed, clients, groups, held
        self.origin = np.arange(clients)
        self.transforms: list[LabelsAndTurn] = [(tuple(range(classes)), 0)] * clients
        self.absences: list[tuple[Indices, float, float]] = []
        self.numbers: dict[tuple[object, ...], int] = {}
        for group in () if groups is None else np.unique(groups).tolist():
            self.numbers[group, *self.transforms[0]] = group

    def groups(self) -> Indices | None:
        """True group of each client: that of its data; what was changed alike is a new group."""
        if self.first_groups is None:
            return None
        found = []
        for source in self.origin.tolist():
            key = (int(self.first_groups[source]), *self.transforms[source])
            found.append(self.numbers.setdefault(key, 1 + max(self.numbers.values())))
        return np.array(found)

    def period(self, first: int, names: Indices, ids: Indices) -> Period:
        """The period that begins now, by id; who is `present` is known when all changes are."""
        groups = self.groups()
        return Period(
            first=first,
            origin=torch.as_tensor(ids[self.origin[names]]),
            transforms=tuple(self.transforms[name] for name in names.tolist()),
            present=torch.ones(self.clients, dtype=torch.bool),
            groups=None if groups is None else torch.as_tensor(groups[names]),
        )

    def present(self, round_: int) -> Indices:
        """Whether each client is there in a round, shape (N,), bool."""
        there = np.ones(self.clients, dtype=bool)
        for chosen, first, end in self.absences:
            if first <= round_ < end:
                there[chosen] = False
        return there

    def apply(self, number: int, change: PeriodSettings) -> None:
        """Make one change, the suite's `number`-th."""
        generator = rng(self.seed, "period", number)
        chosen = self.chosen(change, generator)
        if change.change == "exchange":
            self.exchange(change, chosen, generator)
        elif change.change == "leave":
            until = float("inf") if change.until is None else change.until
            self.absences.append((chosen, change.start, until))
        elif change.change == "come":
            self.absences.append((chosen, 0, change.start))
        else:
            self.transform(change, chosen)

    def chosen(self, change: PeriodSettings, generator: np.random.Generator) -> Indices:
        """The names of the clients that change, ascending."""
        where = f"periods: {change.change} from round {change.start} on"
        groups, asked = self.groups(), np.ones(self.clients, dtype=bool)
        of = np.zeros(self.clients, dtype=np.int64) if groups is None else groups
        if change.clients:
            if max(change.clients) >= self.clients:
                last, got = self.clients - 1, max(change.clients)
                raise UserError(f"{where}: clients 0 to {last} expected in training, got {got}")
            asked = np.isin(np.arange(self.clients), change.clients)
        if change.groups:
            there = set() if groups is None else set(groups.tolist())
            if missing := sorted(set(change.groups) - there):
                known = ", ".join(map(str, sorted(there))) or "none"
                raise UserError(f"{where}: true group expected of {known}, got {missing[0]}")
            asked &= np.isin(of, change.groups)
        parts: list[Indices] = []
        for group in np.unique(of[asked]):
            members = np.flatnonzero(asked & (of == group))
            share = int(change.share * len(members) + 1e-9)
            parts.append(generator.permutation(members)[:share])
        found = np.sort(np.concatenate([np.arange(0), *parts]))
        if not len(found):
            raise UserError(f"{where}: nobody changes; expected a larger share or other clients")
        return found

    def exchange(
        self, change: PeriodSettings, chosen: Indices, generator: np.random.Generator
    ) -> None:
        """Give each of some clients the data of another of them, of another group.

        Whose is drawn; who would get data of the own group then changes places with one of those
        for whom both fit. There are some where no group has more than half of the clients.
        """
        groups = self.groups()
        own = chosen if groups is None else groups[chosen]
        most = int(np.unique(own, return_counts=True)[1].max())
        if 2 * most > len(own):
            raise UserError(
                f"periods: exchange from round {change.start} on: no group with more than half of"
                f" the {len(own)} clients that change expected, one has {most}"
            )
        source = generator.permutation(len(own))
        for i in range(len(own)):
            if own[i] == own[source[i]]:
                fits = np.flatnonzero((own != own[i]) & (own[source] != own[i]))
                j = generator.choice(fits)
                source[[i, j]] = source[[j, i]]
        self.origin[chosen] = self.origin[chosen[source]]

    def transform(self, change: PeriodSettings, chosen: Indices) -> None:
        """Swap labels of the data that some clients have now, or rotate them."""
        changed = False
        for source in self.origin[chosen].tolist():
            labels, degrees = self.transforms[source]
            if change.labels and not labels:
                raise UserError("periods: labels are swapped of classes, and samples have none")
            if change.labels and max(map(max, change.labels)) >= len(labels):
                got = max(map(max, change.labels))
                raise UserError(f"periods: labels 0 to {len(labels) - 1} expected, got {got}")
            swapped = dict(pair for a, b in change.labels for pair in ((a, b), (b, a)))
            if self.held is not None and not change.degrees:
                now = {labels[one] for one in self.held[source]} if labels else set()
                if not now & swapped.keys():
                    continue
            changed = True
            after = tuple(swapped.get(label, label) for label in labels)
            self.transforms[source] = after, (degrees + change.degrees) % 360
        if not changed:
            raise UserError(
                f"periods: {change.change} from round {change.start} on: nobody changes, as none of"
                " these clients has such labels"
            )
