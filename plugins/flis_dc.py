"""FLIS-DC: overlapping groups in every round, by the similarity of the models' predictions.

Morafah, Vahidian, Wang, Lin, "FLIS: clustered federated learning via inference similarity for
non-IID data distribution", FL@NeurIPS 2022, arXiv 2208.09754.

    every cohort client trains the model of the last round with the least loss on its data;
    A[i, j] = <B_i, B_j> / (|B_i| |B_j|), B_i = predictions of w_i on the server's samples
    set_i = { j : A[i, j] >= beta } and i itself;  model_i = sum_{j in set_i} n_j w_j / sum n_j

The server keeps one model per cohort client, equal models too, and clients download all of them.
Clients outside the last cohort are in no group; ARI and the number of groups leave them out.
Departures: the released cosine, because with the printed norm of the element-wise product all sets
are empty; >= beta, so that beta = 0 is fedavg; clients choose by validation loss (three versions
are published); the server's samples are the suite's and belong to no client; `hard_accept` is 0.96
in the released code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class FlisDC:
    """Overlapping groups per round, by inference similarity on the server's samples."""

    paper: ClassVar[str] = "Morafah, Vahidian, Wang, Lin, FL@NeurIPS 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "clustered"
    presets: ClassVar[fl.Presets] = {
        "flis": {"beta": 0.4},
        "flis-cifar10": {"beta": 0.3},
        "flis-fashion-mnist": {"beta": 0.5},
    }

    beta: Annotated[float, Ge(0), "least similarity of a group's members"] = 0.5
    answers: Annotated[Literal["onehot", "softmax"], "what is compared"] = "onehot"
    hard_accept: Annotated[float | None, "similarity that is accepted whatever beta is"] = None
    eval: Annotated[Literal["pick", "last_local"], "the best model, or the last trained one"] = (
        "pick"
    )
    dedup: Annotated[bool, "send equal models once"] = False
    paper_leak: Annotated[
        bool, "choose on the test split, by loss; the released code: by accuracy"
    ] = False

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup | None:
        """The server must own samples; `last_local` remembers every client's model."""
        ctx.server_data()
        if self.eval == "pick":
            return None
        own = ctx.repeated(ctx.initial)
        return fl.Setup(memory={"flis-dc.last": fl.Memory(own, "client")})

    @fl.hookimpl
    def score(
        self,
        state: fl.State,
        stage: fl.Stage,
        upload: fl.Upload | None,
        ctx: fl.Context,
    ) -> fl.Scores | None:
        """Before training: negated validation losses. After: similarity of predictions."""
        ids = stage.clients
        if stage.kind != "train":
            return None
        if upload is None:
            ctx.send_models(ids, state.models.unique(dim=0) if self.dedup else state.models)
            losses = ctx.evaluate(state.models, ids)
            return fl.Scores(-losses, ids, "models", torch.arange(len(state.models)))
        x, _ = ctx.server_data()
        predictions = fl.similarity.predictions(ctx.logits(upload.selected(), x), self.answers)
        agreement = fl.similarity.prediction_agreement(predictions).cpu()
        memory = {}
        if self.eval == "last_local":
            last = state.memory["flis-dc.last"].clone()
            last[ids] = upload.selected()
            memory["flis-dc.last"] = last
        return fl.Scores(agreement, ids, "clients", ids, memory)

    @fl.hookimpl
    def cluster(
        self, state: fl.State, scores: fl.Scores | None, ctx: fl.Context
    ) -> fl.Membership | None:
        """Before training: the best model. After: one overlapping group per cohort client."""
        if scores is None:
            return None
        ids, n = scores.row_ids, len(scores.row_ids)
        if scores.columns == "models":
            home = state.membership.home.clone()
            home[ids] = scores.values.argmax(dim=1)
            return fl.Membership(home, state.membership.weights)
        threshold = self.beta if self.hard_accept is None else min(self.beta, self.hard_accept)
        chosen = torch.as_tensor(fl.clustering.threshold_sets(scores.values.numpy(), threshold))
        weights = torch.zeros(n, ctx.clients)
        weights[:, ids] = chosen.float()
        home = torch.full((ctx.clients,), -1)
        home[ids] = torch.arange(n)
        ctx.note("flis-dc.sizes", chosen.sum(dim=1).tolist())
        return fl.Membership(home, weights, parent=state.membership.home[ids])

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The best model on the client's validation samples, or its last trained model."""
        if self.eval == "last_local":
            return fl.Personal(params=state.memory["flis-dc.last"][clients])
        return fl.Personal(row=ctx.evaluate(state.models, clients).argmin(dim=1))
