"""kNN-Per: a client mixes its model's prediction with its nearest training samples.

Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML
2022.

    p(y | x) = lambda p_kNN(y | x) + (1 - lambda) p_model(y | x)
    p_kNN(y | x) ~ sum over the k nearest samples of class y of exp(-|z - z_s|)

z enters the head of the client's model, whatever method trained it. A client's store is as long as
its training split.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

import flbench as fl

Wrapper = Generator[None, fl.Personal, fl.Personal]


@dataclass(frozen=True)
class KNNPer:
    """A client mixes its model's prediction with its nearest training samples."""

    paper: ClassVar[str] = "Marfoq, Neglia, Kameni, Vidal, ICML 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "personalised"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"share": 0.0}})

    k: Annotated[int, Ge(1), "neighbours"] = 10
    share: Annotated[float, Ge(0), Le(1), "lambda, share of the neighbours' prediction"] = 0.5

    @fl.hookimpl(wrapper=True)
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> Wrapper:
        """The same models, with a store of features for each client."""
        found = yield
        if found.predictor is not None or found.adaptation is not None:
            raise fl.Undefined("the other method has a predictor or an adaptation of its own")
        if not self.share:
            return found
        data = [ctx.client_data(client) for client in clients.tolist()]
        pairs = zip(found.models(state), data, strict=True)
        keys = fl.padded([ctx.features(row[None], x)[0] for row, (x, _) in pairs])
        labels = fl.padded([y.to(keys) for _, y in data])
        extras = {**found.extras, "knn.keys": keys, "knn.labels": labels}
        predictor = partial(self.mixture, classes=ctx.classes)
        others = {**found.others, "model": replace(found, others={})}
        return replace(found, extras=extras, predictor=predictor, others=others)

    @fl.hookimpl(wrapper=True)
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> Wrapper:
        """The same of newcomers."""
        return (yield from self.personalise(state, clients, ctx))

    def mixture(self, module: fl.ClientModule, x: Tensor, classes: int) -> Tensor:
        """Logarithms of the mixed probabilities, shape (b, C)."""
        keys, labels = (fl.unpadded(module.received[f"knn.{name}"]) for name in ("keys", "labels"))
        z, logits = module.features(x)
        distance, nearest = torch.cdist(z, keys).topk(min(self.k, len(keys)), largest=False)
        votes = torch.zeros(len(x), classes, device=x.device)
        weights = (-distance).softmax(dim=1)
        votes.scatter_add_(1, labels[nearest].long(), weights)
        mixed = self.share * votes + (1 - self.share) * logits.softmax(dim=1)
        return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()
