"""The order of mini-batches: addressed by seed, round, client, stage and epoch.

Every executor asks here, so all of them train on the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flbench.core.dataset import Indices
from flbench.core.seeding import rng
from flbench.core.state import Stage


def subset(samples: int, stage: Stage, seed: int, client: int) -> Indices:
    """Positions a stage trains on: all, or a fixed random subset of `stage.samples` of them."""
    if stage.samples is None or stage.samples >= samples:
        return np.arange(samples)
    chosen = rng(seed, "subset", stage.label, client).permutation(samples)[: stage.samples]
    return np.sort(chosen)


def steps(samples: int, batch_size: int, per_step: int, *, skip_single: bool) -> list[list[slice]]:
    """The optimiser steps of one epoch, each a list of `per_step` slices of the epoch's order.

    The last short batch is kept; a batch of one sample is skipped where BatchNorm could not take
    it; batches that do not fill a step are left out.
    """
    cuts = [slice(at, min(at + batch_size, samples)) for at in range(0, samples, batch_size)]
    if skip_single and cuts and cuts[-1].stop - cuts[-1].start == 1:
        cuts.pop()
    whole = len(cuts) - len(cuts) % per_step
    return [cuts[at : at + per_step] for at in range(0, whole, per_step)]


def orders(samples: int, epochs: int, seed: int, *address: int | str) -> Iterator[Indices]:
    """The shuffled order of the samples in each epoch; the address is (round, client, stage)."""
    generator = rng(seed, "batches", *address)
    for _ in range(epochs):
        yield generator.permutation(samples)
