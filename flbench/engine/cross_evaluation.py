"""Cross-evaluation: models judged on clients' data, each model once over a pooled batch.

pFedLIA, IFCA, FLIS, FedFomo and FedC2I all live on "the loss of m models on n clients". One pass
per model over everybody's samples, then a sum per client, replaces n x m small passes. The
last bits of a client's sum may depend on who shares the pass: some matrix libraries pick their
kernel by its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from flbench.core.client import ClientModule
from flbench.core.model_bank import plain, row_of
from flbench.engine.process_group import ProcessGroup
from flbench.engine.workspace import Workspace
from flbench.errors import UserError
from flbench.federation.federation import Samples

CHUNK = 256
"""Samples (of text: tokens) per forward pass: activations of small images stay in the cache."""


MODELS = 64
"""Models that answer together where many judge the same few samples."""


Predictor = Callable[[ClientModule, Tensor], Tensor]


@dataclass(frozen=True)
class Pooled:
    """Some clients' samples in one batch; one that several of them own is there once.

    Attributes:
        x: samples, shape (m, ...).
        y: labels, shape (m,), or tokens, (m, T).
        places: where the clients' samples are, one client after the other; None = in this order.
        lengths: samples of each client, shape (n,).
        times: how many clients own each sample, shape (m,).
    """

    x: Tensor
    y: Tensor
    places: Tensor | None
    lengths: Tensor
    times: Tensor

    @classmethod
    def of(cls, space: Workspace, samples: Samples, split: str, clients: Tensor) -> Pooled:
        """Gather a split of some clients."""
        lists = [samples.splits[split][client] for client in clients.tolist()]
        lengths = torch.tensor([len(rows) for rows in lists], device=space.device)
        rows = torch.cat(lists)
        once, places = rows.unique(return_inverse=True) if len(lists) > 1 else (rows, rows)
        if len(once) == len(rows):
            return cls(samples.x[rows], samples.y[rows], None, lengths, torch.ones_like(rows))
        return cls(samples.x[once], samples.y[once], places, lengths, places.bincount())


def judge(
    space: Workspace,
    row: Tensor,
    samples: Samples,
    split: str,
    clients: Tensor,
    predictor: Predictor | None = None,
    received: Mapping[str, Tensor] | None = None,
    calibration: Tensor | None = None,
) -> Tensor:
    """Judge one model on some clients' samples.

    Args:
        space: the run's module; its model is replaced.
        row: the model, shape (W,).
        samples: the pool on the workspace's device.
        split: whose rows of the pool.
        clients: ids, shape (n,).
        predictor: `(module, x) -> logits`; None = the module's own `predict`.
        received: what the module is told while predicting.
        calibration: shape (bins, 3), float64, to which number judged, confidence and number
            correct are added, by confidence.

    Returns:
        Per client: loss sum, number correct, number judged; shape (n, 3), float64.
    """
    pooled = Pooled.of(space, samples, split, clients)
    return _segments(space, row, pooled, predictor, received, calibration)


def cross_evaluate(
    space: Workspace, models: Tensor, samples: Samples, split: str, clients: Tensor
) -> Tensor:
    """Judge every model on every client; of several processes each judges some of the models.

    Args:
        models: rows, shape (m, W).
        clients: ids, shape (n,).

    Returns:
        Loss sum, number correct, number judged; shape (n, m, 3), float64.
    """
    pooled = Pooled.of(space, samples, split, clients)
    shape = (len(clients), len(models), 3)
    sums = torch.zeros(shape, dtype=torch.float64, device=space.device)
    ranks = ProcessGroup.of(space.fabric)

    def judge_mine() -> None:
        for place in ranks.share([1] * len(models)):
            sums[:, place] = _segments(space, row_of(models, place), pooled)

    ranks.attempt(judge_mine)
    return ranks.all_reduce_sum(sums)


@torch.inference_mode()
def _segments(
    space: Workspace,
    row: Tensor,
    pooled: Pooled,
    predictor: Predictor | None = None,
    received: Mapping[str, Tensor] | None = None,
    calibration: Tensor | None = None,
) -> Tensor:
    """Forward the pooled samples in chunks, then sum each client's stretch."""
    module, at, size = space.module, 0, chunk(pooled.y)
    space.load(row)
    module.eval()
    module.start, module.received = row, dict(received or {})
    measured = []
    for x, y in zip(pooled.x.split(size), pooled.y.split(size), strict=True):
        with space.fabric.autocast():
            logits = module.predict(x) if predictor is None else predictor(module, x)
        measured.append(module.measure(logits.float(), y).double())
        if calibration is not None:
            weight = pooled.times[at : at + len(y)]
            calibration += confidences(logits.float(), y, weight, len(calibration))
        at += len(y)
    table = torch.cat(measured)
    if pooled.places is not None:
        table = table[pooled.places]
    lengths = pooled.lengths
    return torch.segment_reduce(table, "sum", lengths=lengths, axis=0, unsafe=True, initial=0)


