"""Cross-evaluation: evaluate models on the clients' data, each model once on a pooled batch.

pFedLIA, IFCA, FLIS, FedFomo and FedC2I all need the loss of m models on n clients. One pass per
model over the samples of all clients, then a sum per client, replaces n x m small passes. The last
bits of a client's sum can depend on which clients are in the pass, because some matrix libraries
choose their kernel by its shape.

On CUDA a pass of a small network takes as long as launching its operations, so several models are
evaluated in one pass. CPUs are faster one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.func import vmap

from flbench.core.client_module import EVALUATION, SERVER, ClientModule, ModuleCall, Received
from flbench.core.model_bank import plain, row_of
from flbench.core.networks import choosing, heads_of
from flbench.engine.client_metrics import Stream
from flbench.engine.processes.process_group import ProcessGroup
from flbench.engine.workspace import Workspace
from flbench.errors import Undefined
from flbench.federation.federation import Samples
from flbench.federation.pooled import Pooled

CHUNK = 256
"""Samples (for text: tokens) per forward pass; activations of small images stay in the cache."""
MODELS = 64
"""Models per batched forward pass on the same samples."""
TOGETHER = {"cuda": 32}
"""Models that are evaluated in one pass, by type of device; 1 on all others."""
SCALARS = 2**28
"""Scalars of the models that are evaluated in one pass."""
Predictor = Callable[[ClientModule, Tensor], Tensor]


def cross_evaluate(
    space: Workspace, models: Tensor, samples: Samples, split: str, clients: Tensor
) -> Tensor:
    """Evaluate models, shape (m, W), on clients, shape (n,); a run's processes share the models.

    Returns:
        Loss sum, number correct and number of predictions; shape (n, m, 3), float64.
    """
    pooled = Pooled.of(samples, split, clients)
    shape = (len(clients), len(models), 3)
    sums = torch.zeros(shape, dtype=torch.float64, device=space.device)
    group = ProcessGroup.of(space.fabric)

    def evaluate_own_share() -> None:
        own = group.share([1] * len(models))
        at_once = min(TOGETHER.get(space.device.type, 1), max(1, SCALARS // space.layout.width))
        for at in range(0, len(own), at_once):
            some = own[at : at + at_once]
            sums[:, some] = evaluate_several(space, [row_of(models, one) for one in some], pooled)

    group.attempt(evaluate_own_share)
    return group.all_reduce_sum(sums)


def evaluate_several(space: Workspace, rows: list[Tensor], pooled: Pooled) -> Tensor:
    """Evaluate several models in one pass, or one by one where a module cannot be called for many.

    What the pass says of the first models of a run is compared with what they give alone.

    Args:
        space: see `evaluate_model`.
        rows: the models, g times shape (W,).
        pooled: the samples of n clients.

    Returns:
        Loss sum, number correct and number of predictions; shape (n, g, 3), float64.
    """
    if len(rows) > 1 and space.evaluates_together is not False:
        first = None if space.evaluates_together else evaluate_model(space, rows[0], pooled)
        try:
            table = _evaluate_together(space, torch.stack(rows).to(space.device), pooled)
            space.evaluates_together = first is None or agree(table[:, 0], first)
        except Exception:  # whatever it is, it comes again where models are evaluated one by one
            space.evaluates_together = False
        if space.evaluates_together:
            return table
    return torch.stack([evaluate_model(space, row, pooled) for row in rows], dim=1)


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether the tables of a model, shape (n, 3), have the same mean losses up to rounding.

    The tolerance is that of bfloat16. A prediction may change by rounding, so the number correct
    is not compared.
    """
    losses, others = one[:, 0] / one[:, 2], other[:, 0] / other[:, 2]
    close = torch.allclose(losses, others, rtol=0.05, atol=0.05, equal_nan=True)
    return close and torch.equal(one[:, 2], other[:, 2])


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


def predicts_itself(module: ClientModule) -> bool:
    """Whether a method's own code predicts, which may write to the module."""
    return type(module).predict is not ClientModule.predict


def load(space: Workspace, row: Tensor, received: Mapping[str, Tensor] | None = None) -> None:
    """Load a model, shape (W,), and what it has received, for predictions."""
    space.load(row)
    space.module.start, space.module.received = row, Received(received, EVALUATION)


