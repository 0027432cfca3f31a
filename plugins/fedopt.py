"""FedAdagrad, FedAdam and FedYogi: the server applies an adaptive optimiser to the mean update.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive federated optimization",
ICLR 2021, Algorithm 2 (FedOpt).

    D = wbar - w;  m <- beta_1 m + (1 - beta_1) D
    v <- v + D^2                                        FedAdagrad
    v <- beta_2 v + (1 - beta_2) D^2                    FedAdam
    v <- v - (1 - beta_2) D^2 sign(v - D^2)             FedYogi
    w <- w + eta m / (sqrt(v) + tau)

wbar is the sample-weighted mean of the uploads (the paper's Algorithm 2 has the uniform mean, its
experiments weight by samples). m starts at 0 and v at tau^2, the least that the paper allows; there
is no bias correction. Buffers are averaged. Rows without uploads, and their m and v, are kept.

The paper tunes eta on a grid, for each task anew; eta = 0.1 is the middle of its range on images.
With tau far above all updates the step is eta / (2 tau) times the update: FedAvg for eta = 2 tau.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

import flbench as fl

FEDAVG = {"beta1": 0.0, "tau": 2.0**60, "server_lr": 2.0**61}


@dataclass(frozen=True)
class FedAdagrad:
    """FedAvg whose server takes steps of Adagrad."""

    paper: ClassVar[str] = (
        "Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, ICLR 2021"
    )
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "server"
    reads_sums: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": FEDAVG})

    server_lr: Annotated[float, Gt(0), "eta, learning rate of the server"] = 0.1
    tau: Annotated[float, Gt(0), "tau, how little a step adapts to small updates"] = 1e-3
    beta1: Annotated[float, Ge(0), Lt(1), "beta_1, momentum of the server"] = 0.0

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Both moments, m and v, for each row of the bank."""
        m = torch.zeros(1, ctx.layout.parameters, device=ctx.initial.device)
        v = torch.full_like(m, self.tau**2)
        return fl.Setup(
            memory={"fedopt.m": fl.Memory(m, "model"), "fedopt.v": fl.Memory(v, "model")}
        )

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """An adaptive step from the old row towards the mean of the uploads."""
        rows = fl.member_mean(state.models, upload, membership, ctx.layout.counters)
        trained = membership.shares(upload.ids, len(rows)).sum(dim=1) > 0
        size = ctx.layout.parameters
        m, v = (state.memory[name].clone() for name in ("fedopt.m", "fedopt.v"))
        start = state.models[trained, :size].double()
        update = rows[trained, :size].double() - start
        momentum = self.beta1 * m[trained].double() + (1 - self.beta1) * update
        second = self.second_moment(v[trained].double(), update.square())
        step = self.server_lr * momentum / (second.sqrt() + self.tau)
        m[trained], v[trained] = momentum.to(m), second.to(v)
        rows[trained, :size] = (start + step).to(rows)
        return fl.Models(rows, {"fedopt.m": m, "fedopt.v": v})

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The new v, from the old one and the squared update."""
        return v + square


@dataclass(frozen=True)
class FedAdam(FedAdagrad):
    """FedAvg whose server takes steps of Adam."""

    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"fedavg": {**FEDAVG, "beta2": 0.0, "server_lr": 2.0**60}}
    )

    beta1: Annotated[float, Ge(0), Lt(1), "beta_1, momentum of the server"] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1), "beta_2, how slowly v forgets"] = 0.99

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The new v, from the old one and the squared update."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAvg whose server takes steps of Yogi."""

    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": FEDAVG})

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The new v, from the old one and the squared update."""
        return v - (1 - self.beta2) * square * (v - square).sign()
