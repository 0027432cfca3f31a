"""DP-FedAvg: clients clip their updates and add their share of Gaussian noise; local-dp: all of it.

McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models", ICLR
2018, Algorithm 1 (flat clipping, fixed denominator), with the noise of the sum added by the n
clients of a stage:

    d_i = a_i min(1, S / |u_i - w|_2) (u_i - w) + N(0, z^2 S^2 / n)
    w <- w + sum_i d_i / (q W),   q = n / N,  W = sum of a_i over all N clients

The sum of the d_i has noise of standard deviation z S, as in the paper, so the model z S / (q W).
All a_i are 1 by default (`weights=uniform`, so that q W = n); with `weights=capped` they are the
paper's min(n_i / cap, 1), where W counts as known to everybody. The server makes a uniform mean: a
client says that it has one sample, and sends N d_i / W. With `weights=samples` means are by samples
as the method says, and there is no epsilon.

With `local-dp` each client adds N(0, z^2 S^2) itself, so that its message is private before
anything leaves it: Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek, Poor, "Federated learning with
differential privacy: algorithms and performance analysis", IEEE TIFS 2020, with the update clipped,
not the weights.

With `delta` above 0 the run notes the epsilon spent so far, by the accountant of the package
dp-accounting, for another client (dp-fedavg) or other data of a client (local-dp) in place of one:
what may differ has norm 2 S, so the noise multiplier is z / 2.

    dp-fedavg    epsilon of the models that are sent, each made from a sum, of cohorts of n of N
                 clients drawn without replacement
    local-dp     epsilon of each message; of the client that sent most, without amplification.
                 Means are by samples, whose numbers count as known

There is no epsilon where clients send anything beside the model, as label counts or losses, to
which no noise is added; and none for dp-fedavg where the server makes anything else of the models
of its whole cohort than their uniform mean, for what is sent of each client.

Departure: buffers (BatchNorm) are sent as they are, without noise, and no epsilon covers them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Lt

import flbench as fl

SENT = "local-dp.sent"
SCALAR = 32
"""Bits of a scalar that is not compressed."""
Weights = Literal["uniform", "capped", "samples"]


@dataclass(frozen=True)
class DPFedAvg:
    """Clients clip their updates and add their share of Gaussian noise."""

    paper: ClassVar[str] = "McMahan, Ramage, Talwar, Zhang, ICLR 2018"
    year: ClassVar[int] = 2018
    kind: ClassVar[str] = "client"
    across_networks: ClassVar[bool] = True
    reads_sums: ClassVar[bool] = True

    clip: Annotated[float, Gt(0), "S, the largest norm of an update"] = 1.0
    noise: Annotated[float, Ge(0), "z, standard deviation of the sum's noise over S"] = 0.1
    delta: Annotated[float, Ge(0), Lt(1), "epsilon is noted for this delta; 0 = not at all"] = 0.0
    weights: Annotated[Weights, "a_i, what clients count in the mean"] = "uniform"
    cap: Annotated[
        int, Ge(1), fl.only_with("weights", "capped"), "samples from which a client counts 1"
    ] = 100

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup | None:
        """Refuse to begin without the accountant, or with means by samples: no epsilon."""
        if self.delta:
            accounting()
        if self.delta and self.noise and self.weights == "samples":
            raise fl.Undefined(
                "delta > 0 needs a uniform mean, and by weights=samples how much a client counts"
                " is its own secret: set weights=uniform or capped"
            )
        return None

    @fl.hookimpl
    def encode(self, stage: fl.Stage, ctx: fl.Context) -> Callable[[fl.Message], fl.Message]:
        """Clip, then add noise from random numbers of the client's own."""
        deviation, shares = self.deviation(stage), self.shares(ctx)
        usual = float(shares.mean())
        self.account(stage, ctx)

        def private(message: fl.Message) -> fl.Message:
            self.require_models_alone(message.extras)
            if self.delta and self.noise and (message.bits != SCALAR or message.overhead):
                raise fl.Undefined("delta > 0 needs messages that no plugin before codes")
            update = message.update
            update = update * (self.clip / update.norm().clamp(min=self.clip))
            update = update * float(shares[message.client])
            rng = ctx.rng("dp-fedavg", ctx.round, stage.label, client=message.client)
            noise = torch.from_numpy(rng.standard_normal(len(update), dtype="float32"))
            memory = {SENT: message.memory[SENT] + 1} if SENT in message.memory else {}
            sent = (update + deviation * noise.to(update.device)) / usual
            counted = message.samples if self.weights == "samples" else 1
            return message.sending(sent, memory=memory, samples=counted)

        return private

    def shares(self, ctx: fl.Context) -> torch.Tensor:
        """a_i of all clients, shape (N,), float64."""
        if self.weights == "capped":
            return (ctx.samples[: ctx.clients].double() / self.cap).clamp(max=1)
        return torch.ones(ctx.clients, dtype=torch.float64)

    @fl.hookimpl(wrapper=True)
    def aggregate(
        self, state: fl.State, upload: fl.Upload, ctx: fl.Context
    ) -> Generator[None, fl.Models, fl.Models]:
        """Refuse what no epsilon covers; models stay as they are."""
        self.require_all(upload, ctx)
        models = yield
        self.require_models_alone((ctx.sent("up") | ctx.sent("peer")) - {"model"})
        self.require_mean(state, upload, models.rows, ctx)
        return models

    def deviation(self, stage: fl.Stage) -> float:
        """Standard deviation of a client's noise: its share of the sum's."""
        return self.noise * self.clip / math.sqrt(len(stage.clients))

    def account(self, stage: fl.Stage, ctx: fl.Context) -> None:
        """Note the epsilon of all rounds so far, each of them one stage of its cohort."""
        if not self.delta or not self.noise:
            return
        if stage.label != "train" or not torch.equal(stage.clients, ctx.cohort):
            raise fl.Undefined("delta > 0 needs rounds of one stage, in which the cohort trains")
        dp = accounting()
        cohort = dp.SampledWithoutReplacementDpEvent(
            ctx.clients, len(ctx.cohort), dp.GaussianDpEvent(self.noise / 2)
        )
        accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
        accountant.compose(cohort, ctx.round)
        ctx.note("dp-fedavg.epsilon", float(accountant.get_epsilon(self.delta)))

    def require_models_alone(self, sent: Collection[str]) -> None:
        """Refuse an epsilon where clients send something beside the model, without noise."""
        if self.delta and self.noise and sent:
            names = ", ".join(sorted(sent))
            raise fl.Undefined(f"delta > 0 needs a method that sends models alone, not {names}")

    def require_all(self, upload: fl.Upload, ctx: fl.Context) -> None:
        """Refuse an epsilon for the sum of fewer uploads than its noise was divided by."""
        came, called = len(upload.ids), len(ctx.cohort)
        if self.delta and self.noise and came < called:
            lost = f"{came} of {called} came"
            raise fl.Undefined(f"delta > 0 needs the uploads of the whole cohort: {lost}")

    def require_mean(
        self, state: fl.State, upload: fl.Upload, rows: torch.Tensor, ctx: fl.Context
    ) -> None:
        """Refuse an epsilon where what is sent does not become the plain mean, in all rows."""
        if not self.delta or not self.noise or upload.bits is None:
            return
        size = ctx.layout.parameters
        mean = upload.selected()[:, :size].double().mean(dim=0).to(rows)
        agrees, room = torch.ones_like(mean, dtype=torch.bool), 1e-5 * (1 + mean.abs())
        for row in range(len(rows)):
            agrees &= (rows[row, :size] - mean).abs() <= room
        # With noise, what is sent has moved, but for a scalar whose noise is rounded away; what
        # stays with clients has not, or is different for each of them.
        moved = (mean - state.models[0, :size]).abs() > 2 * room
        least = int((agrees & moved).sum())
        most, sent = int(agrees.sum()) + ctx.layout.buffers, upload.bits // SCALAR
        whole = upload.bits % SCALAR == 0  # otherwise another plugin codes what has noise
        if not (whole & (sent >= least) & (sent <= most)).all():
            raise fl.Undefined(
                "delta > 0 needs a method that makes the uniform mean of all that a cohort sends,"
                " whole and for everybody"
            )


