"""Departures of our side, each a plugin that is asked first: they turn a reason into a fact.

If another implementation parts from ours, and agrees with ours changed in one stated way, then this
way is what parts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import flbench as fl
from flbench.run.composition import compose


class FirstUpdateIsLost:
    """The server drops the clients' models of the first round."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, ctx: fl.Context) -> fl.Models | None:
        """In round 1 the models stay, and so does the method's memory."""
        return fl.Models(state.models) if ctx.round == 1 else None


class UniformWeights:
    """Clients count alike in the mean, whatever number of samples they have."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The uniform mean of the uploads."""
        counters = ctx.layout.counters
        return fl.Models(fl.member_mean(state.models, upload, membership, counters, "uniform"))


class ServerModelIsLeftOut:
    """FedNova's new model is the sum of tau p_i / a_i times the uploads, without the old model."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The weights sum to 1 only if all clients make the same number of steps."""
        a = fl.effective_steps(upload.steps, ctx.local.momentum)
        shares = upload.samples.double() / upload.samples.sum()
        weights = shares * (shares @ a) / a
        return fl.Models((weights @ upload.selected().double())[None].to(state.models))


@dataclass(frozen=True)
class UniformNova:
    """FedNova in which clients count alike, whatever number of samples they have.

    Attributes:
        scaled: the update is also multiplied by N / K, all clients over those of the round.
    """

    scaled: bool = False

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """FedNova's step for clients with one sample each."""
        alike = replace(upload, samples=torch.ones_like(upload.samples))
        (_, fednova), *_ = compose("fednova").layers
        rows = fednova.aggregate(state, alike, membership, ctx).rows
        factor = ctx.clients / len(upload.ids) if self.scaled else 1.0
        return fl.Models(state.models + factor * (rows - state.models))


class UncorrectedFedDyn:
    """FedDyn's server as FedLab has it: h <- h - alpha/N (sum_k w_k - w).

    The paper has the sum of w_k - w, so w is taken off once, not once for each client. With
    d = -h / alpha, alpha drops out. To be used with alpha = 0 on our side: plain local training.
    """

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """d, zero at first."""
        d = torch.zeros(1, ctx.layout.parameters)
        return fl.Setup(memory={"compare.d": fl.Memory(d, "model")})

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """W <- mean_k w_k + d."""
        models = upload.selected()
        moved = models.sum(dim=0, keepdim=True) - state.models
        d = state.memory["compare.d"] + moved / ctx.clients
        return fl.Models(models.mean(dim=0, keepdim=True) + d, {"compare.d": d})


