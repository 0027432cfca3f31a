"""Evaluation of many models in one pass, on the same samples or each on samples of its own.

Where each client has a model of its own and few samples, calling a small network takes longer than
its arithmetic. So the models of many clients are evaluated in one call of `torch.func.vmap`, each
on the samples of its clients, filled up to the same number. A pass whose shapes come often is
recorded, as a step is. What models say is what they say one by one, up to the order of float sums;
a module for which this does not hold is evaluated one by one (`evaluate_many`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from flbench.core.client_module import EVALUATION, ModuleCall, Received
from flbench.core.lightning_hooks import overrides
from flbench.core.networks import choosing, has_forward_hooks
from flbench.engine.lanes.hooks import attributes
from flbench.engine.model_evaluation import (
    BY_LOSS,
    CHUNK,
    Judged,
    Judging,
    chunk,
    confidences,
    load,
    of_clients,
    sums_of,
    values_of,
)
from flbench.engine.workspace import Workspace
from flbench.federation.federation import Samples
from flbench.federation.pooled import SMALL, Pooled

TOGETHER = {"cuda": 32}
"""Models that are evaluated in one pass on the same samples, by type of device; 1 on all others."""
PREDICTIONS = 8 * CHUNK
"""Predictions per pass of models with samples of their own: samples, for text tokens, with those
that fill up."""
SCALARS = {"cuda": 2**28}
"""Scalars of the models of a pass, which are copied, by type of device; 2**24 on all others."""
METHODS = "forward", "predict", "measure"
"""What makes a prediction of a module, and judges it."""
SAME, OWN = "the same samples", "samples of their own"
"""Kinds of passes."""


def evaluate_many(
    space: Workspace,
    kind: str,
    models: Sequence[int],
    together: Callable[[list[int]], list[Judged]],
    alone: Callable[[int], Judged],
) -> dict[int, Judged]:
    """Evaluate several models in one pass, or one by one where a module cannot be called for many.

    What the first pass of a kind in a run says of its first model is compared with what that says
    alone. Once they differ, or a pass fails, no model of the run shares a pass.

    Args:
        space: the run's module; its model is replaced.
        kind: of the pass.
        models: their numbers.
        together: evaluates models in one pass.
        alone: evaluates one model.

    Returns:
        Number of a model -> what it is worth.
    """
    if len(models) > 1 and space.compared is not None:
        try:
            first = None if kind in space.compared else alone(models[0])
            found = together(list(models))
            if first is None or agree(found[0].sums.cpu(), first.sums.cpu()):
                space.compared.add(kind)
                return dict(zip(models, found, strict=True))
        except KeyboardInterrupt:
            raise
        except BaseException:  # it comes again where models are evaluated one by one
            pass
        space.compared = None
    return {number: alone(number) for number in sorted(models)}


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether the tables of a model, shape (n, 3), have the same mean losses up to rounding.

    The tolerance is that of bfloat16. A prediction may change by rounding, so the number correct
    is not compared.
    """
    losses, others = one[:, 0] / one[:, 2], other[:, 0] / other[:, 2]
    close = torch.allclose(losses, others, rtol=0.05, atol=0.05, equal_nan=True)
    return close and torch.equal(one[:, 2], other[:, 2])


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


