"""Checks of the executors: clients that are trained in lanes end where they end one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MethodType
from typing import cast

import torch
from torch import Tensor

from flbench.core.client_module import LocalWork
from flbench.core.layout import Slot
from flbench.core.model_bank import plain
from flbench.core.state import Dispatched, Stage, Upload
from flbench.engine.lanes.vectorised import Vectorised
from flbench.engine.options import EngineOptions
from flbench.errors import Undefined
from flbench.suite import Suite
from flbench.testing.check import CheckSkipped, MethodUnderTest, check
from flbench.testing.edge_cases import check_result
from flbench.testing.reproducibility import ROUNDING, trained_alone
from flbench.testing.small_run import FitFunction

RELATIVE = 1e-3
"""Allowed distance of two models, relative to the distance that they moved."""
NOISE = 4
"""How many times farther apart rounding may bring two executors than two other last bits did."""
ADAM = {"local.optimizer": "adam", "local.lr": 0.01}


@check(trained_alone)
def vectorised_clients(method: MethodUnderTest) -> None:
    """The vectorised executor gives the same models as the sequential one, to rounding."""
    train_with_both(method, method.suite())


@check(vectorised_clients)
def trained_by_adam(method: MethodUnderTest) -> None:
    """With Adam both executors give the same models, to rounding, or it is refused."""
    with suppress(Undefined):
        train_with_both(method, method.suite(**ADAM))


@check(vectorised_clients)
def images_and_convolutions(method: MethodUnderTest) -> None:
    """On images, with convolutions and BatchNorm, both executors agree, or it is refused."""
    if method.suite().dataset == "small-images":
        raise CheckSkipped("all checks of this method are made on images")
    with suppress(Undefined):
        train_with_both(method, method.elsewhere("small-images"))


TASKS = "small-numbers", "small-labels"
"""Small federations of other tasks than classes."""


@check(vectorised_clients)
def other_tasks(method: MethodUnderTest) -> None:
    """Where numbers or labels are predicted, both executors agree, or it is undefined."""
    for dataset in TASKS:
        with suppress(Undefined):
            train_with_both(method, method.elsewhere(dataset))


def train_with_both(method: MethodUnderTest, suite: Suite) -> None:
    """Play a run in which both executors train the clients of every stage from the same start."""
    different: list[str] = []

    def train_twice(
        fit: FitFunction, start: Dispatched, stage: Stage, work: LocalWork, round_: int
    ) -> Upload:
        executor = cast(Vectorised, cast(MethodType, fit).__self__)
        executor.uses = 1  # steps are recorded at once, and made from what was recorded
        lanes = fit(start, stage, work, round_)
        if executor.reason is not None:
            return lanes  # they were trained one by one
        executor.reason = "this check compares"
        one_by_one = fit(start, stage, work, round_)
        slots = executor.workspace.layout.slots
        found = list(uploads_apart(lanes, one_by_one, start, slots))
        if found:
            shaken = shake(start, executor.workspace.layout.parameters)
            again = fit(shaken, stage, work, round_)
            found = list(uploads_apart(lanes, one_by_one, start, slots, again))
        executor.reason = None
        different.extend(f"{what} in round {round_}, stage '{stage.label}'" for what in found)
        return one_by_one

    engine = EngineOptions(executor="vectorised", accelerator="cpu")
    finished = method.run(suite, engine=engine, around_fit=train_twice)
    if different:
        raise method.failure(
            f"with --executor vectorised, from the same start, {different[0]}: a step may use its"
            " batch, parameters, buffers, `start` and `received`, but nothing else"
        )
    check_result(method, finished)


def shake(start: Dispatched, parameters: int) -> Dispatched:
    """The same start, each trained scalar one unit in the last place larger."""
    params = torch.as_tensor(plain(start.params)).clone()
    part = params[..., :parameters]
    params[..., :parameters] = torch.nextafter(part, torch.full_like(part, torch.inf))
    return replace(start, params=params)


def uploads_apart(
    lanes: Upload,
    one_by_one: Upload,
    start: Dispatched,
    slots: Sequence[Slot],
    again: Upload | None = None,
) -> Iterator[str]:
    """What differs in the uploads of two executors by more than rounding.

    Args:
        lanes: of the vectorised one.
        one_by_one: of the sequential one.
        start: of both.
        slots: the tensors of a row.
        again: of the sequential one from a start with other last bits. How far each tensor ends
            from `one_by_one` is what rounding alone does to it: a bias before BatchNorm has a
            gradient of zero but for rounding, which Adam scales to a step of full length.
    """
    for index, client in enumerate(lanes.ids.tolist()):
        rows = [torch.as_tensor(one.params[index]) for one in (lanes, one_by_one, again or lanes)]
        moved = float((rows[1] - start.params[index]).norm())
        distances = [(rows[0] - rows[1])[..., s.start : s.stop].norm() for s in slots]
        if again:
            noise = [(rows[2] - rows[1])[..., s.start : s.stop].norm() for s in slots]
            distances = [beyond(*pair) for pair in zip(distances, noise, strict=True)]
        apart = float(torch.stack(distances).norm())
        if not apart <= RELATIVE * moved + ROUNDING:
            yield (
                f"the model of client {client} ends {apart:.1e} away from where it ends when"
                f" trained alone (it moves by {moved:.1e})"
            )
        for name, extra in lanes.extras.items():
            other = one_by_one.extras.get(name)
            third = again.extras[name][index] if again else None
            if other is None or not _near(extra[index], other[index], third):
                yield f"client {client} uploads another '{name}'"


def beyond(distance: Tensor, noise: Tensor) -> Tensor:
    """A distance; nothing where rounding alone makes one that is not much smaller."""
    return torch.where(distance <= NOISE * noise, torch.zeros_like(distance), distance)


def _near(one: Tensor, other: Tensor, again: Tensor | None) -> bool:
    """Whether two tensors are equal to rounding; NaN equals NaN."""
    one, other = one.double(), other.double()
    if one.shape != other.shape or not torch.equal(one.isnan(), other.isnan()):
        return False
    apart = (one - other).nan_to_num().norm()
    if again is not None and again.shape == other.shape:
        apart = beyond(apart, (again.double() - other).nan_to_num().norm())
    return float(apart) <= RELATIVE * float(other.nan_to_num().norm()) + ROUNDING
