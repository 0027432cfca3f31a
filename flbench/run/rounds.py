"""The orchestrator: the round loop of federated learning, with a hook at every decision.

It draws the cohort of each round, lets it train, averages, and has every client evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from flbench.core import client_memory
from flbench.core.client_module import ClientModule, LocalWork
from flbench.core.clock_settings import LINKS
from flbench.core.context import Context
from flbench.core.file_memory import pieces
from flbench.core.model_bank import all_finite
from flbench.core.seeding import rng
from flbench.core.state import Personal, Stage, State, Upload
from flbench.core.types import Phase
from flbench.engine import batchnorm, split_training
from flbench.engine.client_metrics import ClientMetrics
from flbench.engine.clock import StageTimer
from flbench.engine.encoding import encoded
from flbench.engine.ledger import CommunicationLedger
from flbench.engine.machine.processor import processor
from flbench.engine.processes.process_group import ProcessGroup
from flbench.engine.sequential import Sequential
from flbench.errors import Diverged, Undefined, UserError
from flbench.federation.federation import Newcomers, Samples, label_counts
from flbench.federation.periods import Period, Periods
from flbench.federation.target_scale import TargetScale
from flbench.metrics import EPOCHS, measured
from flbench.plugin.hooks import HookCaller
from flbench.plugin.isolation import streams_kept
from flbench.results.events import RoundRecord
from flbench.results.schema import Fingerprint
from flbench.run import idle_clients
from flbench.run.checkpoint import CheckpointWriter, Origin
from flbench.run.context import RunContext, RunServices
from flbench.run.evaluation import evaluate_judged, selection_quality, with_own_models
from flbench.run.history import Evaluation, History
from flbench.run.saving import Saving
from flbench.suite import Suite
from flbench.tasks import TASKS, TaskName

FEW = 10_000
"""Of more clients than these, a cohort is drawn without shuffling all of them."""


@dataclass
class Run:
    """One (suite, method, seed) with everything it stands on; `runner.prepare` builds it.

    Attributes:
        context: the context of round 0; each round gets a copy.
        scaled: scalars that say how features are scaled (`Federation.scaled`).
        held_out: the test samples, which no hook can reach from its context.
        checkpoint: where the last whole round is kept; None = nowhere.
        judged: ids of the clients that are judged, ascending; None = all.
        metrics: what is computed of each client's test samples beside accuracy; None = nothing.
        saving: takes what is saved beside the result; None = nothing is.
        periods: how the data change; None = they never do. `context`, `held_out`, `groups` and the
            executor's samples are those of the period that `enter_period` has entered.
        period: that period.
        scale: of numbers that are predicted; None = other targets.
    """

    suite: Suite
    seed: int
    hooks: HookCaller
    executor: Sequential
    context: RunContext
    services: RunServices
    held_out: Samples
    groups: Tensor | None
    ledger: CommunicationLedger
    history: History
    origin: Origin
    newcomers: Newcomers | None = None
    scaled: Mapping[str, int] = field(default_factory=dict)
    checkpoint: Path | None = None
    judged: Tensor | None = None
    metrics: ClientMetrics | None = None
    saving: Saving | None = None
    periods: Periods | None = None
    period: Period | None = None
    scale: TargetScale | None = None

    @property
    def task(self) -> TaskName:
        """What is predicted."""
        return self.context.task

    @property
    def marks(self) -> Fingerprint:
        """What makes two results comparable."""
        return self.origin.marks


def run_rounds(
    run: Run, state: State, last: int | None = None, keeper: CheckpointWriter | None = None
) -> State:
    """Run the rounds that are left; the history and the ledger are in `run`.

    Args:
        last: stop after this round, which is the last one for the sinks; None = the suite's.
        keeper: keeps whole rounds; None = at the checkpoint of the run.
    """
    last = run.suite.rounds if last is None else last
    keeper = keeper or CheckpointWriter(run.checkpoint, run.origin, run.services.say)
    enter_period(run, state.round)
    keeper.keep_last(state, run.ledger, run.history)
    with keeper.guarding(), run.hooks.watching():
        while state.round < last:
            enter_period(run, state.round + 1)
            with run.services.timed("total"):
                state, losses = run_round(run, state)
                record = evaluate_round(run, state, losses)
            run.history.seconds = dict(run.services.seconds)
            with run.services.timed("total"), run.services.timed("checkpoint"):
                keeper.keep(state, run.ledger, run.history)
                keeper.keep_last(state, run.ledger, run.history)
            record = replace(record, rounds=last)
            run.hooks.listen("round_finished", record=record, state=state)
    return state


def run_round(run: Run, state: State) -> tuple[State, list[float]]:
    """Run one round; return the new state and the training losses of its uploads."""
    hooks, timed, policy = run.hooks, run.services.timed, run.suite.buffers
    ctx = round_context(run, state.round + 1)
    losses: list[float] = []
    logged: dict[str, tuple[float, int]] = {}
    run.ledger.open_round()
    run.services.own_buffers = state.memory.get(batchnorm.OWN)
    timer = StageTimer(run.services.simulated_clock, run.ledger, ctx.round)
    planned = hooks.plan(state, ctx)
    if ctx.round == 1:
        _tell_of_idle_deadlines(run, planned)
    for stage in map(timer.called, map(partial(there, run, ctx.round), planned)):
        if not len(stage.clients):
            run.services.warn(f"round {ctx.round}: no client of stage '{stage.label}' was there")
            continue
        state = regroup(run, state, stage, "before", None, ctx)
        with timed("dispatch"):
            start = hooks.dispatch(state, stage, ctx)
            start = batchnorm.before_training(
                policy, start, state, stage.clients, ctx.layout, ctx.initial
            )
            most = batchnorm.most_received(
                policy, ctx.layout, start.params[:, 0], start.server_mask
            )
            run.ledger.start(start, stage, most)
            work = hooks.local_work(state, stage, ctx)
        with timed("train"), hooks.reading("local training", ctx, state=state, start=start):
            crossings = split_training.follow(run.executor, start, stage, work, ctx.round)
            with streams_kept():
                upload = run.executor.fit(start, stage, work, ctx.round)
            upload = logged_by_clients(run, stage, upload, logged)
            refuse_divergence(upload, stage, ctx, whose_loss(run, work))
            tell_of_idle_clients(run, stage, upload)
            if run.history.trained is not None:
                run.history.trained += trained_epochs(run.executor, stage, upload)
            upload, start = timer.answers(stage, upload, start)
            run.history.add_own(stage, upload)
            upload, state = kept_by_clients(upload, state)
        with timed("encode"):
            coders = hooks.encode(state, stage, upload, ctx)
            with hooks.reading("encode", ctx, state=state, start=start, upload=upload):
                upload, state = encoded(upload, start, coders, state, ctx.layout.parameters)
        run.ledger.upload(upload, start, stage)
        split_training.count(run.ledger, crossings, upload, stage)
        called = stage
        stage, upload, now = timer.arrive(stage, upload, state.seconds)
        state = replace(state, seconds=now)
        if len(upload.ids):
            upload = hooks.decode(state, called, upload, ctx)
            if len(upload.ids) < len(stage.clients):
                stage = stage.select(torch.isin(stage.clients, upload.ids).nonzero()[:, 0])
        if not len(upload.ids):
            if stage.started is None:  # it was waited for
                run.services.warn(f"round {ctx.round}: no upload of stage '{called.label}' arrived")
            continue
        upload, state = batchnorm.after_training(
            policy, upload, state, stage, ctx.layout, ctx.initial
        )
        run.services.own_buffers = state.memory.get(batchnorm.OWN)
        state = regroup(run, state, stage, "after", upload, ctx)
        if stage.aggregates:
            with timed("aggregate"):
                upload = hooks.weighted(state, stage, upload, ctx)
                models = hooks.aggregate(state, stage, upload, ctx)
                state = replace(state, models=models.rows).remember(models.memory)
            losses += upload.loss.tolist()
        state = replace(state, seconds=timer.afterwards(state.seconds))
    if ctx.round == 1:
        _tell_of_idle_links(run)
    return replace(state, round=ctx.round), losses


def tell_of_idle_clients(run: Run, stage: Stage, upload: Upload) -> None:
    """Tell once in a run of clients that were to train in a stage and made no step.

    Raises:
        Undefined: they are more than half of its clients.
    """
    idle, named = idle_clients.of_upload(stage, upload), run.services.idle_stages
    if stage.label in named:
        return
    text = idle_clients.message(idle, len(upload.ids), stage.label, run.executor.workspace)
    if text:
        named.add(stage.label)
        run.services.say(text)


def _tell_of_idle_links(run: Run) -> None:
    """Say in the first round that nothing went over the links of edge servers, if they are set."""
    clock, sent = run.suite.clock, run.ledger.client_bits
    given = [] if clock is None else [name for name in LINKS if getattr(clock, name) is not None]
    if given and not bool((sent["client-edge"] + sent["edge-cloud"]).any()):
        links = " and ".join(f"'clock.{name}'" for name in given)
        run.services.warn(f"round 1: {links} without effect: no client has an edge server")


def _tell_of_idle_deadlines(run: Run, planned: Sequence[Stage]) -> None:
    """Say in the first round what of the clock has no effect where no stage waits for a cohort."""
    clock = run.suite.clock
    if clock is None or any(stage.started is None for stage in planned):
        return
    given = [name for name in ("deadline", "absent") if getattr(clock, name)]
    if given:
        names = " and ".join(f"'clock.{name}'" for name in given)
        run.services.say(f"{names} without effect: every client trains at times of its own")


def logged_by_clients(
    run: Run, stage: Stage, upload: Upload, sums: dict[str, tuple[float, int]]
) -> Upload:
    """The upload without what the clients' module logged, of which the means are noted.

    A mean is weighted by the clients' samples, over those that logged the number. Its name begins
    with that of the module's plugin; of a stage other than "train", its label follows.
    """
    who = run.executor.workspace.module.provided_by
    where = who if stage.label == "train" else f"{who}.{stage.label}"
    for own, samples in zip(upload.logged, upload.samples.tolist(), strict=False):
        for name, value in own.items():
            total, weight = sums.get(f"{where}.{name}", (0.0, 0))
            sums[f"{where}.{name}"] = total + value * samples, weight + samples
    for name, (total, weight) in sums.items() if upload.logged else ():
        mean = total / weight if weight else math.nan
        run.services.notes[name] = _short(mean) if math.isfinite(mean) else None
    return replace(upload, logged=()) if upload.logged else upload


def regroup(
    run: Run, state: State, stage: Stage, phase: Phase, upload: Upload | None, ctx: Context
) -> State:
    """Score, then cluster."""
    with run.services.timed("score"):
        scores = run.hooks.score(state, stage, phase, upload, ctx)
        state = state.remember(scores.memory if scores else {})
        run.history.add_scores(ctx.round, scores)
    with run.services.timed("cluster"):
        return state.regroup(run.hooks.cluster(state, stage, phase, scores, ctx))


def enter_period(run: Run, round_: int) -> None:
    """Let the run have the data, the true groups and the clients of the period of a round."""
    if run.periods is None or run.period is (period := run.periods.at(round_)):
        return
    groups, samples = period.groups, period.of(run.periods.visible)
    run.period, run.groups = period, groups
    run.executor.samples, run.held_out = samples, period.of(run.periods.held_out)
    run.context = replace(
        run.context,
        samples=samples.sizes("train"),
        label_counts=label_counts(samples, run.context.outputs).cpu(),
        truth=None if run.context.truth is None else lambda: groups,
    )


def there(run: Run, round_: int, stage: Stage) -> Stage:
    """The stage for the clients that are there in this period.

    A stage that is not aggregated (a probe) asks everybody, as methods that group all clients in
    one need it; the result says so.

    Raises:
        Undefined: clients leave or come in some period, and the stage trains on the samples of all
            clients, or they train at times of their own.
    """
    if run.period is None or run.periods is None:
        return stage
    if not run.periods.keep_all and (stage.pooled or stage.started is not None):
        what = "pools the samples" if stage.pooled else "takes uploads at any time"
        raise Undefined(
            f"stage '{stage.label}' {what} of all clients, and periods of the suite leave some out:"
            " expected a method that calls a cohort"
        )
    present = run.period.present[stage.clients]
    if bool(present.all()):
        return stage
    if not stage.aggregates:
        absent = int((~present).sum())
        run.services.warn(f"round {round_}: stage '{stage.label}' asks {absent} absent clients")
        return stage
    return stage.select(present.nonzero()[:, 0])


def evaluate_round(run: Run, state: State, losses: list[float]) -> RoundRecord:
    """Evaluate every client's personal model and write the round down."""
    suite, ctx = run.suite, round_context(run, state.round)
    found: Evaluation | None = None
    if state.round % suite.eval_every == 0 or state.round == suite.rounds:
        with run.services.timed("evaluate"):
            found = evaluated(run, state, ctx)
    heard = list(filter(math.isfinite, losses))
    groups = None if run.groups is None else run.groups.tolist()
    curves = measured(None if found is None else found.outcome(groups), run.task)
    name = TASKS[run.task].headline
    refuse_undefined_headline(found, name)
    metrics: dict[str, float | None] = {
        name: curves.pop(name),
        f"{name}_validation": None if found is None else found.validation_headline(),
        "loss": curves.pop("loss"),
        "train_loss": sum(heard) / len(heard) if heard else None,
        **curves,
        **{f"{name}_{other}": value for other, value in (found.others if found else {}).items()},
    }
    chosen = selection_quality(state.membership, run.groups, ctx.counted)
    if found is not None and chosen["selection_error"] is not None:
        metrics |= chosen
    metrics |= {f"bytes_{way}": float(run.ledger.total(way)) for way in run.ledger.bits}
    metrics["slowest_down"] = float(run.ledger.slowest("down"))
    if run.services.simulated_clock is not None:
        metrics["simulated_seconds"] = state.seconds
    if run.history.trained is not None:
        metrics[EPOCHS] = run.history.trained / suite.training_clients
    run.history.add_round({name: _short(value) for name, value in metrics.items()}, found)
    if run.saving and found is not None and found is run.history.shown(suite.headline):
        run.saving.show()
    run.history.add_reads(run.hooks.read)
    run.history.add_rounds_read(run.services.rounds_read)
    _tell_what_computes(run, state.round)
    notes, warnings = run.services.drain()
    run.history.notes += [{"round": state.round, "name": k, "value": v} for k, v in notes.items()]
    run.history.warnings += warnings
    labels = None if found is None else found.labels
    return RoundRecord(state.round, suite.rounds, metrics, labels, notes, tuple(warnings))