def confidences(logits: Tensor, y: Tensor, weight: Tensor, bins: int) -> Tensor:
    """Number judged, sum of confidences and number correct, by confidence, shape (bins, 3).

    Args:
        logits: shape (b, C), or (b, T, C).
        y: labels, shape (b,), or next tokens, (b, T).
        weight: how often each sample counts, shape (b,).
        bins: equal parts of (0, 1], closed above.
    """
    sure, said = logits.softmax(dim=-1).max(dim=-1)
    correct = (said == y).double()
    place = ((sure * bins).ceil().long() - 1).clamp(0, bins - 1).flatten()
    each = weight.double().reshape(-1, *[1] * (y.ndim - 1)).expand_as(correct)
    columns = (each, each * sure.double(), each * correct)
    return torch.stack(
        [torch.bincount(place, column.flatten(), minlength=bins) for column in columns], dim=1
    ).cpu()


def chunk(samples: Tensor) -> int:
    """Samples per forward pass, given their labels (b,), tokens (b, T), or images."""
    tokens = samples[:1].numel() if len(samples) and not samples.is_floating_point() else 1
    return max(1, CHUNK // tokens)


@torch.inference_mode()
def mean_loss(space: Workspace, x: Tensor, y: Tensor) -> float:
    """Mean loss of the model in the workspace on some samples, in nats."""
    space.module.eval()
    parts = [
        space.module.measure(space.module.predict(a).float(), b).double().sum(dim=0)
        for a, b in zip(x.split(chunk(y)), y.split(chunk(y)), strict=True)
    ]
    loss, _, judged = torch.stack(parts).sum(dim=0).tolist()
    return float(loss / judged)


@torch.inference_mode()
def logits_of(space: Workspace, models: Tensor, x: Tensor) -> Tensor:
    """Logits of every model on the same samples, shape (m, len(x), C); models are batched."""
    space.module.eval()
    space.module.received = {}
    answer = _Answer(space.module)

    def logits(row: Tensor, part: Tensor) -> Tensor:
        named = {f"module.{name}": value for name, value in space.layout.unflatten(row).items()}
        found: Tensor = functional_call(answer, named, (part,))
        return found.float()

    batched = vmap(logits, in_dims=(0, None), chunk_size=MODELS)
    table = plain(models)
    return torch.cat([batched(table, part) for part in x.split(chunk(x))], dim=1)


class _Answer(nn.Module):
    """Stands around a module so that calling it is its `predict`."""

    def __init__(self, module: ClientModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's logits."""
        return self.module.predict(x)


@torch.inference_mode()
def features_of(space: Workspace, models: Tensor, x: Tensor) -> Tensor:
    """What enters the head of every model, shape (m, len(x), d)."""
    caught: list[Tensor] = []
    if space.layout.head_name is None:
        raise UserError("the network has no head: no part of it is an nn.Linear")
    head = space.module.get_submodule(space.layout.head_name)
    hook = head.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0].float()))
    try:
        for place in range(len(models)):
            space.load(row_of(models, place))
            space.module.eval()
            for part in x.split(chunk(x)):
                space.module(part)
    finally:
        hook.remove()
    return torch.cat(caught).reshape(len(models), len(x), -1)
