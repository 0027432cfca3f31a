"""Laws about the corners of a federation; a method may decline one (`fl.Undefined`), not fall."""

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
from flbench.testing.check import Case, law
from flbench.testing.hook_recorder import with_hook_recorder
from flbench.testing.registration import plain_parameters
from flbench.testing.small_run import CLIENTS, SmallRun, play_small, small_dataset


def sound(case: Case, played: SmallRun) -> None:
    """A run left a valid result whose numbers are finite."""
    result = Result.model_validate_json(played.result.canonical())
    last = played.run.history.last
    assert last is not None, "the last round is evaluated"
    if not all(math.isfinite(loss) for loss in last.loss):
        raise case.breaks(f"ends with a loss that is not finite: {last.loss}")
    assert len(result.clients.test) == len(last.loss), "one entry per client"


def cornered(case: Case, **how: Any) -> None:  # noqa: ANN401 - see `play_small`
    """Play a corner; to decline it is fine."""
    try:
        sound(case, case.play(**how))
    except Undefined:
        return


@dataclass(frozen=True)
class Alike:
    """Answers `partition` so that every client owns as many samples of each label."""

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
class Emptied:
    """Answers `setup` with a second row that serves nobody."""

    @hookimpl
    def setup(self, ctx: Context) -> Setup:
        """Everybody is on the first one."""
        rows = ctx.initial.expand(2, -1).clone()
        return Setup(models=rows, membership=Membership(torch.zeros(ctx.clients).long()))


@dataclass(frozen=True)
class Dealt:
    """Answers `partition` with the given lists of samples."""

    lists: tuple[tuple[int, ...], ...]

    @hookimpl
    def partition(self) -> Partition:
        """One group."""
        groups = np.zeros(len(self.lists), dtype=np.int64)
        return Partition(tuple(np.array(rows) for rows in self.lists), groups)


@law(plain_parameters)
def usual_run(case: Case) -> None:
    """It plays its rounds; memberships are valid and scores finite."""
    odd: list[str] = []

    def after(hook: str, arguments: Any, answer: object) -> None:  # noqa: ANN401 - a hook's
        if isinstance(answer, Membership) and answer.weights is not None:
            used = answer.home[answer.home >= 0].unique()
            empty = [int(row) for row in used if not bool(answer.weights[row].sum() > 0)]
            if empty:
                odd.append(
                    f"{case.method}.{hook} serves clients by row {empty[0]}, which averages nobody"
                )

    sound(case, play_small(with_hook_recorder(case.composed(), after=after), case.suite()))
    if odd:
        raise case.breaks(odd[0])


@law(usual_run)
def one_client(case: Case) -> None:
    """A federation of one client works, or is declined with a reason."""
    alone = {"clients": 1, "partition": {"name": "label-groups", "groups": 1}}
    cornered(case, suite=case.suite(**alone, participation=1.0))


@law(usual_run)
def one_sample(case: Case) -> None:
    """Clients with one training sample work, or are declined with a reason."""
    rows = tuple(tuple(range(3 * c, 3 * c + 3)) for c in range(CLIENTS))  # one each to train on,
    cornered(case, watch=[("kit", Dealt(rows))])  # ... to validate on, and to test on


@law(usual_run)
def missing_class(case: Case) -> None:
    """A label that no client owns works, or is declined with a reason."""
    cornered(case, dataset=replace(small_dataset(), classes=5))


@law(usual_run)
def everyone_sampled(case: Case) -> None:
    """All clients in every round work, or are declined with a reason."""
    cornered(case, suite=case.suite(participation=1.0))


JOINING = 9
"""Clients of a federation of which three join after the last round."""


@law(usual_run)
def every_hook_answers(case: Case) -> None:
    """Every hook it has answers something other than None, at least once."""
    asked: dict[str, bool] = {}

    def after(hook: str, arguments: Any, answer: object) -> None:  # noqa: ANN401 - a hook's
        asked[hook] = asked.get(hook, False) or answer is not None

    for _, plugin in case.composed().layers:
        unmarked = sorted(set(vars(type(plugin))) & HOOKS - case.hooks)
        if unmarked:
            raise case.breaks(f"{unmarked[0]} is called like a hook: mark it with @fl.hookimpl")
    for suite, data in ((case.suite(), None), (joined_by_three(case), small_dataset(samples=108))):
        _ = play_small(with_hook_recorder(case.composed(), after=after), suite, data).result
    silent = sorted(hook for hook, answered in asked.items() if not answered and hook != "setup")
    if silent:
        raise case.breaks(
            f"its hook {silent[0]} never answers, as if it were not there: is a `return` missing?"
            " Or name parameters in `conformance` with which it acts"
        )


def joined_by_three(case: Case) -> Suite:
    """The small suite with three clients more, which join after the last round."""
    return case.suite(clients=JOINING, unseen=0.34, unseen_epochs=1)


@law(usual_run)
def newcomers_served(case: Case) -> None:
    """Clients that join after the last round get a model."""
    played = case.play(joined_by_three(case), small_dataset(samples=108))
    if played.result.unseen is None:
        why = [text for text in played.run.history.warnings + played.said if "unseen" in text]
        raise case.breaks(why[-1] if why else "newcomers are not reported")


@law(usual_run)
def normed_network(case: Case) -> None:
    """A network with BatchNorm works, whatever becomes of its statistics."""
    model = {"name": "mlp", "hidden": 3, "norm": True}
    for policy in ("global", "local", "reset"):
        cornered(case, suite=case.suite(model=model, buffers=policy))


@law(usual_run)
def empty_group(case: Case) -> None:
    """Clients that are all alike, and a group without members, work or are declined."""
    data = small_dataset()
    same = {int(label): data.x[data.y == label][0] for label in data.y.unique()}
    data = replace(data, x=torch.stack([same[int(label)] for label in data.y]))
    local = replace(case.suite().local, batch_size=1000)
    watch: list[tuple[str, object]] = [("kit", Alike())]
    groups_itself = {"setup", "cluster"} & case.hooks or getattr(case.kind, "row_per_client", False)
    if not groups_itself:
        watch.append(("kit-empty", Emptied()))
    cornered(case, suite=case.suite(local=local), dataset=data, watch=watch)


HOOKS = {name for name, spec in vars(hookspecs).items() if hasattr(spec, "flbench_spec")}
"""The names of all hooks."""


HOSTILE: tuple[object, ...] = (-1, 0, -1.5, float("nan"), "", "no such value", None, [], {"a": 1})
"""Values to set every parameter to: whoever minds must say so in one line."""


@law(usual_run)
def clear_errors(case: Case) -> None:
    """What it does not accept it refuses in one line that names it."""
    for name, value in _hostile(case):
        try:
            method = compose(case.method, {**case.told.params, name: value})
            play_small(method, case.suite(rounds=1))
        except Diverged:
            continue
        except FlbenchError as error:
            text = str(error).strip()
            said = text.partition(case.method)[2].strip("'.: ")
            if "\n" in text or not said or said.isidentifier():  # the bare name of an exception
                raise case.breaks(
                    f"with {name}={value!r} it says {text!r}, expected one line that names"
                    f" '{case.method}' and what it minds"
                ) from None
        except (Exception, SystemExit) as error:
            raise case.breaks(
                f"with {name}={value!r} it raises {type(error).__name__}: {error}, expected"
                f" {PluginError.__name__} or ValueError with one line"
            ) from None


def _hostile(case: Case) -> Iterator[tuple[str, object]]:
    """Every parameter with every hostile value."""
    for one in fields(case.kind):
        for value in HOSTILE if one.init else ():
            yield one.name, value
