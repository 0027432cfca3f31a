"""The order of mini-batches, which depends on seed, round, client, stage and epoch only.

All executors use these functions, so all of them train on the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flbench.core.dataset import Indices
from flbench.core.seeding import rng
from flbench.core.state import Stage


def subset(samples: int, stage: Stage, seed: int, client: int) -> Indices | None:
    """Positions of the samples a stage trains on: a fixed random subset of them; None = all."""
    if stage.samples is None or stage.samples >= samples:
        return None
    chosen = rng(seed, "subset", stage.label, client).permutation(samples)[: stage.samples]
    return np.sort(chosen)


def steps(
    samples: int, batch_size: int, per_step: int, *, skip_single: bool, drop_last: bool = False
) -> list[list[slice]]:
    """The optimiser steps of one epoch, each a list of `per_step` slices of the epoch's order.

    A short last batch is kept, but with `skip_single` not one of a single sample, which BatchNorm
    cannot process, and with `drop_last` none that follows others. Batches that do not fill a step
    are not used.
    """
    batches = [slice(at, min(at + batch_size, samples)) for at in range(0, samples, batch_size)]
    last = len(range(samples)[batches[-1]]) if batches else 0
    if (skip_single and last == 1) or (drop_last and last < batch_size and len(batches) > 1):
        batches.pop()
    used = len(batches) - len(batches) % per_step
    return [batches[at : at + per_step] for at in range(0, used, per_step)]


def orders(samples: int, epochs: int, seed: int, *address: int | str) -> Iterator[Indices]:
    """The shuffled order of the samples in each epoch; address: round, client, stage, phase."""
    generator = rng(seed, "batches", *address)
    for _ in range(epochs):
        yield generator.permutation(samples)