def evaluated(run: Run, state: State, ctx: RunContext) -> Evaluation:
    """Evaluate every client's personal model.

    Raises:
        Diverged: the loss of one is not finite.
    """
    suite, everybody = run.suite, ctx.everybody
    personal = run.hooks.personalise(state, everybody, ctx)
    personal = batchnorm.before_evaluation(suite.buffers, personal, state, everybody, ctx.layout)
    _tell_of_transductive(run, personal)
    tune = suite.ft_epochs if state.round == suite.rounds else 0
    work = partial(run.hooks.local_work, state, ctx=ctx)
    judged = everybody if run.judged is None else run.judged
    present = None if run.period is None else run.period.present
    if present is not None:
        judged = judged[present[judged]]
    may_show = suite.headline == "validation" or state.round == suite.rounds
    further = work, tune, run.metrics, run.saving if may_show else None
    with run.hooks.reading("evaluation", ctx, state=state, personal=personal):
        found = evaluate_judged(run.executor, personal, state, run.held_out, judged, *further)
        if run.history.own is not None:
            own, held_out = run.history.own, run.held_out
            judged_too = run.executor, own, personal, state, held_out
            found = with_own_models(*judged_too, found, run.metrics)
    if present is not None:
        pairs = zip(found.labels, present.tolist(), strict=True)
        found = replace(found, labels=[g if is_there else -1 for g, is_there in pairs])
    if not math.isfinite(found.mean_loss()):
        raise Diverged(f"round {ctx.round}: test loss is not finite: lower local.lr")
    return found