@torch.no_grad()
def _evaluate_together(space: Workspace, rows: Tensor, pooled: Pooled) -> Tensor:
    """Evaluate models, shape (g, W), in one pass; see `evaluate_several`.

    A pass has at most as many pairs of a model and a sample as TOGETHER models on one chunk.
    """
    measured = call_of_many(space)
    size = chunk(pooled.y) * max(1, TOGETHER[space.device.type] // len(rows))
    parts = list(zip(pooled.x.split(size), pooled.y.split(size), strict=True))

    def tables(rows: Tensor) -> Tensor:
        return torch.cat([measured(rows, x, y)[1] for x, y in parts], dim=1)

    table = _by_network(space, rows, tables).movedim(0, 1)
    load(space, rows[-1])  # as after the last one of models one by one
    return sums_of(table.flatten(1), pooled).view(-1, *table.shape[1:])


@torch.no_grad()
def evaluate_model(
    space: Workspace,
    row: Tensor,
    pooled: Pooled,
    predictor: Predictor | None = None,
    received: Mapping[str, Tensor] | None = None,
    calibration: Tensor | None = None,
    stream: Stream | None = None,
    labels: Callable[[Tensor], Tensor] | None = None,
    *,
    whole: bool = False,
) -> Tensor:
    """Evaluate one model on some clients' samples, in chunks.

    Args:
        space: the run's module; its model is replaced.
        row: the model, shape (W,).
        pooled: the samples of n clients.
        predictor: `(module, x) -> logits`; None = the module's own `predict`.
        received: tensors in `module.received` during prediction.
        calibration: shape (bins, 3), float64; the result of `confidences` is added to it.
        stream: metrics that the logits are fed to.
        labels: what predictions are compared with (`Personal.labels`); None = the labels.
        whole: all samples in one call.

    Returns:
        Loss sum, number correct and number of predictions per client; shape (n, 3), float64.
    """
    module, at = space.module, 0
    size = max(1, len(pooled.y)) if whole else chunk(pooled.y)
    load(space, row, received)
    own = predictor is not None or predicts_itself(module)
    undoing = space.undoing if own else nullcontext
    space.evaluation_mode()
    measured = []
    for x, y in zip(pooled.x.split(size), pooled.y.split(size), strict=True):
        with undoing(), space.fabric.autocast():
            logits = module.predict(x) if predictor is None else predictor(module, x)
        logits = logits.detach()
        wanted = y if labels is None else labels(y)
        measured.append(module.measure(logits.float(), wanted).double())
        if calibration is not None:
            weight = pooled.owners[at : at + len(y)]
            calibration += confidences(logits.float(), y, weight, len(calibration))
        if stream is not None:
            stream.add(at, logits.float(), y)
        at += len(y)
    return sums_of(torch.cat(measured), pooled)


def sums_of(table: Tensor, pooled: Pooled) -> Tensor:
    """The sums of each client's rows: table of samples, shape (m, k), -> (n, k)."""
    if pooled.positions is not None:
        table = table[pooled.positions]
    lengths = pooled.lengths
    return torch.segment_reduce(table, "sum", lengths=lengths, axis=0, unsafe=True, initial=0)


def confidences(
    logits: Tensor,
    y: Tensor,
    weight: Tensor,
    bins: int,
    models: Tensor | None = None,
    several: int = 1,
) -> Tensor:
    """Number of predictions, sum of confidences, number correct per bin, shape (bins, 3), float64.

    Args:
        logits: shape (b, C), or (b, T, C).
        y: shape (b,), or (b, T).
        weight: how often each sample counts, shape (b,).
        bins: number of bins: equal parts of (0, 1], each with its upper end.
        models: number of the model that predicted each sample, shape (b,); the answer has then the
            shape (several, bins, 3). None = they are of one model.
        several: number of models.
    """
    confidence, predicted = logits.softmax(dim=-1).max(dim=-1)
    correct, beside = (predicted == y).double(), [1] * (y.ndim - 1)
    bin_of = ((confidence * bins).ceil().long() - 1).clamp(0, bins - 1)
    if models is not None:
        bin_of = bin_of + bins * models.reshape(-1, *beside)
    count = weight.double().reshape(-1, *beside).expand_as(correct)
    columns = (count, count * confidence.double(), count * correct)
    places, number = bin_of.flatten().cpu(), several * bins
    rows = torch.stack([column.flatten() for column in columns]).cpu()  # which adds in order
    table = torch.stack([torch.bincount(places, row, minlength=number) for row in rows], dim=1)
    return table if models is None else table.view(several, bins, 3)


def chunk(samples: Tensor) -> int:
    """Samples per forward pass, from labels, shape (b,), tokens, shape (b, T), or images."""
    tokens = samples[:1].numel() if len(samples) and not samples.is_floating_point() else 1
    return max(1, CHUNK // tokens)


@torch.no_grad()
def mean_loss(space: Workspace, x: Tensor, y: Tensor) -> float:
    """Mean loss of the model in the workspace on some samples, in nats."""
    space.evaluation_mode()
    undoing = space.undoing if predicts_itself(space.module) else nullcontext
    parts = []
    for a, b in zip(x.split(chunk(y)), y.split(chunk(y)), strict=True):
        with undoing(), space.fabric.autocast():
            logits = space.module.predict(a)
        parts.append(space.module.measure(logits.detach().float(), b).double().sum(dim=0))
    loss, _, predictions = torch.stack(parts).sum(dim=0).tolist()
    return float(loss / predictions)


@torch.no_grad()
def logits_of(space: Workspace, models: Tensor, x: Tensor) -> Tensor:
    """Logits of every model on the same samples, shape (m, len(x), C).

    Models are batched, if the module's own `predict` can be called for many at once.
    """
    parts = x.split(chunk(x))
    try:
        return torch.cat([forward(space, plain(models), part) for part in parts], dim=1)
    except Exception:
        if not predicts_itself(space.module):
            raise

    def logits(part: Tensor) -> Tensor:
        with space.undoing(), space.fabric.autocast():
            return space.module.predict(part).detach().float()

    found = []
    for model in range(len(models)):
        space.load(row_of(models, model))
        found.append(torch.cat(list(map(logits, parts))))
    return torch.stack(found)


def forward(space: Workspace, models: Tensor, x: Tensor) -> Tensor:
    """Logits of models, shape (m, W), on samples in one pass, shape (m, len(x), C).

    Gradients flow to the trainable scalars of the models and to the samples.
    """
    space.evaluation_mode()
    space.module.received = Received(where=SERVER)
    prediction = ModuleCall(space.module, space.module.predict)
    own = predicts_itself(space.module)

    def logits(row: Tensor, x: Tensor) -> Tensor:
        row = row.clone() if own else row  # the rows are the caller's
        with space.fabric.autocast():
            found = prediction.with_tensors(space.layout.unflatten(row), x)
        return found.float()

    batched = vmap(logits, in_dims=(0, None), chunk_size=MODELS)
    return _by_network(space, models, lambda rows: batched(rows, x))


def _by_network(space: Workspace, models: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
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


@torch.no_grad()
def features_of(space: Workspace, models: Tensor, x: Tensor) -> Tensor:
    """Input of the head of every model, shape (m, len(x), d).

    Raises:
        Undefined: the network has no head, or the models have different networks, whose features
            differ in number.
    """
    head_inputs: list[Tensor] = []
    layout = space.layout
    if layout.head_name is None:
        raise Undefined("the network has no head: no part of it is an nn.Linear")
    heads = (layout.head_name,) if layout.which is None else heads_of(space.module)
    hooks = [
        space.module.get_submodule(head).register_forward_pre_hook(
            lambda _, inputs: head_inputs.append(inputs[0].float())
        )
        for head in heads
    ]
    try:
        for model in range(len(models)):
            space.load(row_of(models, model))
            space.evaluation_mode()
            space.module.received = Received(where=SERVER)
            for part in x.split(chunk(x)):
                with space.fabric.autocast():
                    space.module(part)
    finally:
        for hook in hooks:
            hook.remove()
    widths = sorted({part.shape[-1] for part in head_inputs})
    if len(widths) > 1:
        raise Undefined(f"the networks have different numbers of features: {widths}")
    return torch.cat(head_inputs).reshape(len(models), len(x), -1)