def call_of_many(
    space: Workspace, names: Iterable[str] = (), samples: int | None = None
) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function that calls many models at once.

    Args:
        space: the run's module.
        names: of tensors in `module.received` during prediction.
        samples: 0 = each model has samples of its own; None = all have the same.

    Returns:
        (models, shape (g, W), samples and labels, shape (b, ...) or (g, b, ...), then the tensors
        of `names`, shape (g, ...)) -> (logits in float32, shape (g, b, ...), what
        `ClientModule.measure` says of them, shape (g, b, 3), float64)
    """
    module, names = space.module, tuple(names)
    space.evaluation_mode()

    def outcome(row: Tensor, x: Tensor, y: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        module.start = row
        module.received = Received(dict(zip(names, tensors, strict=True)), EVALUATION)
        with space.fabric.autocast():
            logits = module.predict(x)
        if logits.requires_grad:
            logits = logits.detach()
        return logits.float(), module.measure(logits.float(), y).double()

    call = ModuleCall(module, outcome)

    def one(row: Tensor, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        return call.with_tensors(space.layout.unflatten(row), row, *arguments)

    return vmap(one, in_dims=(0, samples, samples, *[0] * len(names)))


@torch.no_grad()
def on_the_same_samples(space: Workspace, rows: Tensor, pooled: Pooled) -> list[Judged]:
    """Evaluate models, shape (g, W), in one pass on the samples of n clients, by their losses.

    A pass has at most as many pairs of a model and a sample as TOGETHER models on one chunk.
    """
    measured = call_of_many(space)
    size = chunk(pooled.y) * max(1, TOGETHER[space.device.type] // len(rows))
    parts = list(zip(pooled.x.split(size), pooled.y.split(size), strict=True))

    def tables(rows: Tensor) -> Tensor:
        return torch.cat([measured(rows, x, y)[1] for x, y in parts], dim=1)

    table = by_network(space, rows, tables).movedim(0, 1)
    load(space, rows[-1])  # as after the last one of models one by one
    sums = sums_of(table.flatten(1), pooled).view(-1, *table.shape[1:])
    none = torch.zeros(0, 3, dtype=torch.float64)
    return [Judged(one, none, values_of(None, pooled)) for one in sums.unbind(dim=1)]


@torch.no_grad()
def on_their_own_samples(
    space: Workspace,
    rows: Tensor,
    lanes: PooledLanes,
    received: Mapping[str, Tensor],
    judging: Judging = BY_LOSS,
) -> list[Judged]:
    """Evaluate models in one pass, each on its own samples.

    Args:
        space: the run's module; its model is replaced.
        rows: the models, shape (g, W).
        lanes: their samples.
        received: tensors in `module.received` during prediction, shape (g, ...) each.
        judging: how they are judged (`is_alike_for_many`).
    """
    pooled = lanes.pooled
    wanted = judging.wanted(pooled.y)
    inputs = rows, pooled.x[lanes.index], wanted[lanes.index], *received.values()
    logits, measured = (table.flatten(0, 1) for table in _call(space, list(received), inputs))
    if lanes.places is not None:
        logits, measured = logits[lanes.places], measured[lanes.places]
    load(space, rows[-1], {name: table[-1] for name, table in received.items()})
    bins = judging.bins
    calibration = torch.zeros(len(rows), bins, 3, dtype=torch.float64)
    if bins:
        calibration = confidences(logits, pooled.y, pooled.owners, bins, lanes.models, len(rows))
    stream = judging.stream(pooled)
    if stream is not None:
        stream.add(0, logits, pooled.y)
    clients = [len(pool.lengths) for pool in lanes.pools]
    sums = sums_of(measured, pooled).cpu().split(clients)
    values = values_of(stream, pooled).split(clients)
    pools = zip(lanes.pools, logits.split([len(pool.y) for pool in lanes.pools]), strict=True)
    outputs = [_outputs(judging, *pair) for pair in pools]
    return [Judged(*parts) for parts in zip(sums, calibration, values, outputs, strict=True)]


def _outputs(judging: Judging, pooled: Pooled, logits: Tensor) -> Tensor | None:
    """The logits of a model's samples, one client after the other, if they are kept."""
    return of_clients(logits.cpu(), pooled) if judging.keeps_outputs else None


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


def by_network(space: Workspace, models: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of models, shape (m, W) -> (m, ...), called with those of one network at a time.

    A batched pass cannot look which network a model has.
    """
    if space.layout.which is None:
        return function(models)
    networks = space.layout.network_of(models)
    result: list[Tensor] = []
    places: list[Tensor] = []
    for number in networks.unique().tolist():
        places.append((networks == number).nonzero()[:, 0])
        with choosing(space.module, number):
            result.append(function(models[places[-1]]))
    return torch.cat(result)[torch.cat(places).argsort()]