def complete_saving(run: Run, state: State) -> None:
    """Take what is saved, where a run was resumed after the round that its summary reports.

    That round is evaluated once more, of which nothing is counted or said twice; if it is not the
    last one, its models are gone, and nothing is saved.
    """
    assert run.saving is not None, "something is saved"
    shown = run.history.shown(run.suite.headline).round
    if run.saving.shown is not None and run.saving.shown.round == shown:
        return
    run.saving.shown = None
    if shown != state.round:
        run.services.say(
            f"nothing is saved: validation has chosen round {shown}, whose models were gone when"
            " the run was resumed; run it again with --force, or set headline=last"
        )
        return
    services, ledger = run.services, run.services.ledger
    services.ledger = CommunicationLedger(run.context.clients)
    services.own_buffers = state.memory.get(batchnorm.OWN)
    enter_period(run, state.round)
    try:
        with run.hooks.watching():
            evaluated(run, state, round_context(run, state.round))
    finally:
        services.ledger = ledger
        services.drain()
    run.saving.show()


def refuse_undefined_headline(found: Evaluation | None, name: str) -> None:
    """Refuse a federation of which nobody can be judged.

    Raises:
        UserError: the headline is defined for no client.
    """
    if found is not None and found.headline() is None:
        raise UserError(
            f"{name} is undefined for all clients: their test samples have no label; expected some"
        )


