"""Checks of edge cases; a method may refuse one with `fl.Undefined`, but must not fail."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np
import torch

from flbench.core.context import Context
from flbench.core.dataset import Indices, Partition
from flbench.core.hookspecs import hookimpl, implemented_hooks, unmarked_hooks
from flbench.core.state import Membership, Setup
from flbench.errors import Diverged, FlbenchError, PluginError, Undefined
from flbench.results.schema import Result
from flbench.testing.check import CheckSkipped, MethodUnderTest, check
from flbench.testing.registration import plain_parameters
from flbench.testing.small_run import CLIENTS, SmallRun, run_small


def check_result(method: MethodUnderTest, finished: SmallRun) -> None:
    """Check that a run has a valid result with finite numbers."""
    result = Result.model_validate_json(finished.result.canonical())
    losses = finished.last.loss
    if not all(map(math.isfinite, losses)):
        raise method.failure(f"ends with a loss that is not finite: {losses}")
    assert len(result.clients.test) == len(losses), "one entry per client"


def run_edge_case(method: MethodUnderTest, **options: Any) -> None:  # noqa: ANN401 - see `run_small`
    """Run an edge case; the method may refuse it with `fl.Undefined`."""
    with suppress(Undefined):
        check_result(method, method.run(**options))


@dataclass(frozen=True)
class EqualLabels:
    """A partition in which every client owns equally many samples of each label."""

    @hookimpl
    def partition(self, labels: Indices, domains: Indices | None, clients: int) -> Partition:
        """One group."""
        strata = labels if isinstance(labels, np.ndarray) or domains is None else domains
        rows = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
        shares = [own[: len(own) // clients * clients].reshape(clients, -1) for own in rows]
        return Partition(tuple(np.concatenate(shares, axis=1)), np.zeros(clients, dtype=np.int64))


@dataclass(frozen=True)
class ThreeSamples:
    """A partition in which every client owns three samples: to train, to validate, to test."""

    @hookimpl
    def partition(self) -> Partition:
        """One group."""
        lists = np.arange(3 * CLIENTS).reshape(CLIENTS, 3)
        return Partition(tuple(lists), np.zeros(CLIENTS, dtype=np.int64))


@dataclass(frozen=True)
class EmptyGroup:
    """A setup with a further model that no client uses."""

    @hookimpl
    def setup(self, ctx: Context) -> Setup:
        """All clients use the first model, or the first one of their network."""
        home = torch.zeros(ctx.clients).long() if ctx.networks is None else ctx.networks
        networks = torch.arange(ctx.layout.networks + 1) % ctx.layout.networks
        rows = ctx.layout.with_network(ctx.initial, networks)
        return Setup(models=rows, membership=Membership(home))


@check(plain_parameters)
def usual_run(method: MethodUnderTest) -> None:
    """A run finishes; memberships are valid and scores finite."""
    try:
        finished = method.usual_run
    except Undefined as error:
        raise method.failure(
            f"is undefined on the federation of the kit ({error}): change that in its"
            ' `conformance`, as in fl.Conformance(suite={"local.momentum": 0.0})'
        ) from None
    check_result(method, finished)
    if method.watch.averages_nobody:
        raise method.failure(method.watch.averages_nobody[0])


@check(usual_run)
def one_client(method: MethodUnderTest) -> None:
    """A federation of one client works, or is refused with a reason."""
    one_group: dict[str, object] = {"name": "label-groups", "groups": 1}
    if method.dataset().task != "classes":
        one_group = {"name": "iid"}
    alone = {"clients": 1, "partition": one_group}
    run_edge_case(method, suite=method.suite(**alone, participation=1.0))


@check(usual_run)
def one_sample(method: MethodUnderTest) -> None:
    """Clients with one training sample work, or are refused with a reason."""
    run_edge_case(method, extra_plugins=[("kit", ThreeSamples())])


@check(usual_run)
def missing_class(method: MethodUnderTest) -> None:
    """A label that no client owns works, or is refused with a reason."""
    data = method.dataset()
    if data.task != "classes":
        raise CheckSkipped("its samples have no classes")
    run_edge_case(method, dataset=replace(data, classes=data.classes + 1))


UNRELIABLE: tuple[dict[str, Any], ...] = (
    {"absent": 0.5},
    {"dropout": 0.5},
    {"seconds_per_step": [1.0, 1.0, 1.0, 9.0, 9.0, 9.0], "deadline": 20.0},
)
"""Clients that cannot be called, that fail after they got their model, and that are too late."""


def run_with_failures(method: MethodUnderTest) -> SmallRun:
    """A run of all clients, half of whom fail in each round after they got their model."""
    return method.run(method.suite(clock={"dropout": 0.5}, participation=1.0))


@check(usual_run)
def missing_clients(method: MethodUnderTest) -> None:
    """Clients that are absent, fail or are late work, or are refused with a reason."""
    for clock in UNRELIABLE:
        run_edge_case(method, suite=method.suite(clock=clock, participation=1.0))


@check(usual_run)
def everyone_sampled(method: MethodUnderTest) -> None:
    """All clients in every round work, or are refused with a reason."""
    run_edge_case(method, suite=method.suite(participation=1.0))


@check(usual_run)
def every_hook_answers(method: MethodUnderTest) -> None:
    """Every hook of the method returns something other than None at least once."""
    for _, plugin in method.compose().layers:
        if unmarked := unmarked_hooks(type(plugin)):
            raise method.failure(f"{unmarked[0]} has the name of a hook: mark it with @fl.hookimpl")
    _ = method.newcomers_run.result
    for hook in sorted(method.watch.asked - method.watch.answered):
        raise method.failure(
            f"its hook {hook} always returns None: is a `return` missing? Or declare"
            " parameters in `conformance` with which it returns something"
        )


@check(usual_run)
def newcomers_served(method: MethodUnderTest) -> None:
    """Clients that join after the last round get a model."""
    finished = method.newcomers_run
    if finished.result.unseen is None:
        why = [text for text in finished.run.history.warnings + finished.said if "unseen" in text]
        raise method.failure(why[-1] if why else "newcomers are not reported")


@check(usual_run)
def normed_network(method: MethodUnderTest) -> None:
    """A network with BatchNorm works, with every policy for its statistics, or is refused."""
    model = method.federation.normed
    if model is None:
        raise CheckSkipped("no built-in network for its samples has BatchNorm")
    for policy in ("global", "local", "reset"):
        run_edge_case(method, suite=method.suite(model=dict(model), buffers=policy))


@check(usual_run)
def empty_group(method: MethodUnderTest) -> None:
    """Identical clients, and a group without members, work or are refused with a reason."""
    data = method.dataset()
    strata = data.labels
    first = torch.stack([(strata == one).nonzero()[0, 0] for one in strata.unique()])[strata]
    data = replace(data, x=data.x[first], y=data.y[first])
    local = replace(method.suite().local, batch_size=1000)
    extra_plugins: list[tuple[str, object]] = [("kit", EqualLabels())]
    kind = method.plugin_class
    groups_itself = {"setup", "cluster"} & implemented_hooks(kind).keys()
    if not groups_itself and not getattr(kind, "row_per_client", False):
        extra_plugins.append(("kit-empty", EmptyGroup()))
    run_edge_case(
        method, suite=method.suite(local=local), dataset=data, extra_plugins=extra_plugins
    )


INVALID_VALUES: tuple[object, ...] = (
    -1, 0, -1.5, float("nan"), "", "no such value", None, [], {"a": 1},
)  # fmt: skip
"""Values for every parameter; a method that refuses one must say so in one line."""


@check(usual_run)
def clear_errors(method: MethodUnderTest) -> None:
    """A refused parameter value gives an error of one line that names the method."""
    names = [one.name for one in fields(method.plugin_class) if one.init]
    for name, value in product(names, INVALID_VALUES):
        try:
            run_small(method.compose(**{name: value}), method.suite(rounds=1))
        except Diverged:
            continue
        except FlbenchError as error:
            text = str(error).strip()
            message = text.partition(method.name)[2].strip("'.: ")
            bare_name = message.isidentifier()  # of an exception
            if "\n" in text or not message or bare_name:
                raise method.failure(
                    f"with {name}={value!r} it says {text!r}, expected one line that names"
                    f" '{method.name}' and what is wrong"
                ) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise method.failure(
                f"with {name}={value!r} it raises {type(error).__name__}: {error}, expected"
                f" {PluginError.__name__} or ValueError with one line"
            ) from None
