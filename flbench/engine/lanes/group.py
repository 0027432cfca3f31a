"""Some of the lanes, which make a step together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Indices

Steps = list[list[slice]]
"""A client's steps of one epoch, each with its batches, as parts of the epoch's order."""
Sizes = tuple[int, ...]
"""Samples of each batch of a step."""


class LaneGroup:
    """Lanes by number, in rising order; neighbours are read and written in place.

    Attributes:
        lanes: their numbers.
        numbers: the same, as an index of an array.
        part: the same, as an index of a tensor.

    Args:
        lanes: their numbers.
        device: of their tables.
    """

    def __init__(self, lanes: Sequence[int], device: torch.device) -> None:
        self.lanes = lanes
        self.numbers: slice | Indices
        self.part: slice | Tensor
        if lanes[-1] - lanes[0] + 1 == len(lanes):
            self.numbers = self.part = slice(lanes[0], lanes[-1] + 1)
        else:
            self.numbers = np.array(lanes)
            self.part = torch.from_numpy(self.numbers).to(device)

    def __len__(self) -> int:
        return len(self.lanes)

    def take(self, table: Tensor) -> Tensor:
        """Their rows of a table, shape (G, ...): a view of neighbours, else a copy."""
        part = self.part
        return table[part] if isinstance(part, slice) else table.index_select(0, part)

    def put(self, table: Tensor, rows: Tensor) -> None:
        """Write rows that `take` gave, after they were changed in place."""
        if isinstance(self.part, Tensor):
            table.index_copy_(0, self.part, rows)


@dataclass(frozen=True)
class Turn:
    """One step of some lanes.

    Attributes:
        lanes: their numbers, in rising order.
        steps: number of the step of each of them within its epoch.
        sizes: samples of each of the step's batches.
    """

    lanes: list[int]
    steps: list[int]
    sizes: Sizes

    def parts(self, made: Sequence[Hashable] | None) -> list[Turn]:
        """The turn, split into lanes that have the same in common.

        Args:
            made: of each lane, such as the number of steps that it has made; None = not split.
        """
        if made is None or len(set(made)) == 1:
            return [self]
        return [
            Turn(
                [lane for lane, own in zip(self.lanes, made, strict=True) if own == number],
                [k for k, own in zip(self.steps, made, strict=True) if own == number],
                self.sizes,
            )
            for number in dict.fromkeys(made)
        ]


def turns(plans: Sequence[Steps], filled: int | None = None) -> Iterator[Turn]:
    """Order the steps of an epoch so that lanes make as many of them together as possible.

    First the steps of full batches, those that each lane makes first; then those with a shorter
    last batch, which are the last of their lanes.

    Args:
        plans: steps of each lane.
        filled: number of samples to which every batch is filled up; None = to none.

    Example:
        >>> short, long = [[slice(0, 3)]], [[slice(0, 4)], [slice(4, 7)]]
        >>> [(turn.lanes, turn.sizes) for turn in turns([short, long, long])]
        [([1, 2], (4,)), ([0, 1, 2], (3,))]
    """
    known: dict[int, list[Sizes]] = {}  # clients with equally many samples have one plan
    for own in plans:
        if id(own) not in known:
            known[id(own)] = [tuple(filled or cut.stop - cut.start for cut in step) for step in own]
    sizes = [known[id(plan)] for plan in plans]
    full = max((size for plan in known.values() for size in plan), default=())
    shorter: dict[Sizes, tuple[list[int], list[int]]] = {}
    for k in range(max(map(len, plans), default=0)):
        together = []
        for lane, plan in enumerate(sizes):
            if k < len(plan) and plan[k] == full:
                together.append(lane)
            elif k < len(plan):
                lanes, steps = shorter.setdefault(plan[k], ([], []))
                lanes.append(lane)
                steps.append(k)
        if together:
            yield Turn(together, [k] * len(together), full)
    for size, (lanes, steps) in shorter.items():
        order = sorted(range(len(lanes)), key=lanes.__getitem__)
        yield Turn([lanes[i] for i in order], [steps[i] for i in order], size)