def round_context(run: Run, round_: int) -> RunContext:
    """The context of a round, with its cohort drawn from the round's own address."""
    samples, present = run.executor.samples, None
    if run.period is not None:
        present = names_there(samples, run.period)
    sampled = samples.called(cohort(run.suite, run.seed, round_, present))
    local = run.context.local.at(round_)
    return replace(run.context, round=round_, cohort=sampled, local=local)


def names_there(samples: Samples, period: Period) -> Tensor | None:
    """Whether the client of each name is there in a period, shape (N,), bool; None = all are."""
    if bool(period.present.all()):
        return None
    by_name = period.present.clone()
    by_name[[samples.name(client) for client in range(len(by_name))]] = period.present
    return by_name


def cohort(suite: Suite, seed: int, round_: int, present: Tensor | None = None) -> Tensor:
    """Ids sampled in a round, uniformly without replacement, ascending, shape (n,).

    Of more than `FEW` clients, in a time that does not grow with their number. With `present`,
    shape (N,), as many are drawn of those that are there, or all of these.
    """
    clients, size = suite.training_clients, suite.cohort_size
    generator = rng(seed, "cohort", round_)
    if present is not None:
        order = generator.permutation(clients)
        drawn = order[present.numpy()[order]][:size]
    elif clients > FEW:
        drawn = generator.choice(clients, size, replace=False, shuffle=False)
    else:
        drawn = generator.permutation(clients)[:size]
    return torch.as_tensor(drawn).sort().values