class SignedFedDyn:
    """FedDyn as fluke has it, with the names of `plugins/feddyn.py`.

    Each client has alpha_k = alpha mean(n) / n_k in place of alpha, and its drift
    changes by -alpha_k (w_k - w) in place of w_k - w. To be used with alpha = 0 on our side, whose
    drifts are then zero but for this change.
    """

    @fl.hookimpl
    def dispatch(self, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients know their alpha_k."""
        alpha = DYNAMIC["alpha"] * ctx.samples.double().mean() / ctx.samples[stage.clients]
        return fl.Start(client_memory={"compare.alpha": alpha[:, None].float()})

    @fl.hookimpl
    def local_term(self) -> Callable[[fl.ClientModule], torch.Tensor]:
        """alpha_k (<d_k, u> + ||u - w||^2 / 2)."""

        def term(module: fl.ClientModule) -> torch.Tensor:
            u, known = module.flat(), module.received
            square = (u - module.start[: len(u)]).square().sum()
            return (known["compare.alpha"] * (known["feddyn.drift"] @ u + square / 2)).sum()

        return term

    @fl.hookimpl
    def report(self) -> fl.Reporter:
        """The new drift."""

        def drift(module: fl.ClientModule, x: torch.Tensor, y: torch.Tensor) -> fl.Report:
            u, known = module.flat().detach(), module.received
            moved = u - module.start[: len(u)]
            kept = known["feddyn.drift"] - known["compare.alpha"] * moved
            return fl.Report(kept={"feddyn.drift": kept})

        return drift

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The mean weighted by samples, and the plain mean of the drifts."""
        rows = fl.member_mean(state.models, upload, membership, ctx.layout.counters)
        rows[:, : ctx.layout.parameters] += state.memory["feddyn.drift"].mean(dim=0)
        return fl.Models(rows)


class UniformFedDyn:
    """FedDyn whose means of the uploads and of the drifts are plain, as in the paper."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The plain mean of the uploads, and the plain mean drift less the one that FedDyn adds."""
        counters, size = ctx.layout.counters, ctx.layout.parameters
        rows = fl.member_mean(state.models, upload, membership, counters, "uniform")
        drift = state.memory["feddyn.drift"].double()
        shares = ctx.samples.double() / ctx.samples.sum()
        rows[:, :size] += (drift.mean(dim=0) - shares @ drift).to(rows)
        return fl.Models(rows)


class LateBiasCorrection:
    """FedAdam's step times sqrt(1 - beta_2^(t+1)) / (1 - beta_1^(t+1)) in round t = 1, 2, ..."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The step of FedAdam, made shorter in the first rounds."""
        (_, fedadam), *_ = compose("fedadam", ADAM).layers
        found: fl.Models = fedadam.aggregate(state, upload, membership, ctx)
        beta1, beta2 = ADAM["beta1"], ADAM["beta2"]
        factor = (1 - beta2 ** (ctx.round + 1)) ** 0.5 / (1 - beta1 ** (ctx.round + 1))
        return replace(found, rows=state.models + factor * (found.rows - state.models))


class OneLoss:
    """q-FedAvg in which every client counts with the mean loss on the cohort's samples."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The step of q-FedAvg for this loss."""
        shares = upload.samples.double() / upload.samples.sum()
        one = (shares @ upload.loss_start.double()).expand_as(upload.loss_start)
        (_, fair), *_ = compose("q-fedavg", FAIR).layers
        models: fl.Models = fair.aggregate(state, replace(upload, loss_start=one), membership, ctx)
        return models


class WeightedKrum:
    """Multi-Krum whose mean of the chosen uploads is weighted by samples."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The uploads that Multi-Krum takes, weighted."""
        (_, krum), *_ = compose("multi-krum", KRUM).layers
        uploads = upload.selected()
        chosen = krum.nearest(uploads[:, ctx.layout.trainable])
        weights = upload.samples[chosen].double()
        mean = (weights / weights.sum()) @ uploads[chosen].double()
        return fl.Models(mean[None].to(state.models))


class UniformBody:
    """FedPer in which clients count alike in the mean of the body."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The uniform mean of the body."""
        shared = ~ctx.layout.layers[-1]
        return fl.Models(
            fl.partial_mean(state.models, upload, shared, ctx.layout.counters, "uniform")
        )


class OwnIsTheMixture:
    """APFL whose own models are not trained, but become the mixture after training."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The mean of the global models, and alpha v + (1 - alpha) w as the own ones."""
        net, own = ctx.layout.submodule("net"), ctx.layout.submodule("own")
        rows = fl.partial_mean(state.models, upload, net, ctx.layout.counters)
        alpha, ids = MIXED["alpha"], upload.ids
        mixed = alpha * state.models[ids][:, own] + (1 - alpha) * upload.selected()[:, net]
        rows[ids[:, None], own.nonzero()[:, 0]] = mixed
        return fl.Models(rows)


class UpdateFromTheServersModel:
    """FedBuff whose updates are the uploads minus the server's model of the moment."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The step of FedBuff, as if the client had been given that model."""
        given = state.memory["fedbuff.given"].clone()
        given[upload.ids] = state.models[0]
        (_, fedbuff), *_ = compose("fedbuff", BUFFERED).layers
        memory = {**state.memory, "fedbuff.given": given}
        models: fl.Models = fedbuff.aggregate(replace(state, memory=memory), upload, ctx)
        return models


class MirroredVariates:
    """SCAFFOLD whose c_i changes by (u - w) / (a_i eta) - c, so with the opposite sign."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The step of SCAFFOLD with these variates; c is the mean of all c_i."""
        c = state.memory["scaffold.c_i"].mean(dim=0)
        change = -upload.extras["c_change"] - 2 * c
        extras = {**upload.extras, "c_change": change}
        (_, scaffold), *_ = compose("scaffold").layers
        models: fl.Models = scaffold.aggregate(
            state, replace(upload, extras=extras), membership, ctx
        )
        return models


class TorchAdam:
    """FedAdam as `torch.optim.Adam`: v starts at 0, m and v are divided by 1 - beta^t."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Both moments, zero at first."""
        zero = torch.zeros(1, ctx.layout.parameters, dtype=torch.float64)
        names = ("compare.m", "compare.v")
        return fl.Setup(memory={name: fl.Memory(zero, "model") for name in names})

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """W <- w + eta mhat / (sqrt(vhat) + tau)."""
        rows = fl.member_mean(state.models, upload, membership, ctx.layout.counters)
        update = (rows - state.models).double()
        beta1, beta2, t = ADAM["beta1"], ADAM["beta2"], ctx.round
        m = beta1 * state.memory["compare.m"] + (1 - beta1) * update
        v = beta2 * state.memory["compare.v"] + (1 - beta2) * update.square()
        scale = (v / (1 - beta2**t)).sqrt() + ADAM["tau"]
        step = ADAM["server_lr"] * m / (1 - beta1**t) / scale
        return fl.Models((state.models + step).to(rows), {"compare.m": m, "compare.v": v})


ADAM = {"server_lr": 0.1, "tau": 0.01, "beta1": 0.8, "beta2": 0.95}
BUFFERED = {"size": 2, "rate": 1.0}
DYNAMIC = {"alpha": 0.1}
FAIR = {"q": 0.5}
MIXED = {"alpha": 0.4}
KRUM = {"byzantine": 1, "chosen": 3}
"""Parameters of the pairs that these changes explain."""
CHANGES: dict[str, object] = {
    "first-update-is-lost": FirstUpdateIsLost(),
    "late-bias-correction": LateBiasCorrection(),
    "mirrored-variates": MirroredVariates(),
    "one-loss": OneLoss(),
    "own-is-the-mixture": OwnIsTheMixture(),
    "server-model-is-left-out": ServerModelIsLeftOut(),
    "signed-feddyn": SignedFedDyn(),
    "torch-adam": TorchAdam(),
    "uncorrected-feddyn": UncorrectedFedDyn(),
    "uniform-body": UniformBody(),
    "uniform-feddyn": UniformFedDyn(),
    "uniform-nova": UniformNova(),
    "uniform-nova-scaled": UniformNova(scaled=True),
    "uniform-weights": UniformWeights(),
    "update-from-the-servers-model": UpdateFromTheServersModel(),
    "weighted-krum": WeightedKrum(),
}
