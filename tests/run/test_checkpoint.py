"""Runs cut in the middle of what makes a method special go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import pytest
import torch
from every import TRIALS, Film, resumed, run_of, same_state, stable
from ledger_formulas import batchnorm
from mentions import mentioning
from toy import player, seeded

from flbench import Membership, State
from flbench.engine.ledger import CommunicationLedger
from flbench.errors import MachineError
from flbench.run import checkpoint, setup
from flbench.run.history import History

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("checkpoint_every_round")]

LIA = {"warmup": 2, "probe_epochs": 2}
SPLITS = {"eps1": 9, "eps2": 0, "start_round": 1}


def test_a_checkpoint_has_every_field_of_a_state() -> None:
    """A new field must be given here, and come back."""
    tables = {"m.one": torch.tensor(3), "m.all": torch.arange(3.0)}
    membership = Membership(torch.tensor([1, 0, 1]), torch.rand(2, 3))
    state = State(4, torch.rand(2, 5), membership, tables, {"m.one": "run", "m.all": "client"}, 2.5)
    settled = {"parent", "memory", "models"}  # `State.regroup` has put them into the state
    packed = checkpoint.pack(state, CommunicationLedger(3), History(), Mock(plain=dict))
    found, *_ = checkpoint._unpacked(packed.plain, packed.tables)
    assert same_state(found, state)
    assert (found.round, found.scopes, found.seconds) == (state.round, state.scopes, state.seconds)
    for given, left in ((state, set[str]()), (membership, settled)):
        values = {one: getattr(given, one.name) for one in fields(given) if one.name not in left}
        for one, value in values.items():
            assert value not in (None, one.default, {}), f"give {one.name}, and compare it"


class Cut(NamedTuple):
    """A run, the round it is cut after, and what was under way then."""

    method: str
    settings: dict[str, object]
    after: int
    under_way: Callable[[State], bool]
    rounds: int = 4
    changes: dict[str, Any] = {}  # noqa: RUF012 - read only


def rows(count: int) -> Callable[[State], bool]:
    return lambda state: len(state.models) == count


def scheduled(state: State) -> bool:
    return int(state.memory["dc-pfl.trial"]) > state.round


def refused(state: State) -> bool:
    """Tried in round 8, to be tried again in round 10."""
    assert state.membership.weights is not None
    again = int(state.memory["dc-pfl.trial"]) == 10
    return again and bool((state.membership.weights == 1).all())


CUTS = {
    "before the probe": Cut("pfedlia", LIA, 1, rows(1)),
    "right after the probe": Cut("pfedlia", LIA, 2, lambda state: len(state.models) > 1),
    "among peers": Cut("pfedlia", {**LIA, "mode": "peer"}, 3, rows(6)),
    "partial models kept for newcomers": Cut(
        "pfedlia", LIA, 3, lambda state: len(state.memory["pfedlia.probed"]) == 7, 4,
        {"clients": 8, "unseen": 0.25, "unseen_epochs": 1, "seed": 1},
    ),
    "a full round asked for": Cut(
        "cfl", {**SPLITS, "full_on_split": True}, 2,
        lambda state: int(state.memory["cfl.asked"]) == 3,
    ),
    "between two splits": Cut("cfl", {**SPLITS, "path_select": "val"}, 3, rows(2)),
    "discrepancy half summed": Cut(
        "dc-pfl-nodc", {"tau": 1, "t_start": 3, "threshold": 1.0}, 2,
        lambda state: bool(state.memory["dc-pfl.discrepancy"].any()),
    ),
    "a trial scheduled": Cut("dc-pfl", {**TRIALS, "alpha": 2}, 5, scheduled, 7),
    "a trial refused": Cut(
        "dc-pfl", {**TRIALS, "alpha": 1, "trial_metric": "val", "t_sp": 2, "tau": 4}, 9, refused,
        11,
        {"partition": "iid", "local": {"epochs": 1, "batch_size": 4, "lr": 0.3}},
    ),
    "a layer that stays away": Cut(
        "dc-pfl", {**TRIALS, "alpha": 3}, 3,
        lambda state: bool((~state.memory["dc-pfl.crossed"]).any()), 4,
    ),
    "updates collected": Cut(
        "fesem", {"k": 2, "fit_round": 3}, 2,
        lambda state: bool(state.memory["fesem.moves"].nan_to_num().any()),
    ),
    "heads spread": Cut("ifca", {"init": "heads"}, 1, rows(2)),
    "who uploaded last": Cut(
        "fedfomo", {"variant": "flbench"}, 2,
        lambda state: int(state.memory["fedfomo.uploaded"].sum()) == 3,
    ),
    "overlapping sets": Cut(
        "flis-dc", {"eval": "last_local"}, 2, lambda state: state.membership.weights is not None
    ),
    "an affinity": Cut(
        "clusterfl", {"clusterer": "affinity", "refresh": 2}, 3,
        lambda state: state.memory["clusterfl.f"].shape == (6, 6),
    ),
    "warm rounds": Cut("lg-fedavg", {"warm_rounds": 2}, 1, rows(6)),
    "running prototypes": Cut("fedproto", {"protos": "running"}, 2, rows(6)),
    "before the last heads": Cut("fedrep", {"final_head_epochs": 2}, 3, rows(6)),
    "variates of groups": Cut("oracle+scaffold", {"warmup": 2}, 2, rows(1)),
    "momentum of groups": Cut(
        "pfedlia+fedavgm", LIA, 2, lambda state: len(state.memory["fedavgm.momentum"]) > 1
    ),
    "buffers at home": Cut(
        "pfedlia", LIA, 2, lambda state: "buffers.own" in state.memory, 4,
        {"buffers": "local", "net": batchnorm},
    ),
    "a headline chosen before": Cut("fedavg", {}, 3, rows(1), 5, {"headline": "validation"}),
    "rounds that nobody judges": Cut("cfl", SPLITS, 1, rows(1), 5, {"eval_every": 3}),
    "lanes of unequal clients": Cut(
        "local-only", {}, 1, rows(6), 5,
        {
            "executor": "vectorised", "participation": 1.0,
            "partition": {"name": "dirichlet", "alpha": 0.5, "min_samples": 4},
            "local": {"epochs": 2, "batch_size": 2, "lr": 0.1, "momentum": 0.9},
        },
    ),
    "adam": Cut(
        "fedprox", {}, 2, rows(1), 4,
        {"local": {"epochs": 2, "batch_size": 4, "lr": 0.01, "optimizer": "adam"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_a_run_cut_in_the_middle_ends_in_the_same_bytes(name: str, tmp_path: Path) -> None:  # T25
    cut, film = CUTS[name], Film(tmp_path)
    changes = {"rounds": cut.rounds, "sinks": (("film", film),), **cut.changes}
    whole = run_of(player(tmp_path), cut.method, settings=cut.settings, **changes)
    assert cut.under_way(film.states[cut.after - 1]), "the cut is in the middle"
    net = cut.changes.get("net")
    network = setup.build_network if net is None else seeded(net)
    with patch.object(setup, "build_network", network):
        again = resumed(whole, film.checkpoint(cut.after), tmp_path / "again")
    assert same_state(again.state, whole.state)
    assert stable(again) == stable(whole)


def test_a_checkpoint_that_cannot_be_written_is_told_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = player(tmp_path / "whole")("fedavg")
    monkeypatch.setattr(checkpoint, "write", Mock(side_effect=MachineError("a: full")))
    played = player(tmp_path / "full")("fedavg")
    assert played.said == [mentioning("a", "resumed")]
    assert played.stable == whole.stable
