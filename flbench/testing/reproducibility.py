"""Checks of reproducibility: seeds, order of clients, executors, resuming, declared equality."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from flbench.core.client_memory import unpadded
from flbench.core.client_module import ClientModule, LocalWork
from flbench.core.model_bank import plain
from flbench.core.state import Dispatched, Personal, Stage, State, Upload
from flbench.engine import batchnorm
from flbench.engine.options import EngineOptions
from flbench.errors import Undefined
from flbench.plugin.arguments import tensors
from flbench.plugin.isolation import GENERATORS, restore, snapshot
from flbench.results.difference import relative_distance
from flbench.run.composition import compose
from flbench.run.evaluation import evaluate
from flbench.run.history import Evaluation, History
from flbench.run.rounds import round_context
from flbench.suite import Suite
from flbench.testing.check import CheckSkipped, MethodUnderTest, check
from flbench.testing.edge_cases import run_with_failures, usual_run
from flbench.testing.hook_recorder import same_bits
from flbench.testing.small_run import FitFunction, SmallRun, run_small
from flbench.testing.subprocesses import ProcessFailed, in_fresh_process, in_process_group

ORDER = (2, 4, 0, 5, 1, 3)
"""Client i of the relabelled federation is this client of the usual one."""
TOLERANCE = 1e-4
"""Allowed difference of losses where sums are computed in another order, in nats."""
ROUNDING = 1e-5
"""Allowed difference of mean losses in nats; above one nat, relative to the larger loss."""


@check(usual_run)
def same_seed_same_bytes(method: MethodUnderTest) -> None:
    """The same seed gives the same bytes, whatever the state of the global random generators.

    So does a run with newcomers, and one in which clients fail.
    """
    pairs = [
        (method.usual_run, _otherwise_seeded(method.run)),
        (method.newcomers_run, _otherwise_seeded(method.run_with_newcomers)),
    ]
    with suppress(Undefined):
        with_failures = partial(run_with_failures, method)
        pairs.append((with_failures(), _otherwise_seeded(with_failures)))
    for one, other in pairs:
        if differing := differing_keys(one.stable, other.stable):
            raise method.failure(
                f"two runs of one seed differ in {', '.join(differing)}: use only ctx.rng(...) for"
                " random numbers, and neither times nor addresses of objects"
            )


def _otherwise_seeded(run: Callable[[], SmallRun]) -> SmallRun:
    """A run, with the global generators in another state."""
    generators = snapshot(GENERATORS)
    try:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        return run()
    finally:
        restore(generators)


def differing_keys(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Keys of two tables whose values differ."""
    return [name for name in one if one[name] != other[name]]


@check(same_seed_same_bytes)
def trained_alone(method: MethodUnderTest) -> None:
    """A client's training does not depend on which clients were trained before it."""
    differing: list[str] = []

    def train_again(
        fit: FitFunction, start: Dispatched, stage: Stage, work: LocalWork, round_: int
    ) -> Upload:
        """Train every client of a stage a second time, by itself, in reverse order."""
        whole = fit(start, stage, work, round_)
        for index in reversed(range(len(stage.clients))):
            one = torch.tensor([index])
            few = stage.select(one)
            own = fit(start.select(one), few, work, round_)
            pairs = {"params": (own.params[0], whole.params[index])}
            pairs |= {k: (v[0], whole.extras[k][index]) for k, v in own.extras.items()}
            pairs |= {k: kept_pair(v, whole.kept[k], index) for k, v in own.kept.items()}
            pairs["loss"] = own.loss[0], whole.loss[index]
            differing.extend(
                f"{name} of client {int(few.clients[0])} in round {round_}, stage '{stage.label}'"
                for name, pair in pairs.items()
                if not same_bits(*pair)
            )
        return whole

    method.run(around_fit=train_again)
    if differing:
        raise method.failure(
            f"{differing[0]} depends on which clients were trained before: a ClientModule must"
            " keep nothing but parameters, persistent buffers and what it received"
        )


def kept_pair(own: Tensor, whole: Tensor, index: int) -> tuple[Tensor, Tensor]:
    """What a client keeps when it is trained alone and with others, without padding."""
    if own.shape[1:] == whole.shape[1:]:
        return own[0], whole[index]
    return unpadded(own[0]), unpadded(whole[index])


