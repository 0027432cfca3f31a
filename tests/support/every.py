"""What the laws about every installed method share: settings, a film of a run, its canonical text.

What a method needs to show what it is, its class says (`conformance`); only its bytes need a
formula (`ledger_formulas.py`).
"""

from __future__ import annotations

import functools
import shutil
import typing
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from toy import Play, Played, toy_dataset

from flbench import Conformance, State, hookimpl
from flbench.core.parameters import declared as declared_parameters
from flbench.plugin.registry import entries, find, load_entry
from flbench.run.rounds import run_rounds
from flbench.run.setup import prepare
from flbench.testing import reproducibility

LONG_CHECKS = {
    "two-processes", "steady-memory", "normed-network", "one-client",
    "one-sample", "missing-class", "everyone-sampled", "empty-group", "images-and-convolutions",
    "other-tasks",
}  # fmt: skip
"""Checks of the kit that `tox -e long` makes: of processes, memory and edge cases."""

METHODS = list(entries("methods"))
"""Names of all installed methods, from their metadata: no method is imported."""

TRIALS = {"tau": 1, "window": 1, "t_start": 1, "t_obs": 1, "t_sp": 1, "threshold": 1.0}
"""Parameters with which DC-PFL tries a division in a few rounds."""


@functools.cache
def declared(method: str) -> Conformance:
    """What the author of a method declares; imports the method."""
    return getattr(load_entry(find("methods", method)), "conformance", Conformance())


def settings_of(method: str) -> dict[str, object]:
    """Parameters with which what makes a method special happens on the toy, and soon."""
    return dict(declared(method).params) if method in METHODS else {}


def other_value(rng: Random, method: str) -> list[tuple[str, object]]:
    """A parameter of a method, and another value of its type; empty where there is none."""
    known = list(declared_parameters(load_entry(find("methods", method))).values())
    if not known:
        return []
    one = rng.choice(known)
    bare = typing.get_args(one.hint)[0] if hasattr(one.hint, "__metadata__") else one.hint
    if typing.get_origin(bare) is typing.Literal:
        return [(one.name, rng.choice(typing.get_args(bare)))]
    if isinstance(one.default, bool):
        return [(one.name, not one.default)]
    if isinstance(one.default, int):
        return [(one.name, one.default + rng.choice([-1, 1, 2]))]
    if isinstance(one.default, float):
        return [(one.name, one.default * rng.choice([0.0, 0.5, 2.0]))]
    return []


def rounds_of(method: str) -> int:
    """Rounds until it has happened; three mostly suffice."""
    told = declared(method).rounds if method in METHODS else 0
    return told if told > 4 else 3


def memory(name: str) -> Callable[[Played], bool]:
    return lambda played: bool(played.state.memory[name].nan_to_num().any())


def several_rows(played: Played) -> bool:
    return len(played.state.models) > 1


def regrouped(played: Played) -> bool:
    return played.result.summary["groups"] not in (1, 6)


def keeps_models(played: Played) -> bool:
    own, met = played.state.memory["fedsoft.own"], played.state.membership.home >= 0
    return bool(met.any()) and len(own[met].unique(dim=0)) == int(met.sum())


def contexts_found(played: Played) -> bool:
    return regrouped(played) and memory("pfedme.theta")(played)


def clusters_found(played: Played) -> bool:
    return regrouped(played) and bool(played.state.memory["lcfed.m"].numel())


def fitted(played: Played) -> bool:
    return int(played.state.memory["fesem.fitted"]) > 0 and regrouped(played)


def trial_adopted(played: Played) -> bool:
    noted = [note["value"] for note in played.run.history.notes if note["name"] == "dc-pfl.trial"]
    return regrouped(played) and any(new < old for old, new in noted)


def mixed_apart(played: Played) -> bool:
    mixed = played.state.memory["fedc2i.mixed"]
    return bool((mixed != mixed[0]).any(dim=0).sum() > 8)


def relations_learned(played: Played) -> bool:
    (slot,) = (one for one in played.run.context.layout.slots if one.name == "relation")
    p, initial = (
        it[..., slot.start : slot.stop]
        for it in (played.state.models[:], played.run.context.initial)
    )
    return bool((p != initial).any())


def reweighted(played: Played) -> bool:
    return not torch.equal(played.state.memory["afl.counts"], played.run.context.samples.double())


