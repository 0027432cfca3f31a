"""APFL: a client predicts with a mixture of the global model and its own.

Deng, Kamani, Mahdavi, "Adaptive personalized federated learning", arXiv 2003.13461 (2020),
Algorithm 1.

    global     w   <- w   - eta grad f_i(w), then averaged
    own        v_i <- v_i - eta grad_v f_i(alpha v_i + (1 - alpha) w)
    predicts with  alpha v_i + (1 - alpha) w

Departure: alpha is a parameter; the paper's update of alpha is not implemented.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.func import functional_call

import flbench as fl


class Mixture(fl.ClientModule):
    """The global network and the client's own network."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining, alpha: float) -> None:
        super().__init__(net, local)
        self.own, self.alpha = copy.deepcopy(net), alpha

    def predict(self, x: Tensor) -> Tensor:
        """Logits of the mixture, shape (b, C), without gradients for the global network."""
        pairs = zip(self.own.named_parameters(), self.net.parameters(), strict=True)
        mixed = {n: self.alpha * v + (1 - self.alpha) * w.detach() for (n, v), w in pairs}
        logits: Tensor = functional_call(self.own, mixed, (x,))
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """The loss of the global model plus the loss of the mixture."""
        x, y = batch
        mixed = fl.Batch(self, x, y, self.predict(x))
        return self.batch_loss(fl.Batch(self, x, y)) + self.batch_loss(mixed)


@dataclass(frozen=True)
class APFL:
    """A client predicts with a mixture of the global model and its own."""

    paper: ClassVar[str] = "Deng, Kamani, Mahdavi, arXiv 2003.13461"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"alpha": 0.0}})

    alpha: Annotated[float, Ge(0), Le(1), "share of the own model; 0 = the global one"] = 0.5

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client: the global model, equal in all of them, and its own."""
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The module with two networks."""
        return Mixture(net, ctx.local, self.alpha)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """Only the global model is sent, in both directions."""
        return fl.Start(sent_mask=ctx.layout.submodule("net"))

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The mean of the global models goes into every row; own models stay local."""
        shared, counters = ctx.layout.submodule("net"), ctx.layout.counters
        return fl.Models(fl.partial_mean(state.models, upload, shared, counters))

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """A newcomer mixes the global model with the initial one."""
        if not ctx.joining:
            return None
        return fl.initial_for_newcomers(state, clients, ctx, ctx.layout.submodule("net"))