@check(trained_alone)
def relabelled_clients(method: MethodUnderTest) -> None:
    """Clients under permuted ids, with their data and random streams, end with the same results."""
    order = list(ORDER)
    before, after = method.usual_run.last, method.run(order=ORDER).last
    was, now = np.array(mean_losses(before))[order], np.array(mean_losses(after))
    distance = np.abs(was - now)
    if distance.max() > TOLERANCE:
        client = int(distance.argmax())
        raise method.failure(
            f"client {order[client]} under the id {client} ends with another loss"
            f" ({now[client]:.4f}, was {was[client]:.4f}): an index in a list was used as a"
            " client's id, or ids decide something"
        )
    groups = np.array(before.labels)[order], np.array(after.labels)
    if not np.array_equal(*[labels[:, None] == labels for labels in groups]):
        raise method.failure(
            f"groups of the relabelled clients are {groups[1].tolist()}, expected those of"
            f" {groups[0].tolist()}"
        )


def end_of_run(finished: SmallRun) -> dict[str, Any]:
    """The end of a run that two executors must agree on, as plain data."""
    return {
        "loss": mean_losses(finished.last),
        "labels": finished.last.labels,
        "bytes": finished.run.ledger.totals,
        "notes": finished.run.history.notes,
    }


def end_in_process_group(
    method: str, params: dict[str, object], suite: dict[str, Any]
) -> dict[str, Any]:
    """The end of a run, in one of two processes."""
    engine = EngineOptions(executor="sequential", accelerator="cpu", devices=2)
    finished = run_small(compose(method, params), Suite.model_validate(suite), engine=engine)
    return end_of_run(finished)


def plain_suite(method: MethodUnderTest) -> dict[str, Any]:
    """The method's small suite as plain data, for another process."""
    return method.suite().model_dump(mode="json")


@check(trained_alone)
def two_processes(method: MethodUnderTest) -> None:
    """Two processes give the same results as one, byte for byte."""
    params = method.params
    try:
        ends = in_process_group(end_in_process_group, 2, method.name, params, plain_suite(method))
    except ProcessFailed as error:
        raise method.failure(f"in two processes: {error}") from None
    expected = end_of_run(method.usual_run)
    for rank, found in enumerate(ends):
        differing = differing_keys(expected, found)
        if differing:
            raise method.failure(
                f"process {rank} of 2 ends with other {', '.join(differing)} than one process:"
                " hooks must not depend on the process that they run in"
            )


def differing_tensors(one: State, other: State) -> list[str]:
    """The tensors of two states that differ in a bit; NaN equals NaN."""
    return _differing(*(dict(tensors(state, "state")) for state in (one, other)))


