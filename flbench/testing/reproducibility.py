"""Checks of reproducibility: seeds, order of clients, executors, resuming, declared equality."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flbench.core.client import LocalWork
from flbench.core.client_memory import unpadded
from flbench.core.state import Dispatched, Stage, State, Upload
from flbench.engine.distributed import select_clients
from flbench.engine.options import EngineOptions
from flbench.plugin.isolation import GENERATORS, restore, snapshot
from flbench.results.difference import relative_distance
from flbench.run.composition import compose
from flbench.run.history import Evaluation, History
from flbench.testing.check import CheckSkipped, MethodUnderTest, check
from flbench.testing.edge_cases import usual_run
from flbench.testing.hook_recorder import same_bits, tensors
from flbench.testing.small_run import Fit, SmallRun, run_small, small_suite
from flbench.testing.subprocesses import ProcessFailed, in_process_group

ORDER = (2, 4, 0, 5, 1, 3)
"""Client i of the relabelled federation is this client of the usual one."""
TOLERANCE = 1e-4
"""Allowed difference of losses where sums are computed in another order, in nats."""
ROUNDING = 1e-5
"""Allowed difference of mean losses in nats; above one nat, relative to the larger loss."""


@check(usual_run)
def same_seed_same_bytes(method: MethodUnderTest) -> None:
    """The same seed gives the same bytes, whatever the state of the global random generators."""
    generators = snapshot(GENERATORS)
    try:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        again = method.run().stable
    finally:
        restore(generators)
    differing = differing_keys(method.usual_run.stable, again)
    if differing:
        raise method.failure(
            f"two runs of one seed differ in {', '.join(differing)}: use only ctx.rng(...) for"
            " random numbers, and neither times nor addresses of objects"
        )


def differing_keys(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Keys of two tables whose values differ."""
    return [name for name in one if one[name] != other[name]]


@check(same_seed_same_bytes)
def trained_alone(method: MethodUnderTest) -> None:
    """A client's training does not depend on which clients were trained before it."""
    differing: list[str] = []

    def train_again(
        fit: Fit, start: Dispatched, stage: Stage, work: LocalWork, round_: int
    ) -> Upload:
        """Train every client of a stage a second time, by itself, in reverse order."""
        whole = fit(start, stage, work, round_)
        for index in reversed(range(len(stage.clients))):
            one = torch.tensor([index])
            few = stage.select(one)
            own = fit(select_clients(start, one), few, work, round_)
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
    method: str, params: dict[str, object], changes: dict[str, Any]
) -> dict[str, Any]:
    """The end of a run, in one of two processes."""
    engine = EngineOptions(executor="sequential", accelerator="cpu", devices=2)
    finished = run_small(compose(method, params), small_suite(**changes), engine=engine)
    return end_of_run(finished)


@check(trained_alone)
def two_processes(method: MethodUnderTest) -> None:
    """Two processes give the same results as one, byte for byte."""
    suite = method.suite().model_dump(exclude_defaults=True, exclude={"name", "version", "summary"})
    try:
        ends = in_process_group(
            end_in_process_group, 2, method.name, dict(method.conformance.params), suite
        )
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


@check(trained_alone)
def vectorised_clients(method: MethodUnderTest) -> None:
    """The vectorised executor gives the same results as the sequential one, to rounding."""
    found = end_of_run(method.run(engine=EngineOptions(executor="vectorised", accelerator="cpu")))
    expected = end_of_run(method.usual_run)
    distance = np.abs(np.subtract(found["loss"], expected["loss"]))
    if distance.max() > TOLERANCE:
        raise method.failure(
            f"with --executor vectorised client {int(distance.argmax())} ends"
            f" {distance.max():.1e} nats away: a step must not depend on a tensor's value or on"
            " numbers kept on the module"
        )
    if found["bytes"] != expected["bytes"]:
        raise method.failure("with --executor vectorised other numbers of bytes are sent")


def differing_tensors(one: State, other: State) -> list[str]:
    """The tensors of two states that differ in a bit; NaN equals NaN."""
    first, second = (dict(tensors(state, "state")) for state in (one, other))
    names = sorted(first.keys() | second.keys())
    return [name for name in names if not same_bits(first.get(name), second.get(name))]


@check(trained_alone)
def resumed_run(method: MethodUnderTest) -> None:
    """A run that is resumed from its checkpoint gives the same results as an uninterrupted run."""
    cut = max(1, method.suite().rounds // 2)
    whole, again = method.usual_run, method.run(resume_after=cut)
    differing = differing_tensors(whole.state, again.state)
    differing += differing_keys(whole.stable, again.stable)
    if differing:
        raise method.failure(
            f"resumed after round {cut} it ends with other {differing[0]}: what is kept between"
            " rounds belongs in `memory`, not on the plugin or its module"
        )


@check(same_seed_same_bytes)
def declared_equal(method: MethodUnderTest) -> None:
    """With the parameters that its author declares, its models equal those of another method.

    Models are compared bit for bit. Evaluated numbers are compared to rounding
    (`different_numbers`), because the two methods may evaluate other samples in one batch. Where a
    client module has more parameters (APFL has two networks), models have another shape and only
    the evaluated numbers are compared.
    """
    if not method.conformance.equals:
        raise CheckSkipped("its author declares no equal method (`conformance.equals`)")
    for other, params in method.conformance.equals.items():
        mine = run_small(method.compose(**params), method.suite())
        its = run_small(compose(other), method.suite())
        differing = different_numbers(mine.run.history, its.run.history)
        if mine.served.shape == its.served.shape and not same_bits(mine.served, its.served):
            differing.insert(0, "clients' models")
        if differing:
            settings = ", ".join(f"{name}={value}" for name, value in params.items())
            raise method.failure(
                f"with {settings or 'its defaults'} it does not equal {other}, as declared:"
                f" {', '.join(differing)} differ"
            )


def different_numbers(one: History, other: History) -> list[str]:
    """Names of the evaluated numbers of two runs that differ by more than rounding.

    Another batch of samples may change the last bits of an evaluation: some matrix libraries choose
    their kernel by the shape of the batch. So losses may differ by `ROUNDING`, and in each round
    one sample of the federation may be classified differently, because its logits may be equal.
    Groups are not compared, because their labels may differ.
    """
    first, second = one.last, other.last
    assert first is not None and second is not None, "the last round is evaluated"
    one_sample = 1 / (len(first.tested) * min(first.tested))
    limits = {"accuracy": one_sample + ROUNDING, "loss": ROUNDING}  # curves are rounded
    names = [
        name
        for name, limit in limits.items()
        if _largest_distance(one.curves[name], other.curves[name]) > limit
    ]
    for name in ("correct", "validation_correct"):
        pairs = zip(getattr(first, name), getattr(second, name), strict=True)
        if sum(abs(a - b) for a, b in pairs) > 1:
            names.append(f"clients' {name}")
    if _largest_distance(mean_losses(first), mean_losses(second)) > ROUNDING:
        names.append("clients' loss")
    return names


def mean_losses(evaluation: Evaluation) -> list[float]:
    """Mean loss of each client, in nats."""
    pairs = zip(evaluation.loss, evaluation.tested, strict=True)
    return [loss / tested for loss, tested in pairs]


def _largest_distance(one: Sequence[float | None], other: Iterable[float | None]) -> float:
    pairs = zip(one, other, strict=True)
    return max((relative_distance(a, b) for a, b in pairs), default=0.0)