def kept_by_clients(upload: Upload, state: State) -> tuple[Upload, State]:
    """The upload without what stays with the clients, which the state's memory has then."""
    kept = {
        name: client_memory.store(state.memory[name], upload.ids, entries.to(state.memory[name]))
        for name, entries in upload.kept.items()
    }
    return (replace(upload, kept={}), state.remember(kept)) if kept else (upload, state)


def _tell_of_transductive(run: Run, personal: Personal) -> None:
    """Say once in the result that predictions look at all test samples of a client."""
    marked = [name for name, other in personal.others.items() if other.transductive]
    said = ["the predictions"] * personal.transductive + [f"'{name}'" for name in marked]
    for what in said:
        text = f"{what} of a client look at all of its test samples together (transductive)"
        if text not in run.history.warnings:
            run.services.warn(text)


def _tell_what_computes(run: Run, round_: int) -> None:
    """Warn where the rounds before were computed by another executor, or on another processor."""
    history, executor = run.history, run.executor
    here = {
        "executor": _executor(executor),
        "processor": processor(executor.workspace.device),
    }
    for name, mine in here.items():
        before = getattr(history, name)
        setattr(history, name, mine)
        if before not in ("", mine):
            run.services.warn(
                f"rounds before {round_} were computed by another {name} ({before}) than this one"
                f" ({mine}): equal up to the order of sums"
            )


def _executor(executor: Sequential) -> str:
    """The name of an executor; in lanes, bits depend on how many processes share the clients."""
    processes = ProcessGroup.of(executor.workspace.fabric).size
    is_one = processes == 1 or executor.name == "sequential"
    return executor.name if is_one else f"{executor.name} in {processes} processes"


def trained_epochs(executor: Sequential, stage: Stage, upload: Upload) -> float:
    """Local epochs that the clients of a stage have trained, all of them together.

    Optimiser steps over those that a pass over the client's own training samples takes; every
    candidate model counts. What a server trains is no client's epoch.
    """
    one = executor.planned_steps(Stage("train", stage.clients, 1)).clamp(min=1)
    return float((upload.model_steps / one).sum(dtype=torch.float64))


def whose_loss(run: Run, work: LocalWork) -> str:
    """The plugins whose loss, terms or training step the clients of a stage train with."""
    module = run.executor.workspace.module
    step = "" if type(module) is ClientModule else module.provided_by
    return ", ".join(dict.fromkeys(filter(None, (work.provided_by, step))))


def refuse_divergence(upload: Upload, stage: Stage, ctx: Context, whose: str = "") -> None:
    """Stop when a client's model is no longer finite; `whose` says who provides the loss."""
    finite = finite_clients(upload.params)
    if not bool(finite.all()):
        lost = upload.ids[~finite].tolist()
        raise Diverged(
            f"round {ctx.round}: parameters of client {lost[0]} are not finite after stage"
            f" '{stage.label}' ({len(lost)} of {len(finite)} clients): lower local.lr"
            + (f", or mend the loss of {whose}, if it is not finite at the start" if whose else "")
        )


def finite_clients(params: Tensor) -> Tensor:
    """Which clients' candidates, shape (n, c, W), are finite: shape (n,), bool."""
    if params.device.type == "cpu":
        return torch.tensor([all(map(all_finite, pieces(row))) for row in params.unbind()])
    sums = params.flatten(1).sum(dim=1, dtype=torch.float64)  # waits for the device once
    return sums.isfinite().cpu()


def _short(value: float | None) -> float | None:
    """Six decimals are enough for a curve, and none for a whole number."""
    if value is None:
        return None
    return int(value) if float(value).is_integer() else round(value, 6)