def _differing(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    names = sorted(one.keys() | other.keys())
    return [name for name in names if not same_bits(one.get(name), other.get(name))]


def rest_of_run(
    method: str, params: dict[str, object], suite: dict[str, Any], checkpoint: bytes
) -> tuple[bytes, dict[str, Any]]:
    """Resume a run from a checkpoint, in this process.

    Returns:
        The last state's tensors by name, as a file of safetensors; and `SmallRun.stable`.
    """
    finished = run_small(
        compose(method, params), Suite.model_validate(suite), checkpoint=checkpoint
    )
    file: bytes = save({name: _owned(one) for name, one in _state_tensors(finished)})
    return file, finished.stable


def _state_tensors(finished: SmallRun) -> list[tuple[str, Tensor]]:
    return tensors(finished.state, "state")


def _owned(tensor: Tensor) -> Tensor:
    """A plain tensor that shares memory with no other."""
    return torch.as_tensor(plain(tensor)).clone().contiguous()


@check(trained_alone)
def resumed_run(method: MethodUnderTest) -> None:
    """A run that is resumed from its checkpoint gives the same results as an uninterrupted run.

    It is resumed in a fresh process, where nothing is left of what plugin, class, module or
    ClientModule kept in the rounds before.
    """
    rounds = method.suite().rounds
    for cut in sorted({max(1, rounds // 2), max(1, rounds - 1)}):
        _resumed_after(method, cut)


def _resumed_after(method: MethodUnderTest, cut: int) -> None:
    """Compare a run that is resumed after a round with the usual one."""
    checkpoint = method.run(last=cut).checkpoint
    try:
        file, stable = in_fresh_process(
            rest_of_run, method.name, method.params, plain_suite(method),
            checkpoint,
        )  # fmt: skip
    except ProcessFailed as error:
        raise method.failure(f"resumed after round {cut}: {error}") from None
    whole = {name: _owned(one) for name, one in _state_tensors(method.usual_run)}
    differing = _differing(whole, load(file))
    differing += differing_keys(method.usual_run.stable, stable)
    if differing:
        raise method.failure(
            f"resumed after round {cut} in another process it ends with other {differing[0]}: what"
            " is kept between rounds belongs in `memory`, not on the plugin, its class, its module"
            " or the ClientModule"
        )


@check(resumed_run)
def seeds_apart(method: MethodUnderTest) -> None:
    """A seed gives the same bytes, whichever seed was run before it in the same process.

    `flbench run --seeds N` runs all of them in one.
    """
    _ = method.usual_run  # of seed 0
    after = method.run(seed=1).stable
    try:
        alone = in_fresh_process(run_of_seed, method.name, method.params, plain_suite(method), 1)
    except ProcessFailed as error:
        raise method.failure(f"seed 1: {error}") from None
    if differing := differing_keys(alone, after):
        raise method.failure(
            f"seed 1 after seed 0 differs from seed 1 alone in {', '.join(differing)}: what is kept"
            " on its class or its module (a cache) is not that of the seed: compute it in `setup`"
            " and keep it in `memory`"
        )


def run_of_seed(
    method: str, params: dict[str, object], suite: dict[str, Any], seed: int
) -> dict[str, Any]:
    """`SmallRun.stable` of a seed, run in this process."""
    return run_small(compose(method, params), Suite.model_validate(suite), seed=seed).stable


@check(usual_run)
def judged_singly(method: MethodUnderTest) -> None:
    """A sample is predicted without a look at the other samples of its batch.

    Where the answer of `personalise` says `transductive`, the samples of a client are predicted
    together, and without a look at other clients' samples.
    """
    finished = method.usual_run
    run, state = finished.run, finished.state
    ctx = round_context(run, state.round)
    personal = run.hooks.personalise(state, ctx.everybody, ctx)
    personal = batchnorm.before_evaluation(
        run.suite.buffers, personal, state, ctx.everybody, ctx.layout
    )
    work = partial(run.hooks.local_work, state, ctx=ctx)
    pieces = 1 if _is_transductive(personal) else len(ctx.everybody)
    try:
        again = _joined(
            [
                evaluate(
                    run.executor,
                    alone.select(ids),
                    state,
                    run.held_out,
                    ids,
                    work,
                    metrics=run.metrics and run.metrics.headline,
                )
                for alone in [_one_by_one(personal)]
                for ids in reversed(ctx.everybody.split(pieces))
            ]
        )
    except Exception as error:
        raise method.failure(
            f"cannot predict one sample alone: {type(error).__name__}: {error}"
        ) from None
    apart = [
        name
        for name, before in finished.last.others.items()
        if _largest_distance([before], [again.others[name]]) > ROUNDING
    ]
    apart += different_evaluations(finished.last, again)
    if apart and pieces == 1:
        raise method.failure(
            f"{apart[0]} are others if each client's test samples are predicted by themselves, last"
            " client first: a prediction may not depend on other clients' samples"
        )
    if apart:
        raise method.failure(
            f"{apart[0]} are others if test samples are predicted one by one: a prediction may"
            " not depend on the other samples of its batch; one that adapts to the test samples of"
            " its own client says so with `Personal(transductive=True)`"
        )


def _is_transductive(personal: Personal) -> bool:
    """Whether a client's samples are predicted together, of one of its models at least."""
    return personal.transductive or any(map(_is_transductive, personal.others.values()))


def _joined(parts: Sequence[Evaluation]) -> Evaluation:
    """What the clients of several evaluations have in theirs, the last part first."""
    ordered = list(reversed(parts))

    def mean(name: str) -> float | None:
        known = [value for one in ordered if (value := one.others[name]) is not None]
        return float(np.mean(known)) if known else None

    return replace(
        ordered[0],
        others={name: mean(name) for name in ordered[0].others},
        correct=[value for one in ordered for value in one.correct],
        tested=[value for one in ordered for value in one.tested],
        loss=[value for one in ordered for value in one.loss],
        validation_correct=[value for one in ordered for value in one.validation_correct],
        validation_tested=[value for one in ordered for value in one.validation_tested],
        values=_of_all(ordered, "values"),
        validation_values=_of_all(ordered, "validation_values"),
    )


def _of_all(parts: Sequence[Evaluation], name: str) -> list[float | None] | None:
    """The headlines of all clients; None where samples have classes."""
    if parts[0].task == "classes":
        return None
    return [value for one in parts for value in getattr(one, name)]


def _one_by_one(personal: Personal) -> Personal:
    """The same models, which predict every sample alone if they are not transductive."""

    def predict(module: ClientModule, x: Tensor) -> Tensor:
        rule = personal.predictor or (lambda module, x: module.predict(x))
        return torch.cat([rule(module, sample) for sample in x.split(1)])

    others = {name: _one_by_one(other) for name, other in personal.others.items()}
    rule = personal.predictor if personal.transductive else predict
    return replace(personal, predictor=rule, others=others)


@check(same_seed_same_bytes)
def declared_equal(method: MethodUnderTest) -> None:
    """With the parameters that its author declares, its models equal those of another method.

    Models are compared bit for bit, or to the tolerance that the author declares (`within`).
    Evaluated numbers are compared to rounding (`different_numbers`), because the two methods may
    evaluate other samples in one batch. Where a client module has more parameters (APFL has two
    networks), models have another shape and only the evaluated numbers are compared.
    """
    if not method.conformance.equals:
        raise CheckSkipped("its author declares no equal method (`conformance.equals`)")
    for other, params in method.conformance.equals.items():
        mine = run_small(method.compose(**params), method.suite())
        its = run_small(compose(other), method.suite())
        within = method.conformance.within.get(other, 0.0)
        differing = different_numbers(mine.run.history, its.run.history, within)
        if mine.served.shape == its.served.shape and not same_models(mine, its, within):
            differing.insert(0, "clients' models")
        if differing:
            settings = ", ".join(f"{name}={value}" for name, value in params.items())
            raise method.failure(
                f"with {settings or 'its defaults'} it does not equal {other}, as declared:"
                f" {', '.join(differing)} differ"
            )


def same_models(mine: SmallRun, its: SmallRun, within: float) -> bool:
    """Whether clients have the same models: bit for bit, or apart by a share of their way."""
    if not within:
        return same_bits(mine.served, its.served)
    moved = (its.served - its.run.context.initial).norm(dim=1)
    return bool(((mine.served - its.served).norm(dim=1) <= within * moved).all())


def different_numbers(one: History, other: History, within: float = 0.0) -> list[str]:
    """Names of the evaluated numbers of two runs that differ by more than rounding, or `within`.

    Another batch of samples may change the last bits of an evaluation: some matrix libraries choose
    their kernel by the shape of the batch. So losses may differ by `ROUNDING`, and in each round
    one sample of the federation may be classified differently, because its logits may be equal.
    Groups are not compared, because their labels may differ.
    """
    first, second = one.last, other.last
    assert first is not None and second is not None, "the last round is evaluated"
    one_sample = 1 / (len(first.tested) * min(first.tested))
    near = max(ROUNDING, within)
    limits = {"loss": near}  # curves are rounded
    if first.task == "classes":
        limits = {"accuracy": one_sample + ROUNDING, **limits}
    names = [
        name
        for name, limit in limits.items()
        if _largest_distance(one.curves[name], other.curves[name]) > limit
    ]
    return names + different_evaluations(first, second, near)


def different_evaluations(
    first: Evaluation, second: Evaluation, near: float = ROUNDING
) -> list[str]:
    """Names of the numbers of two evaluations that differ by more than rounding."""
    names = []
    for name in ("correct", "validation_correct"):
        pairs = zip(getattr(first, name), getattr(second, name), strict=True)
        if sum(abs(a - b) for a, b in pairs) > 1:
            names.append(f"clients' {name}")
    for name in ("values", "validation_values"):
        one, other = getattr(first, name) or (), getattr(second, name) or ()
        if not _largest_distance(one, other) <= near:
            names.append(f"clients' {name}")
    if not _largest_distance(mean_losses(first), mean_losses(second)) <= near:
        names.append("clients' loss")
    return names


def mean_losses(evaluation: Evaluation) -> list[float]:
    """Mean loss of each client, in nats."""
    pairs = zip(evaluation.loss, evaluation.tested, strict=True)
    return [loss / tested for loss, tested in pairs]


def _largest_distance(one: Sequence[float | None], other: Iterable[float | None]) -> float:
    pairs = zip(one, other, strict=True)
    return max((relative_distance(a, b) for a, b in pairs), default=0.0)
