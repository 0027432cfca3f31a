"""Evaluation in lanes: models that are each evaluated on samples of their own, in one pass.

Where each client has a model of its own and few samples, calling a small network takes longer than
its arithmetic. So the models of many clients are evaluated in one call of `torch.func.vmap`, each
on the samples of its clients, filled up to the same number. The table is that of models one by one,
up to the order of float sums. A pass whose shapes come often is recorded, as a step is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.lightning_hooks import overrides
from flbench.core.networks import has_forward_hooks
from flbench.engine.cross_evaluation import (
    CHUNK,
    agree,
    call_of_many,
    confidences,
    evaluate_model,
    load,
    sums_of,
)
from flbench.engine.lanes.hooks import attributes
from flbench.engine.workspace import Workspace
from flbench.federation.federation import Samples
from flbench.federation.pooled import SMALL, Pooled

PREDICTIONS = 8 * CHUNK
"""Predictions per pass: samples, for text tokens, with those that fill up."""
SCALARS = {"cuda": 2**28}
"""Scalars of the models of a pass, which are copied, by type of device; 2**24 on all others."""
METHODS = "forward", "predict", "measure"
"""What makes a prediction of a module, and judges it."""


def most_models(space: Workspace) -> int:
    """How many models share a pass at most; of wide ones few do."""
    return max(1, SCALARS.get(space.device.type, 2**24) // space.layout.width)


def passes(models: Sequence[int], sizes: Sequence[int], most: int) -> list[list[int]]:
    """Divide models into passes.

    Args:
        models: numbers of models.
        sizes: number of predictions of each model, by its number.
        most: models per pass.

    Returns:
        The models of each pass, those with about as many predictions together. A model with more
        of them than a forward pass is to have, or with none, is alone.
    """
    found: list[list[int]] = []
    for model in sorted(models, key=lambda one: sizes[one], reverse=True):
        largest, count = (sizes[found[-1][0]], len(found[-1])) if found else (0, 0)
        if not 0 < largest <= CHUNK or largest * (count + 1) > PREDICTIONS or count == most:
            found.append([])
        found[-1].append(model)
    return found


@dataclass(frozen=True)
class PooledLanes:
    """The samples of g models, one model after the other.

    Attributes:
        pooled: the samples of all, m in number.
        index: positions in them for each model, shape (g, b); filled up with the first sample.
        places: of each sample among the g * b, shape (m,); None = as they are.
        models: number of the model of each sample, shape (m,).
        pools: the samples of each model.
    """

    pooled: Pooled
    index: Tensor
    places: Tensor | None
    models: Tensor
    pools: Sequence[Pooled]

    @classmethod
    def of(
        cls, samples: Samples, split: str, clients: Tensor, counts: Sequence[int]
    ) -> PooledLanes:
        """Pool a split of the clients of each model; small batches are remembered (`Pooled`).

        Args:
            clients: those of one model after the other, shape (n,).
            counts: number of clients of each model.
        """
        key = split, clients.numpy(force=True).tobytes(), tuple(counts)
        lanes = samples.pooled.get(key)
        if not isinstance(lanes, cls):
            lanes = cls.joined(
                [Pooled.of(samples, split, ids) for ids in clients.split(list(counts))]
            )
            if lanes.pooled.x.nbytes <= SMALL:
                samples.pooled.put(key, lanes, 2 * lanes.pooled.x.nbytes + lanes.index.nbytes)
        return lanes

    @classmethod
    def joined(cls, pools: Sequence[Pooled]) -> PooledLanes:
        """Join the samples of several models."""
        device = pools[0].y.device
        sizes = [len(pool.y) for pool in pools]
        lengths = torch.tensor(sizes, device=device)
        starts = lengths.cumsum(0) - lengths
        places = torch.arange(max(sizes), device=device)
        inside = places < lengths[:, None]
        index = torch.where(inside, starts[:, None] + places, 0)
        pooled = Pooled(
            x=torch.cat([pool.x for pool in pools]),
            y=torch.cat([pool.y for pool in pools]),
            positions=_positions(pools, starts.tolist()),
            lengths=torch.cat([pool.lengths for pool in pools]),
            owners=torch.cat([pool.owners for pool in pools]),
        )
        real = None if bool(inside.all()) else inside.flatten().nonzero()[:, 0]
        models = torch.arange(len(pools), device=device).repeat_interleave(lengths)
        return cls(pooled, index, real, models, pools)


def _positions(pools: Sequence[Pooled], starts: Sequence[int]) -> Tensor | None:
    """The positions of the clients' samples among those of all models; None = in order."""
    if all(pool.positions is None for pool in pools):
        return None
    parts = [
        start + (torch.arange(len(pool.y)).to(pool.y) if pool.positions is None else pool.positions)
        for pool, start in zip(pools, starts, strict=True)
    ]
    return torch.cat(parts)


