"""Newcomers: clients held out of training join after the last round, and are judged.

Each gets its model through the `join` hook, by the method's rule or the default; then it may train
a few local epochs. The state is frozen: nothing that happens here can change the main result.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from flbench.core.state import Personal, Stage, State
from flbench.engine import batchnorm
from flbench.engine.ledger import CommunicationLedger
from flbench.errors import UserError
from flbench.federation.federation import Newcomers, label_counts
from flbench.federation.row_lists import RowLists
from flbench.results.schema import Unseen
from flbench.run.evaluation import adapted_models, evaluate
from flbench.run.history import Evaluation
from flbench.run.networks import draw_networks
from flbench.run.rounds import Run, round_context


def evaluate_newcomers(run: Run, state: State) -> Unseen | None:
    """Let the suite's newcomers join a finished run; None where there are none.

    A rule that fails costs its run nothing but this: the reason becomes a warning.
    """
    if run.newcomers is None:
        return None
    executor, services = run.executor, run.services
    before = executor.samples, services.ledger
    guests, device = run.newcomers, executor.workspace.device
    executor.samples = executor.samples.joined(guests.visible.to(device))
    services.ledger = CommunicationLedger(run.context.clients + len(guests))
    try:
        with run.hooks.watching():
            return judge_newcomers(run, state, guests)
    except UserError as error:
        services.warn(f"unseen clients are not reported: {error}")
        return None
    finally:
        executor.samples, services.ledger = before


def judge_newcomers(run: Run, state: State, guests: Newcomers) -> Unseen:
    """Ask for their models, judge, fine-tune, judge again."""
    ctx, suite = round_context(run, run.suite.rounds), run.suite
    ids = torch.arange(ctx.clients, ctx.clients + len(guests))
    train = guests.visible.sizes("train")
    counts = label_counts(guests.visible, ctx.outputs)
    ctx = replace(
        ctx,
        samples=torch.cat([ctx.samples, train]),
        label_counts=torch.cat([ctx.counted, counts]),
        truth=None if ctx.truth is None else lambda: all_groups(run, guests),
        networks=all_networks(run, ids),
    )
    state = extended(run, state, len(guests), ctx.networks)
    run.services.own_buffers = state.memory.get(batchnorm.OWN)
    ctx = replace(ctx, work=partial(run.hooks.local_work, state))
    work = partial(run.hooks.local_work, state, ctx=ctx)
    personal = run.hooks.join(state, ids, ctx)
    personal = batchnorm.before_evaluation(suite.buffers, personal, state, ids, ctx.layout)
    adaptation = personal.adaptation and replace(personal.adaptation, kind="join")  # no terms
    personal = replace(personal, adaptation=adaptation, others={})
    empty = torch.empty(0, dtype=torch.int64)
    lists = RowLists.of([*[empty] * ctx.clients, *guests.held_out.splits["test"]])
    device = run.executor.workspace.device
    held_out = replace(guests.held_out, splits={"test": lists}).to(device)

    def judged(personal: Personal) -> Evaluation:
        with run.hooks.reading("evaluation", ctx, state=state, personal=personal):
            metrics = run.metrics and run.metrics.headline
            return evaluate(run.executor, personal, state, held_out, ids, work, metrics=metrics)

    first = judged(personal)
    personal = adapted_models(run.executor, personal, state, personal.adaptation, work)
    if suite.unseen_epochs:
        tuning = Stage("join", ids, suite.unseen_epochs, "fine-tune")
        personal = adapted_models(run.executor, personal, state, tuning, work)
    tuned = judged(personal) if suite.unseen_epochs else first
    has_classes = run.task == "classes"
    return Unseen(
        epochs=suite.unseen_epochs,
        train=train.tolist(),
        test=first.tested,
        correct=first.correct if has_classes else None,
        correct_tuned=tuned.correct if has_classes else None,
        group=None if guests.groups is None else guests.groups.tolist(),
        values=first.values,
        values_tuned=tuned.values,
    )


def all_groups(run: Run, guests: Newcomers) -> Tensor | None:
    """True groups of the training clients, then of the newcomers."""
    if run.groups is None or guests.groups is None:
        return None
    return torch.cat([run.groups, guests.groups])


def all_networks(run: Run, newcomers: Tensor) -> Tensor | None:
    """Networks of the training clients, then of the newcomers."""
    known = run.context.networks
    drawn = draw_networks(run.suite, run.seed, newcomers.tolist())
    return None if known is None or drawn is None else torch.cat([known, drawn])


def extended(run: Run, state: State, newcomers: int, networks: Tensor | None) -> State:
    """The state with a home for everybody: the only model where there is one, else undecided.

    Of a newcomer with a network of its own this is the only model of that network.
    """
    lost = torch.full((newcomers,), 0 if len(state.models) == 1 else -1)
    if networks is not None:
        fits = networks[-newcomers:, None] == run.context.layout.network_of(state.models)
        lost = torch.where(fits.sum(dim=1) == 1, fits.long().argmax(dim=1), -1)
    home = torch.cat([state.membership.home, lost])
    memory = dict(state.memory)
    if batchnorm.OWN in memory:
        fresh = run.context.initial[run.context.layout.parameters :].expand(newcomers, -1)
        memory[batchnorm.OWN] = torch.cat([memory[batchnorm.OWN], fresh])
    return replace(state, membership=replace(state.membership, home=home), memory=memory)
