"""Cross-evaluation: models judged on clients' data, each model once over a pooled batch.

pFedLIA, IFCA, FLIS, FedFomo and FedC2I all live on "the loss of m models on n clients". One pass
per model over everybody's samples, then a sum per client, replaces n x m small passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from flbench.client import ClientModule
from flbench.engine.workspace import Workspace
from flbench.errors import UserError
from flbench.federation import Samples

CHUNK = 512
"""Samples (of text: tokens) per forward pass: activations of small images stay in the cache."""

MODELS = 64
"""Models that answer together where many judge the same few samples."""

Predictor = Callable[[ClientModule, Tensor], Tensor]


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
    lists = [samples.splits[split][client] for client in clients.tolist()]
    lengths = torch.tensor([len(rows) for rows in lists], device=space.device)
    rows = torch.cat(lists)
    return _segments(space, row, samples, rows, lengths, predictor, received, calibration)


def cross_evaluate(
    space: Workspace, models: Tensor, samples: Samples, split: str, clients: Tensor
) -> Tensor:
    """Judge every model on every client.

    Args:
        models: rows, shape (m, W).
        clients: ids, shape (n,).

    Returns:
        Loss sum, number correct, number judged; shape (n, m, 3), float64.
    """
    lists = [samples.splits[split][client] for client in clients.tolist()]
    lengths = torch.tensor([len(rows) for rows in lists], device=space.device)
    pooled = torch.cat(lists)
    sums = [_segments(space, row, samples, pooled, lengths) for row in models]
    return torch.stack(sums, dim=1)


@torch.inference_mode()
def _segments(
    space: Workspace,
    row: Tensor,
    samples: Samples,
    pooled: Tensor,
    lengths: Tensor,
    predictor: Predictor | None = None,
    received: Mapping[str, Tensor] | None = None,
    calibration: Tensor | None = None,
) -> Tensor:
    """Forward the pooled samples in chunks, then sum each client's stretch."""
    module = space.module
    space.load(row)
    module.eval()
    module.start, module.received = row, dict(received or {})
    measured = []
    once, places = pooled.unique(return_inverse=True)
    shared = len(once) < len(pooled)  # test sets may overlap; nobody is judged twice
    times = places.bincount() if shared else torch.ones_like(pooled)
    at = 0
    for rows in (once if shared else pooled).split(chunk(samples.y)):
        with space.fabric.autocast():
            x = samples.x[rows]
            logits = module.predict(x) if predictor is None else predictor(module, x)
        measured.append(module.measure(logits.float(), samples.y[rows]).double())
        if calibration is not None:
            weight = times[at : at + len(rows)]
            calibration += confidences(logits.float(), samples.y[rows], weight, len(calibration))
        at += len(rows)
    table = torch.cat(measured)
    if shared:
        table = table[places]
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
    return torch.cat([batched(models, part) for part in x.split(chunk(x))], dim=1)


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
        for row in models:
            space.load(row)
            space.module.eval()
            for part in x.split(chunk(x)):
                space.module(part)
    finally:
        hook.remove()
    return torch.cat(caught).reshape(len(models), len(x), -1)