@dataclass(frozen=True)
class Judged:
    """What several models have predicted.

    Attributes:
        sums: loss sum, number correct and number of predictions of each client, shape (n, 3),
            float64; the clients of a model one after the other.
        logits: of each model's samples, in float32.
        calibration: the result of `confidences`, shape (g, bins, 3).
    """

    sums: Tensor
    logits: list[Tensor]
    calibration: Tensor


def evaluate_lanes(
    space: Workspace,
    rows: Tensor,
    lanes: PooledLanes,
    received: Mapping[str, Tensor],
    bins: int = 0,
    labels: Callable[[Tensor], Tensor] | None = None,
) -> Judged | None:
    """Evaluate models in one pass, each on its own samples; None = they must be evaluated alone.

    What the first pass of a run says of its first model is compared with what that gives alone.

    Args:
        space: the run's module; its model is replaced.
        rows: the models, shape (g, W).
        lanes: their samples.
        received: tensors in `module.received` during prediction, shape (g, ...) each.
        bins: of the calibration; 0 = it is not asked for.
        labels: what predictions are compared with (`Personal.labels`); None = the labels.
    """
    if space.evaluates_lanes is False:
        return None
    try:
        found = _in_one_pass(space, rows, lanes, received, bins, labels)
        if space.evaluates_lanes is None:
            own = {name: table[0] for name, table in received.items()}
            alone = evaluate_model(space, rows[0], lanes.pools[0], received=own, labels=labels)
            space.evaluates_lanes = agree(found.sums[: len(alone)], alone.cpu())
    except KeyboardInterrupt:
        raise
    except BaseException:  # it comes again where models are evaluated one by one
        space.evaluates_lanes = False
    return found if space.evaluates_lanes else None


@torch.no_grad()
def _in_one_pass(
    space: Workspace,
    rows: Tensor,
    lanes: PooledLanes,
    received: Mapping[str, Tensor],
    bins: int,
    labels: Callable[[Tensor], Tensor] | None,
) -> Judged:
    """See `evaluate_lanes`."""
    pooled = lanes.pooled
    wanted = pooled.y if labels is None else labels(pooled.y)
    inputs = rows, pooled.x[lanes.index], wanted[lanes.index], *received.values()
    logits, measured = (table.flatten(0, 1) for table in _call(space, list(received), inputs))
    if lanes.places is not None:
        logits, measured = logits[lanes.places], measured[lanes.places]
    load(space, rows[-1], {name: table[-1] for name, table in received.items()})
    calibration = torch.zeros(len(rows), bins, 3, dtype=torch.float64)
    if bins:
        calibration = confidences(logits, pooled.y, pooled.owners, bins, lanes.models, len(rows))
    parts = list(logits.split([len(pool.y) for pool in lanes.pools]))
    return Judged(sums_of(measured, pooled).cpu(), parts, calibration)


def _call(space: Workspace, names: Sequence[str], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Call the models of a pass: by the module's Python, or by a program made of it.

    Only if the module leaves predictions to its network, and no forward hook of torch changes them,
    what it says depends on nothing else.

    Args:
        space: the run's module.
        names: see `call_of_many`.
        inputs: the arguments of the function that `call_of_many` returns.

    Returns:
        What it returns.
    """
    space.evaluation_mode()

    def call(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        return call_of_many(space, names, samples=0)(*inputs)

    if any(overrides(space.module, name) for name in METHODS) or has_forward_hooks(space.module):
        return call(*inputs)
    return space.lane_passes(call, inputs, attributes(space.module))