def backdoor_tested(played: Played) -> bool:
    return "accuracy_backdoor" in played.run.history.curves


def trusted(played: Played) -> bool:
    return any(note["name"] == "fltrust.trust" for note in played.run.history.notes)


HAPPENED: dict[str, Callable[[Played], bool]] = {
    "afl": reweighted,
    "apple": relations_learned,
    "backdoor": backdoor_tested,
    "cfl": lambda played: len(played.state.memory["cfl.splits"]) > 0,
    "cgpfl": contexts_found,
    "clusterfl": regrouped,
    "dc-pfl": trial_adopted,
    "dc-pfl-nodc": regrouped,
    "dc-pfl-nola": trial_adopted,
    "dpsgd": lambda played: len(played.state.models.unique(dim=0)) < len(played.state.models),
    "ef-signsgd": memory("ef-signsgd.e"),
    **dict.fromkeys(("fedadagrad", "fedadam", "fedyogi"), memory("fedopt.m")),
    "fedala": lambda played: bool((played.state.memory["fedala.weights"] < 1).any()),
    "fedavgm": memory("fedavgm.momentum"),
    **dict.fromkeys(("fedc2i", "fedc2i-class-global", "fedc2i-class-local"), mixed_apart),
    "feddyn": memory("feddyn.drift"),
    "fedem": lambda played: bool((played.state.memory["fedem.pi"] > 0.34).any()),
    "fedfomo": lambda played: bool(played.state.memory["fedfomo.q"].triu(1).any()),
    "fedgen": memory("fedgen.p"),
    "fedgroup": several_rows,
    "fedpac": memory("fedpac.centroids"),
    "fedphp": lambda played: bool((played.state.memory["fedphp.times"] > 1).any()),
    "fedproto": memory("fedproto.known"),
    "fedrod": memory("fedrod.psi"),
    "fedsoft": keeps_models,
    **dict.fromkeys(("fesem", "wecfl"), fitted),
    "flhc": several_rows,
    "flis-dc": lambda played: played.state.membership.weights is not None,
    "flis-hc": several_rows,
    "fltrust": trusted,
    "ifca": lambda played: len(set(played.run.history.last.labels)) > 1,
    "kld-groups": several_rows,
    "lcfed": clusters_found,
    "oracle": several_rows,
    "pacfl": several_rows,
    "pfedlia": lambda played: several_rows(played) and memory("pfedlia.influence")(played),
    "pfedme": memory("pfedme.theta"),
    "scaffold": memory("scaffold.c_i"),
}
"""Whether what makes a method special has happened in a run."""


def run_of(play_toy: Play, method: str, **changes: Any) -> Played:
    """A run in which the method's special stage takes place, or the settings that are given."""
    settings = changes.pop("settings", None)
    settings = settings_of(method) if settings is None else settings
    rounds = changes.pop("rounds", None) or rounds_of(method)
    asked = {"server_samples": 8, **(declared(method).suite if method in METHODS else {})}
    return play_toy(method, settings=settings, rounds=rounds, **{**asked, **changes})


@dataclass
class Film:
    """A sink that keeps the state of every round, and a copy of its checkpoint."""

    folder: Path | None = None
    states: list[State] = field(default_factory=list)

    @hookimpl
    def round_finished(self, record: Any, state: State) -> None:
        self.states.append(state)
        if self.folder is not None:
            (found,) = (self.folder / "out").rglob("*.checkpoint.safetensors")
            shutil.copy(found, self.checkpoint(record.round))

    def checkpoint(self, round_: int) -> Path:
        assert self.folder is not None
        return self.folder / f"round-{round_}.safetensors"


def resumed(whole: Played, checkpoint: Path, out: Path) -> Played:
    """The same run again, from a checkpoint that was left behind by an interruption."""
    job = replace(whole.job, out=out, resume=True, sinks=())
    job.checkpoint.parent.mkdir(parents=True)
    shutil.copy(checkpoint, job.checkpoint)
    run, state = prepare(job, toy_dataset())
    assert 0 < state.round < whole.state.round
    return Played(run, run_rounds(run, state), job)


def same_state(one: State, other: State) -> bool:
    """Bit for bit: bank, membership, memories; NaN is NaN."""
    return not reproducibility.differing_tensors(one, other)


def stable(played: Played) -> dict[str, Any]:
    """The result file's content, but for what differs between two runs of the same thing."""
    return played.stable
