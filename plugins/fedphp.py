"""FedPHP: a client's private models are averaged over time, and teach its next local training.

Li, Zhan, Shao, Li, Song, "FedPHP: federated personalization with inherited private models",
ECML-PKDD 2021.

    local     minimise (1 - lambda) CE(w) + lambda L(w, q_k), starting from the downloaded w
    inherit   q_k <- mu_k q_k + (1 - mu_k) w_k,  mu_k = mu min(1, z_k / (Q R))
    server    w <- sum n_k w_k / sum n_k

q_k is the inherited private model (HPM), with which client k is tested; z_k counts its earlier
rounds, and Q R is the number that it can expect in all: share of the cohort times rounds. L is
`mmd`, the squared maximum mean discrepancy of the features of a batch (five Gaussian kernels,
bandwidths 1/4 to 4 times the mean squared distance), or `kl`, from the predictions of q_k to those
of w at temperature T. Departures: in its first round a client has no q_k, and trains with the other
loss alone (in the authors' code q_k is then the initial model); `kl` has T on both sides. A client
without q_k, and a newcomer, has the global model.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

import flbench as fl

PRIVATE, TIMES = "fedphp.private", "fedphp.times"


def mmd(z: Tensor, other: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of two batches of features, shape (b, ...), a scalar."""
    both, b = torch.cat([z, other]).flatten(1), len(z)
    distance = (both[:, None] - both).square().sum(dim=2)
    mean = distance.detach().sum() / (4 * b * b - 2 * b) + 1e-8
    kernel = torch.stack([(-distance / (mean * 2.0**k)).exp() for k in range(-2, 3)]).sum(dim=0)
    return (kernel[:b, :b] + kernel[b:, b:] - kernel[:b, b:] - kernel[b:, :b]).mean()


@dataclass(frozen=True)
class FedPHP:
    """A client's private models are averaged over time, and teach its next local training."""

    paper: ClassVar[str] = "Li, Zhan, Shao, Li, Song, ECML-PKDD 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "personalised"
    tasks: ClassVar[tuple[str, ...]] = ("classes",)

    lam: Annotated[float, Ge(0), Lt(1), "lambda, share of the transfer in the loss"] = 0.1
    mu: Annotated[float, Ge(0), Le(1), "largest share of the inherited model in the new one"] = 0.9
    transfer: Annotated[Literal["mmd", "kl"], "of features, or of predictions"] = "mmd"
    temperature: Annotated[float, Gt(0), fl.only_with("transfer", "kl"), "T, of the softmax"] = 4.0

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """No client has a private model."""
        if self.transfer == "mmd" and ctx.layout.head_name is None:
            raise fl.Undefined("the network has no head, and the features enter it: transfer=kl")
        memory = {
            PRIVATE: fl.Memory(ctx.repeated(ctx.initial), "client"),
            TIMES: fl.Memory(torch.zeros(ctx.clients, device=ctx.initial.device), "client"),
        }
        return fl.Setup(memory=memory)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start:
        """Clients have their private model, and know in how many rounds it was made."""
        private, times = (state.memory[name][stage.clients] for name in (PRIVATE, TIMES))
        return fl.Start(client_memory={"fedphp.private": private, "fedphp.times": times})

    @fl.hookimpl(wrapper=True)
    def batch_loss(self) -> Generator[None, fl.BatchLoss, fl.BatchLoss]:
        """Mix another method's loss, or cross-entropy, with the transfer from the private model."""
        other = yield

        def loss(batch: fl.Batch) -> Tensor:
            received = batch.module.received
            if "fedphp.private" not in received:
                return other(batch)
            share = self.lam * (received["fedphp.times"] > 0)
            return (1 - share) * other(batch) + share * self.distance(batch)

        return loss if self.lam else other

    def distance(self, batch: fl.Batch) -> Tensor:
        """L of the batch, a scalar."""
        module, private = batch.module, batch.module.received["fedphp.private"]
        with torch.no_grad():
            if self.transfer == "kl":
                taught = module.with_row(private, module.forward, batch.x)
            else:
                taught = module.with_row(private, lambda x: module.features(x)[0], batch.x)
        if self.transfer == "mmd":
            return mmd(batch.features, taught)
        pair = ((it / self.temperature).log_softmax(dim=-1) for it in (batch.logits, taught))
        student, teacher = pair
        return (teacher.exp() * (teacher - student)).sum(dim=-1).mean()

    @fl.hookimpl
    def report(self, stage: fl.Stage, ctx: fl.Context) -> fl.Reporter | None:
        """Clients keep the mixture of their private model and the model that they trained."""
        expected = max(1.0, len(ctx.cohort) / ctx.clients * ctx.rounds)

        def inherit(module: fl.ClientModule, x: Tensor, y: Tensor) -> fl.Report:
            times, before = (module.received[f"fedphp.{it}"] for it in ("times", "private"))
            mu, row = self.mu * (times / expected).clamp(max=1), module.row()
            size = ctx.layout.parameters  # statistics are those of the new model
            row[:size] = mu * before[:size] + (1 - mu) * row[:size]
            return fl.Report(kept={PRIVATE: row, TIMES: times + 1})

        return inherit if stage.aggregates else None

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        """The client's private model; the global one is tested as `global`."""
        home, known = state.membership.home[clients], state.memory[TIMES][clients] > 0
        if (home < 0).any():
            raise fl.Undefined("a client in no group has no model")
        private, common = state.memory[PRIVATE][clients], state.models[home.clamp(min=0)]
        rows = torch.where(known[:, None], private, common)
        return fl.Personal(params=rows, others={"global": fl.Personal(row=home)})
