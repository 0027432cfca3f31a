"""Checks of edge cases; a method may refuse one with `fl.Undefined`, but must not fail."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from flbench.core import hookspecs
from flbench.core.context import Context
from flbench.core.dataset import Indices, Partition
from flbench.core.hookspecs import hookimpl
from flbench.core.state import Membership, Setup
from flbench.errors import Diverged, FlbenchError, PluginError, Undefined
from flbench.results.schema import Result
from flbench.run.composition import compose
from flbench.suite import Suite
from flbench.testing.check import MethodUnderTest, check
from flbench.testing.hook_recorder import with_hook_recorder
from flbench.testing.registration import plain_parameters
from flbench.testing.small_run import CLIENTS, SmallRun, run_small, small_dataset


def check_result(method: MethodUnderTest, finished: SmallRun) -> None:
    """Check that a run has a valid result with finite numbers."""
    result = Result.model_validate_json(finished.result.canonical())
    last = finished.run.history.last
    assert last is not None, "the last round is evaluated"
    if not all(math.isfinite(loss) for loss in last.loss):
        raise method.failure(f"ends with a loss that is not finite: {last.loss}")
    assert len(result.clients.test) == len(last.loss), "one entry per client"


def run_edge_case(method: MethodUnderTest, **options: Any) -> None:  # noqa: ANN401 - see `run_small`
    """Run an edge case; the method may refuse it with `fl.Undefined`."""
    try:
        check_result(method, method.run(**options))
    except Undefined:
        return


@dataclass(frozen=True)
class EqualLabels:
    """A partition in which every client owns equally many samples of each label."""

    @hookimpl
    def partition(self, labels: Indices, clients: int) -> Partition:
        """One group."""
        lists: list[list[int]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            share = len(rows) // clients
            for client, owned in enumerate(lists):
                owned += rows[client * share : (client + 1) * share].tolist()
        groups = np.zeros(clients, dtype=np.int64)
        return Partition(tuple(np.array(owned) for owned in lists), groups)


@dataclass(frozen=True)
class EmptyGroup:
    """A setup with a second model that no client uses."""

    @hookimpl
    def setup(self, ctx: Context) -> Setup:
        """All clients use the first model."""
        rows = ctx.initial.expand(2, -1).clone()
        return Setup(models=rows, membership=Membership(torch.zeros(ctx.clients).long()))


@dataclass(frozen=True)
class GivenPartition:
    """A partition with given lists of samples."""

    lists: tuple[tuple[int, ...], ...]

    @hookimpl
    def partition(self) -> Partition:
        """One group."""
        groups = np.zeros(len(self.lists), dtype=np.int64)
        return Partition(tuple(np.array(rows) for rows in self.lists), groups)


@check(plain_parameters)
def usual_run(method: MethodUnderTest) -> None:
    """A run finishes; memberships are valid and scores finite."""
    errors: list[str] = []

    def after(hook: str, arguments: Any, answer: object) -> None:  # noqa: ANN401 - a hook's
        if isinstance(answer, Membership) and answer.weights is not None:
            used = answer.home[answer.home >= 0].unique()
            empty = [int(row) for row in used if not bool(answer.weights[row].sum() > 0)]
            if empty:
                errors.append(
                    f"{method.name}.{hook} gives clients the model of row {empty[0]},"
                    " which averages no client"
                )

    check_result(
        method, run_small(with_hook_recorder(method.compose(), after=after), method.suite())
    )
    if errors:
        raise method.failure(errors[0])


@check(usual_run)
def one_client(method: MethodUnderTest) -> None:
    """A federation of one client works, or is refused with a reason."""
    alone = {"clients": 1, "partition": {"name": "label-groups", "groups": 1}}
    run_edge_case(method, suite=method.suite(**alone, participation=1.0))


@check(usual_run)
def one_sample(method: MethodUnderTest) -> None:
    """Clients with one training sample work, or are refused with a reason."""
    rows = tuple(
        tuple(range(3 * c, 3 * c + 3)) for c in range(CLIENTS)
    )  # for each client, one sample to train,
    run_edge_case(
        method, extra_plugins=[("kit", GivenPartition(rows))]
    )  # one to validate, one to test


@check(usual_run)
def missing_class(method: MethodUnderTest) -> None:
    """A label that no client owns works, or is refused with a reason."""
    run_edge_case(method, dataset=replace(small_dataset(), classes=5))


@check(usual_run)
def everyone_sampled(method: MethodUnderTest) -> None:
    """All clients in every round work, or are refused with a reason."""
    run_edge_case(method, suite=method.suite(participation=1.0))


CLIENTS_WITH_NEWCOMERS = 9
"""Clients of a federation of which three join after the last round."""


@check(usual_run)
def every_hook_answers(method: MethodUnderTest) -> None:
    """Every hook of the method returns something other than None at least once."""
    asked: dict[str, bool] = {}

    def after(hook: str, arguments: Any, answer: object) -> None:  # noqa: ANN401 - a hook's
        asked[hook] = asked.get(hook, False) or answer is not None

    for _, plugin in method.compose().layers:
        unmarked = sorted(set(vars(type(plugin))) & HOOKS - method.hooks)
        if unmarked:
            raise method.failure(f"{unmarked[0]} has the name of a hook: mark it with @fl.hookimpl")
    for suite, data in (
        (method.suite(), None),
        (suite_with_newcomers(method), small_dataset(samples=108)),
    ):
        _ = run_small(with_hook_recorder(method.compose(), after=after), suite, data).result
    unanswered = sorted(
        hook for hook, answered in asked.items() if not answered and hook != "setup"
    )
    if unanswered:
        raise method.failure(
            f"its hook {unanswered[0]} always returns None: is a `return` missing? Or declare"
            " parameters in `conformance` with which it returns something"
        )


def suite_with_newcomers(method: MethodUnderTest) -> Suite:
    """The small suite with three more clients, which join after the last round."""
    return method.suite(clients=CLIENTS_WITH_NEWCOMERS, unseen=0.34, unseen_epochs=1)


@check(usual_run)
def newcomers_served(method: MethodUnderTest) -> None:
    """Clients that join after the last round get a model."""
    finished = method.run(suite_with_newcomers(method), small_dataset(samples=108))
    if finished.result.unseen is None:
        why = [text for text in finished.run.history.warnings + finished.said if "unseen" in text]
        raise method.failure(why[-1] if why else "newcomers are not reported")


@check(usual_run)
def normed_network(method: MethodUnderTest) -> None:
    """A network with BatchNorm works, with every policy for its statistics."""
    model = {"name": "mlp", "hidden": 3, "norm": True}
    for policy in ("global", "local", "reset"):
        run_edge_case(method, suite=method.suite(model=model, buffers=policy))


@check(usual_run)
def empty_group(method: MethodUnderTest) -> None:
    """Identical clients, and a group without members, work or are refused with a reason."""
    data = small_dataset()
    same = {int(label): data.x[data.y == label][0] for label in data.y.unique()}
    data = replace(data, x=torch.stack([same[int(label)] for label in data.y]))
    local = replace(method.suite().local, batch_size=1000)
    extra_plugins: list[tuple[str, object]] = [("kit", EqualLabels())]
    groups_itself = {"setup", "cluster"} & method.hooks or getattr(
        method.plugin_class, "row_per_client", False
    )
    if not groups_itself:
        extra_plugins.append(("kit-empty", EmptyGroup()))
    run_edge_case(
        method, suite=method.suite(local=local), dataset=data, extra_plugins=extra_plugins
    )


HOOKS = {name for name, spec in vars(hookspecs).items() if hasattr(spec, "flbench_spec")}
"""The names of all hooks."""
INVALID_VALUES: tuple[object, ...] = (
    -1,
    0,
    -1.5,
    float("nan"),
    "",
    "no such value",
    None,
    [],
    {"a": 1},
)
"""Values for every parameter; a method that refuses one must say so in one line."""


@check(usual_run)
def clear_errors(method: MethodUnderTest) -> None:
    """A refused parameter value gives an error of one line that names the method."""
    for name, value in _invalid_settings(method):
        try:
            composed = compose(method.name, {**method.conformance.params, name: value})
            run_small(composed, method.suite(rounds=1))
        except Diverged:
            continue
        except FlbenchError as error:
            text = str(error).strip()
            message = text.partition(method.name)[2].strip("'.: ")
            if (
                "\n" in text or not message or message.isidentifier()
            ):  # the bare name of an exception
                raise method.failure(
                    f"with {name}={value!r} it says {text!r}, expected one line that names"
                    f" '{method.name}' and what is wrong"
                ) from None
        except (Exception, SystemExit) as error:
            raise method.failure(
                f"with {name}={value!r} it raises {type(error).__name__}: {error}, expected"
                f" {PluginError.__name__} or ValueError with one line"
            ) from None


def _invalid_settings(method: MethodUnderTest) -> Iterator[tuple[str, object]]:
    """Every parameter with every value of `INVALID_VALUES`."""
    for one in fields(method.plugin_class):
        for value in INVALID_VALUES if one.init else ():
            yield one.name, value
