"""Checks of reproducibility: seeds, order of clients, executors, resuming, declared equality."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flbench.core.state import Dispatched, Stage, State, Upload
from flbench.engine.distributed import select_clients
from flbench.engine.options import EngineOptions
from flbench.engine.sequential import Sequential, Term
from flbench.run.composition import compose
from flbench.testing.check import CheckSkipped, MethodUnderTest, check
from flbench.testing.comparison import different_numbers
from flbench.testing.edge_cases import usual_run
from flbench.testing.small_run import SmallRun, run_small
from flbench.testing.subprocesses import ProcessFailed, in_process_group

ORDER = (2, 4, 0, 5, 1, 3)
"""Client i of the relabelled federation is this client of the usual one."""
TOLERANCE = 1e-4
"""Allowed difference of losses where sums are computed in another order, in nats."""


@check(usual_run)
def same_seed_same_bytes(method: MethodUnderTest) -> None:
    """The same seed gives the same bytes, whatever the state of the global random generators."""
    texts = [method.usual_run.stable]
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        texts.append(method.run().stable)
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])
    differing = [name for name in texts[0] if texts[0][name] != texts[1][name]]
    if differing:
        raise method.failure(
            f"two runs of one seed differ in {', '.join(differing)}: use only ctx.rng(...) for"
            " random numbers, and neither times nor addresses of objects"
        )


class RetrainingExecutor(Sequential):
    """Trains every client of a stage a second time, by itself, in reverse order."""

    def __init__(self, inner: Sequential, differing: list[str]) -> None:
        super().__init__(inner.workspace, inner.samples, inner.seed)
        self.inner, self.differing = inner, differing

    def fit(self, start: Dispatched, stage: Stage, terms: Sequence[Term], round_: int) -> Upload:
        """See `Sequential.fit`."""
        self.inner.samples = self.samples
        whole = self.inner.fit(start, stage, terms, round_)
        for index in reversed(range(len(stage.clients))):
            one = torch.tensor([index])
            few = replace(stage, clients=stage.clients[one])
            own = self.inner.fit(select_clients(start, one), few, terms, round_)
            pairs = {"params": (own.params[0], whole.params[index])}
            pairs |= {k: (v[0], whole.extras[k][index]) for k, v in own.extras.items()}
            pairs["loss"] = own.loss[0], whole.loss[index]
            self.differing += [
                f"{name} of client {int(few.clients[0])} in round {round_}, stage '{stage.label}'"
                for name, (mine, among) in pairs.items()
                if not torch.equal(mine.nan_to_num(), among.nan_to_num())
            ]
        return whole


@check(same_seed_same_bytes)
def trained_alone(method: MethodUnderTest) -> None:
    """A client's training does not depend on which clients were trained before it."""
    differing: list[str] = []
    method.run(executor=lambda run: RetrainingExecutor(run.executor, differing))
    if differing:
        raise method.failure(
            f"{differing[0]} depends on which clients were trained before: a ClientModule must"
            " keep nothing but parameters, persistent buffers and what it received"
        )


@check(trained_alone)
def relabelled_clients(method: MethodUnderTest) -> None:
    """Clients under permuted ids, with their data and random streams, end with the same results."""
    one, other = method.usual_run, method.run(order=ORDER)
    order = list(ORDER)
    before, after = one.run.history.last, other.run.history.last
    assert before is not None and after is not None, "the last round is evaluated"
    moved = np.asarray(before.loss)[order]
    judged = np.asarray(before.tested)[order]
    distance = np.abs(moved - np.asarray(after.loss)) / judged
    if distance.max() > TOLERANCE:
        client = int(distance.argmax())
        now, was = after.loss[client] / judged[client], moved[client] / judged[client]
        raise method.failure(
            f"client {order[client]} under the id {client} ends with another loss ({now:.4f}, was"
            f" {was:.4f}): an index in a list was used as a client's id, or ids decide something"
        )
    groups = np.asarray(before.labels)[order], np.asarray(after.labels)
    if not np.array_equal(*[labels[:, None] == labels for labels in groups]):
        raise method.failure(
            f"groups of the relabelled clients are {groups[1].tolist()}, expected those of"
            f" {groups[0].tolist()}"
        )


def end_of_run(finished: SmallRun) -> dict[str, Any]:
    """The end of a run that two executors must agree on, as plain data."""
    last = finished.run.history.last
    assert last is not None, "the last round is evaluated"
    return {
        "loss": [loss / count for loss, count in zip(last.loss, last.tested, strict=True)],
        "labels": last.labels,
        "bytes": finished.run.ledger.totals,
        "notes": finished.run.history.notes,
    }


def end_in_process_group(
    method: str, params: dict[str, object], changes: dict[str, Any]
) -> dict[str, Any]:
    """The end of a run, in one of two processes."""
    from flbench.testing.small_run import small_suite

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
        differing = [name for name in expected if found[name] != expected[name]]
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


def same_state(one: State, other: State) -> str:
    """The first part of two states that differs in a bit; "" = none. NaN equals NaN."""
    pairs: dict[str, tuple[Tensor | None, Tensor | None]] = {
        "models": (one.models, other.models),
        "homes": (one.membership.home, other.membership.home),
        "weights": (one.membership.weights, other.membership.weights),
    }
    for name in one.memory.keys() | other.memory.keys():
        pairs[f"memory '{name}'"] = one.memory.get(name), other.memory.get(name)
    return next((name for name, pair in sorted(pairs.items()) if not _equal(*pair)), "")


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_floating_point():
        one, other = one.nan_to_num(7e7), other.nan_to_num(7e7)
    return torch.equal(one, other)


@check(trained_alone)
def resumed_run(method: MethodUnderTest) -> None:
    """A run that is resumed from its checkpoint gives the same results as an uninterrupted run."""
    cut = max(1, method.suite().rounds // 2)
    whole, again = method.usual_run, method.run(resume_after=cut)
    differing = same_state(whole.state, again.state)
    texts = whole.stable, again.stable
    differing = differing or next(
        (name for name in texts[0] if texts[0][name] != texts[1][name]), ""
    )
    if differing:
        raise method.failure(
            f"resumed after round {cut} it ends with other {differing}: what is kept between rounds"
            " belongs in `memory`, not on the plugin or its module"
        )


def _different_results(one: SmallRun, other: SmallRun) -> list[str]:
    """Clients' results that differ between two runs; labels of groups may differ."""
    models = one.served, other.served
    same = models[0].shape != models[1].shape or _equal(*models)
    return ([] if same else ["clients' models"]) + different_numbers(
        one.run.history, other.run.history
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
        differing = _different_results(mine, its)
        if differing:
            settings = (
                ", ".join(f"{name}={value}" for name, value in params.items()) or "its defaults"
            )
            raise method.failure(
                f"with {settings} it does not equal {other}, as declared:"
                f" {', '.join(differing)} differ"
            )
