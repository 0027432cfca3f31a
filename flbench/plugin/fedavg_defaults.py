"""FedAvg: an answer to every hook (McMahan et al., AISTATS 2017).

w <- sum over the cohort of n_i w_i / sum n_i. Every other method is its difference from this.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flbench.core.client_module import (
    BatchLoss,
    ClientModule,
    PhaseRule,
    mean_cross_entropy,
    module_phases,
)
from flbench.core.context import Context
from flbench.core.hookspecs import hookimpl
from flbench.core.model_bank import row_of
from flbench.core.state import Membership, Models, Personal, Setup, Stage, Start, State, Upload
from flbench.toolbox.aggregation import client_weights, member_mean
from flbench.toolbox.personalisation import best_model, common_part


@hookimpl
def setup(ctx: Context) -> Setup:
    """One model for all clients, or for all clients that have the same network."""
    if ctx.networks is not None:
        rows = ctx.layout.with_network(ctx.initial, torch.arange(ctx.layout.networks))
        return Setup(models=rows, membership=Membership(home=ctx.networks))
    everybody = Membership(home=torch.zeros(ctx.clients, dtype=torch.int64))
    return Setup(models=ctx.initial[None].clone(), membership=everybody)


@hookimpl
def plan(ctx: Context) -> tuple[Stage, ...]:
    """The sampled cohort trains."""
    return (Stage("train", ctx.cohort, ctx.local.epochs),)


@hookimpl
def dispatch(state: State, stage: Stage, ctx: Context) -> Start:
    """Each client gets its home model, whole."""
    home = state.membership.home[stage.clients].clamp(min=0)  # methods answer for undecided clients
    rows = home.unique()
    if len(rows) == 1 < len(home):  # no copy: a probe of 100 clients holds no model beside the bank
        params = row_of(state.models, int(rows)).expand(len(home), -1)
    else:
        params = state.models[home]
    return Start(params=params[:, None, :], sent_mask=ctx.layout.all_mask)


@hookimpl
def client_module(net: nn.Module, ctx: Context) -> ClientModule:
    """Cross-entropy and the suite's optimiser."""
    return ClientModule(net, ctx.local)


@hookimpl
def batch_loss() -> BatchLoss:
    """Cross-entropy."""
    return mean_cross_entropy


@hookimpl
def phases() -> PhaseRule:
    """The phases of the client module: one."""
    return module_phases


@hookimpl
def weights(upload: Upload) -> Tensor:
    """A client counts as much as it has samples."""
    return client_weights(upload)


@hookimpl
def aggregate(state: State, upload: Upload, membership: Membership, ctx: Context) -> Models:
    """The weighted mean of each row's members."""
    return Models(member_mean(state.models, upload, membership, ctx.layout.counters))


@hookimpl
def personalise(state: State, clients: Tensor) -> Personal:
    """Each client is judged by its home model."""
    return Personal(row=state.membership.home[clients])


@hookimpl
def join(state: State, clients: Tensor, ctx: Context) -> Personal:
    """What all models have in common, if each is one client's; else the only or the best model."""
    if ctx.row_per_client:
        return Personal(params=common_part(state.models, clients, ctx))
    home = state.membership.home[clients]
    if (home < 0).any():
        home = torch.where(home < 0, best_model(state.models, clients, ctx), home)
    return Personal(row=home)
