"""Methods joined by +: rivals are refused; what goes together serves everybody by its own rule."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import pytest
import torch
from every import METHODS
from joined import joined
from mentions import mention, mentioning
from torch import nn
from toy import Play, bad

import flbench as fl
from flbench.core.hookspecs import implemented_hooks
from flbench.errors import PluginError, UserError
from flbench.plugin.registry import find, load_entry
from flbench.run.composition import check_compatible, compose

MEANINGS = {
    "cluster": "decide who is grouped with whom",
    "aggregate": "decide how models are averaged",
    "weights": "decide how much clients count",
    "client_module": "replace the local objective",
    "score": "score the models",
}


@pytest.mark.parametrize(
    ("text", "hook"),
    [
        ("oracle+pfedlia", "cluster"),
        ("ifca+flis-hc", "cluster"),
        ("fedavgm+scaffold", "aggregate"),
        ("lg-fedavg+fedrep", "aggregate"),
        ("per-fedavg+fednova", "aggregate"),
        ("ifca+fedala", "score"),
    ],
)
def test_two_that_decide_the_same_are_refused(text: str, hook: str) -> None:
    one, other = text.split("+")
    said = f"'{text}' cannot be composed: {one} and {other} both {MEANINGS[hook]}; name one of them"
    with pytest.raises(UserError) as caught:
        compose(text)
    assert str(caught.value) == said


def test_two_local_objectives_are_refused() -> None:
    def client_module(self: Any, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return fl.ClientModule(net, ctx.local)

    mine = bad(client_module=client_module).layers[0][1]
    with pytest.raises(UserError, match=mention("mine", "yours", "objective")):
        check_compatible([("mine", mine), ("between", object()), ("yours", mine)])


@pytest.mark.parametrize(
    "text", ["oracle+scaffold", "pfedlia+fedprox", "fedavgm+ifca", "fedrod+flis-hc"]
)
def test_a_grouping_and_a_rule_of_averaging_go_together(text: str) -> None:
    assert compose(text).described.name == text


def looks(one: str, pair: Any, kinds: Any) -> bool:
    """Whether one of two methods needs more than sums of what clients send, or comes too late."""
    kind = kinds[one]
    hooks = [getattr(kind, hook) for hook in implemented_hooks(kind)]
    takes = any(
        "upload" in hook.__code__.co_varnames[: hook.__code__.co_argcount] for hook in hooks
    )
    server = getattr(getattr(kind, "encode", None), "flbench_impl", {}).get("tryfirst")
    last = hasattr(kind, "encode") and pair[1] == one
    row, weighs = getattr(kind, "row_per_client", False), "weights" in implemented_hooks(kind)
    return bool(server or last or row or weighs or (takes and not hasattr(kind, "reads_sums")))


ALONE = {
    "reveals": "secagg reveals sums only",
    "row_per_client": "keeps a model per client, so nothing may regroup them, and",
    "pools_data": "has one trainer for all data; .* treats clients apart",
}


def decided(kind: Any, hook: str) -> bool:
    """Whether a method answers a hook itself; a wrapper only adds to what others answer."""
    options = getattr(getattr(kind, hook, None), "flbench_impl", {"wrapper": True})
    return not options["wrapper"]


def meets(mark: str, pair: Any, kinds: Any) -> bool:
    """Whether one of two methods has a mark and the other a hook that has no meaning beside it."""
    if mark == "reveals":
        hiding = [one for one in pair if hasattr(kinds[one], mark)]
        return bool(hiding) and any(looks(one, pair, kinds) for one in {*pair} - {*hiding})
    hooks = ("cluster",) if mark == "row_per_client" else ("cluster", "aggregate", "personalise")
    return any(
        getattr(kinds[one], mark, False) and any(decided(kinds[other], hook) for hook in hooks)
        for one, other in (pair, pair[::-1])
    )


@pytest.mark.parametrize(
    "method", ["fedc2i", "fedfomo", "fedproto", "fedrep", "lg-fedavg", "local-only"]
)
def test_a_model_per_client_leaves_nothing_to_group(method: str) -> None:
    for grouping in ("oracle", "ifca", "flis-hc"):
        said = f"nothing may regroup them, and {grouping} does|both score the models"
        with pytest.raises(UserError, match=said):
            compose(f"{grouping}+{method}")
    with pytest.raises(UserError, match=mention("centralised", "oracle")):
        compose("centralised+oracle")
    assert compose("centralised+fedprox").described.name == "centralised+fedprox"


@pytest.mark.slow
def test_any_two_methods_are_refused_just_where_they_share_a_decision() -> None:
    kinds = {name: load_entry(find("methods", name)) for name in METHODS}
    decides = {
        name: {hook for hook in MEANINGS if decided(kind, hook)} for name, kind in kinds.items()
    }
    refused = 0
    for pair in permutations(METHODS, 2):
        plugins = [(name, kinds[name]()) for name in pair]
        shared = decides[pair[0]] & decides[pair[1]]
        if not shared:
            alone = [kind for kind in ALONE if meets(kind, pair, kinds)]
            if not alone:
                check_compatible(plugins)
                continue
            with pytest.raises(UserError, match="|".join(ALONE[kind] for kind in alone)):
                check_compatible(plugins)
            continue
        refused += 1
        with pytest.raises(UserError, match="|".join(MEANINGS[hook] for hook in shared)):
            check_compatible(plugins)
    assert len(METHODS) < refused < len(METHODS) ** 2


def test_a_rival_is_known_under_another_name() -> None:
    @dataclass(frozen=True)
    class Renamed:
        @fl.hookimpl(specname="aggregate")
        def average(self, state: fl.State) -> fl.Models:
            return fl.Models(state.models)

    with pytest.raises(UserError, match=mention("decide", "averaged")):
        check_compatible([("renamed", Renamed()), compose("scaffold").layers[0]])


# --- everybody is served by a row of their own ---------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedrod", "per-fedavg"])
@pytest.mark.parametrize("grouping", ["oracle", "ifca"])
def test_who_has_no_group_is_not_served_by_the_last_one(
    grouping: str, method: str, play_toy: Play
) -> None:
    """The plugin named last answers for newcomers; it must not take "undecided" for a row."""
    played = joined(play_toy, f"{grouping}+{method}", settings={"oracle.warmup": 1})
    assert len(played.state.models) == 2
    result = played.result
    assert result.unseen is None
    assert result.warnings[-1].startswith("unseen clients are not reported: ")


@pytest.mark.parametrize(
    "other",
    [
        fl.Personal(row=torch.full((6,), 99)),
        fl.Personal(row=torch.full((6,), -1)),
        fl.Personal(params=torch.zeros(2, 2)),
        fl.Personal(),
    ],
    ids=["row 99", "row -1", "shape", "neither"],
)
def test_further_models_are_checked_like_the_main_one(other: fl.Personal, play_toy: Play) -> None:
    def personalise(self: Any, clients: torch.Tensor) -> fl.Personal:
        return fl.Personal(row=torch.zeros_like(clients), others={"further": other})

    with pytest.raises(PluginError, match=r"^round 1: bad\.personalise"):
        play_toy(bad(personalise=personalise))


# --- plugins of which nothing is left ---------------------------------------------------------


class Planner:
    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> tuple[fl.Stage, ...]:
        return (fl.Stage("train", ctx.cohort, 1),)


class Undecided:
    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> tuple[fl.Stage, ...] | None:
        return None


class Decorator:
    @fl.hookimpl(wrapper=True)
    def plan(self) -> Any:
        return (yield)


def test_a_plugin_that_is_never_asked_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        check_compatible([("one", Planner()), ("two", Planner())])
    assert str(caught.value) == mentioning("one+two", "one", "two", "plan")


@pytest.mark.parametrize("last", [Undecided(), Decorator(), object()])
def test_a_plugin_that_may_be_asked_is_not_refused(last: object) -> None:
    check_compatible([("one", Planner()), ("two", last)])


def test_a_wrapper_is_asked_wherever_it_is_named() -> None:
    check_compatible([("two", Decorator()), ("one", Planner())])


def test_a_wrapper_of_a_mean_is_no_rival_of_it() -> None:
    class Scaled:
        @fl.hookimpl(wrapper=True)
        def aggregate(self) -> Any:
            return (yield)

    check_compatible([("scaled", Scaled()), ("fedavgm", compose("fedavgm").layers[0][1])])
