"""Cross-evaluation: evaluate models on the clients' data, each model once on a pooled batch.

pFedLIA, IFCA, FLIS, FedFomo and FedC2I all need the loss of m models on n clients. One pass per
model over the samples of all clients, then a sum per client, replaces n x m small passes.

On CUDA a pass of a small network takes as long as launching its operations, so several models are
evaluated in one pass. CPUs are faster one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from flbench.core.client_module import SERVER, ModuleCall, Received, of_samples
from flbench.core.model_bank import plain, row_of
from flbench.core.networks import heads_of
from flbench.engine.lanes.evaluation import (
    SAME,
    TOGETHER,
    by_network,
    evaluate_many,
    most_models,
    on_the_same_samples,
)
from flbench.engine.model_evaluation import chunk, evaluate_model, predicts_itself
from flbench.engine.processes.process_group import ProcessGroup
from flbench.engine.workspace import Workspace
from flbench.errors import Undefined
from flbench.federation.federation import Samples
from flbench.federation.pooled import Pooled

MODELS = 64
"""Models per batched forward pass on the same samples."""


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

    def together(some: list[int]) -> Tensor:
        return torch.stack([row_of(models, one) for one in some]).to(space.device)

    def evaluate_own_share() -> None:
        own = group.share([1] * len(models))
        at_once = min(TOGETHER.get(space.device.type, 1), most_models(space))
        for at in range(0, len(own), at_once):
            found = evaluate_many(
                space,
                SAME,
                own[at : at + at_once],
                lambda some: on_the_same_samples(space, together(some), pooled),
                lambda one: evaluate_model(space, row_of(models, one), pooled),
            )
            sums[:, list(found)] = torch.stack([one.sums for one in found.values()], dim=1)

    group.attempt(evaluate_own_share)
    return group.all_reduce_sum(sums)


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
    return by_network(space, models, lambda rows: batched(rows, x))


@torch.no_grad()
def features_of(space: Workspace, models: Tensor, x: Tensor) -> Tensor:
    """Input of the head of every model, shape (m, len(x), d).

    Raises:
        Undefined: the network has no head, or features of each token and not of a sample, or the
            models have different networks, whose features differ in number.
    """
    head_inputs: list[Tensor] = []
    layout = space.layout
    if layout.head_name is None:
        raise Undefined("the network has no head: no part of it is an nn.Linear")
    heads = (layout.head_name,) if layout.which is None else heads_of(space.module)
    hooks = [
        space.module.get_submodule(head).register_forward_pre_hook(
            lambda _, inputs: head_inputs.append(of_samples(inputs[0]).float())
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
