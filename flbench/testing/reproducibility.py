"""Laws about runs that must be the same run: seeds, company, order, executors, resuming."""

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
from flbench.testing.check import Case, NotJudged, law
from flbench.testing.edge_cases import usual_run
from flbench.testing.evaluated import unlike
from flbench.testing.small_run import SmallRun, play_small
from flbench.testing.subprocesses import Failed, together

ORDER = (2, 4, 0, 5, 1, 3)
"""Client i of the relabelled federation is this client of the usual one."""


CLOSE = 1e-4
"""How far losses may be apart where sums are taken in another order, nats."""


@law(usual_run)
def same_seed_same_bytes(case: Case) -> None:
    """The same seed gives the same bytes, whatever the global generators say."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    texts = []
    try:
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            texts.append(case.play().stable)
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])
    odd = [name for name in texts[0] if texts[0][name] != texts[1][name]]
    if odd:
        raise case.breaks(
            f"two runs of one seed differ in {', '.join(odd)}: draw from ctx.rng(...) only, and"
            " keep time and addresses of objects out"
        )


class Alone(Sequential):
    """Trains every client of a stage once more by itself, the last one first."""

    def __init__(self, inner: Sequential, odd: list[str]) -> None:
        super().__init__(inner.workspace, inner.samples, inner.seed)
        self.inner, self.odd = inner, odd

    def fit(self, start: Dispatched, stage: Stage, terms: Sequence[Term], round_: int) -> Upload:
        """See `Sequential.fit`."""
        self.inner.samples = self.samples
        whole = self.inner.fit(start, stage, terms, round_)
        for place in reversed(range(len(stage.clients))):
            one = torch.tensor([place])
            few = replace(stage, clients=stage.clients[one])
            own = self.inner.fit(select_clients(start, one), few, terms, round_)
            pairs = {"params": (own.params[0], whole.params[place])}
            pairs |= {k: (v[0], whole.extras[k][place]) for k, v in own.extras.items()}
            pairs["loss"] = own.loss[0], whole.loss[place]
            self.odd += [
                f"{name} of client {int(few.clients[0])} in round {round_}, stage '{stage.label}'"
                for name, (mine, among) in pairs.items()
                if not torch.equal(mine.nan_to_num(), among.nan_to_num())
            ]
        return whole


@law(same_seed_same_bytes)
def trained_alone(case: Case) -> None:
    """A client learns the same whoever was trained before it."""
    odd: list[str] = []
    case.play(wrap=lambda run: Alone(run.executor, odd))
    if odd:
        raise case.breaks(
            f"{odd[0]} depends on who was trained before: a ClientModule must keep nothing but"
            " parameters, persistent buffers and what it received"
        )


@law(trained_alone)
def relabelled_clients(case: Case) -> None:
    """Clients under other ids, their data and random streams with them, end as they did."""
    one, other = case.usual, case.play(order=ORDER)
    order = list(ORDER)
    before, after = one.run.history.last, other.run.history.last
    assert before is not None and after is not None, "the last round is evaluated"
    moved = np.asarray(before.loss)[order]
    judged = np.asarray(before.judged)[order]
    apart = np.abs(moved - np.asarray(after.loss)) / judged
    if apart.max() > CLOSE:
        client = int(apart.argmax())
        now, was = after.loss[client] / judged[client], moved[client] / judged[client]
        raise case.breaks(
            f"client {order[client]} under the id {client} ends with another loss ({now:.4f}, was"
            f" {was:.4f}): a place in a list was taken for a client's id, or ids decide something"
        )
    groups = np.asarray(before.labels)[order], np.asarray(after.labels)
    if not np.array_equal(*[labels[:, None] == labels for labels in groups]):
        raise case.breaks(
            f"groups of the relabelled clients are {groups[1].tolist()}, expected those of"
            f" {groups[0].tolist()}"
        )


def ending(played: SmallRun) -> dict[str, Any]:
    """What two executors must agree about, as plain data."""
    last = played.run.history.last
    assert last is not None, "the last round is evaluated"
    return {
        "loss": [loss / count for loss, count in zip(last.loss, last.judged, strict=True)],
        "labels": last.labels,
        "bytes": played.run.ledger.totals,
        "notes": played.run.history.notes,
    }


def in_ranks(method: str, params: dict[str, object], changes: dict[str, Any]) -> dict[str, Any]:
    """The end of a run in one of two processes."""
    from flbench.testing.small_run import small_suite

    engine = EngineOptions(executor="sequential", accelerator="cpu", devices=2)
    played = play_small(compose(method, params), small_suite(**changes), engine=engine)
    return ending(played)


@law(trained_alone)
def two_processes(case: Case) -> None:
    """Two processes end where one does, byte for byte."""
    suite = case.suite().model_dump(exclude_defaults=True, exclude={"name", "version", "summary"})
    try:
        ends = together(in_ranks, 2, case.method, dict(case.told.params), suite)
    except Failed as error:
        raise case.breaks(f"in two processes: {error}") from None
    expected = ending(case.usual)
    for rank, found in enumerate(ends):
        odd = [name for name in expected if found[name] != expected[name]]
        if odd:
            raise case.breaks(
                f"process {rank} of 2 ends with other {', '.join(odd)} than one process: hooks must"
                " not ask which process they run in"
            )


@law(trained_alone)
def vectorised_clients(case: Case) -> None:
    """All clients at once end where one after the other does."""
    found = ending(case.play(engine=EngineOptions(executor="vectorised", accelerator="cpu")))
    expected = ending(case.usual)
    apart = np.abs(np.subtract(found["loss"], expected["loss"]))
    if apart.max() > CLOSE:
        raise case.breaks(
            f"with --executor vectorised client {int(apart.argmax())} ends"
            f" {apart.max():.1e} nats away: a step must not look at a tensor's value or at numbers"
            " kept on the module"
        )
    if found["bytes"] != expected["bytes"]:
        raise case.breaks("with --executor vectorised other bytes cross")


def same_state(one: State, other: State) -> str:
    """What differs between two states, bit for bit; "" = nothing, NaN is NaN."""
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


@law(trained_alone)
def resumed_run(case: Case) -> None:
    """A run cut in two and resumed from its checkpoint is the run in one piece."""
    cut = max(1, case.suite().rounds // 2)
    whole, again = case.usual, case.play(cut=cut)
    odd = same_state(whole.state, again.state)
    texts = whole.stable, again.stable
    odd = odd or next((name for name in texts[0] if texts[0][name] != texts[1][name]), "")
    if odd:
        raise case.breaks(
            f"resumed after round {cut} it ends with other {odd}: what lives between rounds belongs"
            " in `memory`, not on the plugin or its module"
        )


def _apart(one: SmallRun, other: SmallRun) -> list[str]:
    """What differs between two methods' runs as clients see it; their groups may be called else."""
    models = one.served, other.served
    same = models[0].shape != models[1].shape or _equal(*models)
    return ([] if same else ["clients' models"]) + unlike(one.run.history, other.run.history)


@law(same_seed_same_bytes)
def declared_equal(case: Case) -> None:
    """With the parameters its author names it is the other method, its models bit for bit.

    What is evaluated is compared to rounding (`unlike`): the two methods may pool other clients'
    samples in one pass. So is all of a method whose client module holds further parameters
    (APFL has two networks): its models have another shape.
    """
    if not case.told.equals:
        raise NotJudged("its author declares no method it equals (`conformance.equals`)")
    for other, params in case.told.equals.items():
        mine = play_small(case.composed(**params), case.suite())
        its = play_small(compose(other), case.suite())
        odd = _apart(mine, its)
        if odd:
            told = ", ".join(f"{name}={value}" for name, value in params.items()) or "its defaults"
            raise case.breaks(
                f"with {told} it is not {other}, as declared: {', '.join(odd)} differ"
            )