@dataclass(frozen=True)
class LocalDP(DPFedAvg):
    """Clients clip their updates and add all of the noise themselves."""

    paper: ClassVar[str] = "Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek, Poor, IEEE TIFS 2020"
    year: ClassVar[int] = 2020
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={  # of the three clients of a cohort
            "dp-fedavg": {"noise": 0.1 / math.sqrt(3), "weights": "uniform"}
        }
    )

    noise: Annotated[float, Ge(0), "z, standard deviation of a message's noise over S"] = 0.1
    weights: Annotated[Weights, "a_i, what clients count in the mean"] = "samples"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup | None:
        """How often each client has sent something."""
        if not self.delta:
            return None
        accounting()
        return fl.Setup(memory={SENT: fl.Memory(torch.zeros(ctx.clients), "client")})

    def deviation(self, stage: fl.Stage) -> float:
        """Standard deviation of a client's noise: all of it."""
        return self.noise * self.clip

    def account(self, stage: fl.Stage, ctx: fl.Context) -> None:
        """Clients count what they send."""

    def require_all(self, upload: fl.Upload, ctx: fl.Context) -> None:
        """Each message has all of its noise."""

    def require_mean(
        self, state: fl.State, upload: fl.Upload, rows: torch.Tensor, ctx: fl.Context
    ) -> None:
        """Whatever is made of the messages, each has its noise."""

    @fl.hookimpl(wrapper=True)
    def personalise(
        self, state: fl.State, ctx: fl.Context
    ) -> Generator[None, fl.Personal, fl.Personal]:
        """Note the epsilon of the client that has sent most; models stay as they are."""
        personal = yield
        if self.delta and self.noise and state.memory[SENT].any():
            dp, times = accounting(), int(state.memory[SENT].max())
            accountant = dp.pld.PLDAccountant()
            accountant.compose(dp.GaussianDpEvent(self.noise / 2), times)
            ctx.note("local-dp.epsilon", float(accountant.get_epsilon(self.delta)))
        return personal


def accounting() -> Any:  # noqa: ANN401 - a module
    """The package dp-accounting, which is an extra."""
    try:
        import dp_accounting.pld
        import dp_accounting.rdp
    except ModuleNotFoundError:
        raise fl.UserError(
            "delta > 0 needs an accountant: pip install 'flbench[privacy]'"
        ) from None
    return dp_accounting
