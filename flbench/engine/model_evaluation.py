"""Evaluation of one model: what it predicts of some clients' samples, and what that is worth.

One pass over the samples of all clients, then a sum per client. The last bits of a client's sum can
depend on which clients are in the pass, because some matrix libraries choose their kernel by its
shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.client_module import EVALUATION, ClientModule, Received
from flbench.engine.client_metrics import ClientMetrics, Stream
from flbench.engine.workspace import Workspace
from flbench.federation.pooled import Pooled

CHUNK = 256
"""Samples (for text: tokens) per forward pass; activations of small images stay in the cache."""
SCALARS = 2**17
"""Logits of text per forward pass, if they are more than those of a CHUNK."""


@dataclass(frozen=True)
class Judging:
    """How predictions are made, and how they are judged beside their loss.

    Attributes:
        predictor: `(module, x) -> logits`; None = the module's own `predict`.
        whole: all samples in one call.
        labels: what predictions are compared with (`Personal.labels`); None = the labels.
        bins: of the calibration; 0 = it is not asked for.
        metrics: what is computed of each client's samples; None = nothing.
        keeps_outputs: whether what models say of each sample is kept.
    """

    predictor: Callable[[ClientModule, Tensor], Tensor] | None = None
    whole: bool = False
    labels: Callable[[Tensor], Tensor] | None = None
    bins: int = 0
    metrics: ClientMetrics | None = None
    keeps_outputs: bool = False

    @property
    def is_alike_for_many(self) -> bool:
        """Whether models may be evaluated in one pass with others."""
        return self.predictor is None and not self.whole

    def wanted(self, y: Tensor) -> Tensor:
        """What predictions for labels, shape (b,), are compared with."""
        return y if self.labels is None else self.labels(y)

    def stream(self, pooled: Pooled) -> Stream | None:
        """The metrics of the clients whose samples these are."""
        if self.metrics is None:
            return None
        return Stream(self.metrics, pooled.positions, pooled.lengths)


BY_LOSS = Judging()


@dataclass(frozen=True)
class Judged:
    """What the predictions of one model are worth, for each of n clients.

    Attributes:
        sums: loss sum, number correct and number of predictions, shape (n, 3), float64.
        calibration: of all clients: the result of `confidences`, shape (bins, 3).
        values: value of each metric, shape (n, metrics), float64; NaN = undefined.
        outputs: logits of the clients' samples, one client after the other, shape (m, C), for text
            (m, T, C), float32, on the CPU; None = they are not kept.
    """

    sums: Tensor
    calibration: Tensor
    values: Tensor
    outputs: Tensor | None = None


def predicts_itself(module: ClientModule) -> bool:
    """Whether a method's own code predicts, which may write to the module."""
    return type(module).predict is not ClientModule.predict


def load(space: Workspace, row: Tensor, received: Mapping[str, Tensor] | None = None) -> None:
    """Load a model, shape (W,), and what it has received, for predictions."""
    space.load(row)
    space.module.start, space.module.received = row, Received(received, EVALUATION)


@torch.no_grad()
def evaluate_model(
    space: Workspace,
    row: Tensor,
    pooled: Pooled,
    received: Mapping[str, Tensor] | None = None,
    judging: Judging = BY_LOSS,
) -> Judged:
    """Evaluate one model on some clients' samples, in chunks.

    Args:
        space: the run's module; its model is replaced.
        row: the model, shape (W,).
        pooled: the samples of n clients.
        received: tensors in `module.received` during prediction.
        judging: how it predicts and is judged.
    """
    module, predictor, at = space.module, judging.predictor, 0
    size = max(1, len(pooled.y)) if judging.whole else chunk(pooled.y)
    load(space, row, received)
    own = predictor is not None or predicts_itself(module)
    undoing = space.undoing if own else nullcontext
    space.evaluation_mode()
    calibration = torch.zeros(judging.bins, 3, dtype=torch.float64)
    stream = judging.stream(pooled)
    measured: list[Tensor] = []
    said: list[Tensor] = []
    while not measured or at < len(pooled.y):
        x, y = pooled.x[at : at + size], pooled.y[at : at + size]
        with undoing(), space.fabric.autocast():
            logits = module.predict(x) if predictor is None else predictor(module, x)
        logits = logits.detach()
        wanted = judging.wanted(y)
        measured.append(module.measure(logits.float(), wanted).double())
        if judging.bins:
            weight = pooled.owners[at : at + len(y)]
            calibration += confidences(logits.float(), y, weight, judging.bins)
        if stream is not None:
            stream.add(at, logits.float(), y)
        if judging.keeps_outputs:
            said.append(logits.float().cpu())
        at, size = at + len(y), widened(size, logits)
    sums = sums_of(torch.cat(measured), pooled)
    outputs = of_clients(torch.cat(said), pooled) if said else None
    return Judged(sums, calibration, values_of(stream, pooled), outputs)


def of_clients(outputs: Tensor, pooled: Pooled) -> Tensor:
    """What a model says of pooled samples, on the CPU, one client after the other."""
    return outputs if pooled.positions is None else outputs[pooled.positions.cpu()]


def values_of(stream: Stream | None, pooled: Pooled) -> Tensor:
    """The values of metrics after the last sample, shape (n, metrics); without any (n, 0)."""
    if stream is None:
        return torch.zeros(len(pooled.lengths), 0, dtype=torch.float64)
    return stream.values


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


def widened(size: int, logits: Tensor) -> int:
    """Samples of the next pass, after one of `size` samples whose logits are given.

    A small network spends most of a pass of 256 tokens on calls. Where logits are few, as of
    characters, the next passes are longer, up to SCALARS of them.
    """
    return max(size, SCALARS // logits.shape[1:].numel()) if logits.ndim > 2 else size


def chunk(samples: Tensor) -> int:
    """Samples per forward pass, from targets, tokens, shape (b, T), or images."""
    tokens = samples[:1].numel() if len(samples) and samples.dtype == torch.int64 else 1
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
