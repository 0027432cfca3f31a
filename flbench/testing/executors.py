"""Checks of the executors: clients that are trained in lanes end where they end one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import MethodType
from typing import cast

import torch
from torch import Tensor

from flbench.core.client import LocalWork
from flbench.core.model_bank import plain
from flbench.core.state import Dispatched, Stage, Upload
from flbench.engine.options import EngineOptions
from flbench.engine.vectorised import Vectorised
from flbench.errors import Undefined
from flbench.suite import Suite
from flbench.testing.check import CheckSkipped, MethodUnderTest, check
from flbench.testing.edge_cases import check_result
from flbench.testing.reproducibility import ROUNDING, trained_alone
from flbench.testing.small_run import Fit

RELATIVE = 1e-3
"""Allowed distance of two models, relative to the distance that they moved."""
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


def train_with_both(method: MethodUnderTest, suite: Suite) -> None:
    """Play a run in which both executors train the clients of every stage from the same start."""
    different: list[str] = []

    def train_twice(
        fit: Fit, start: Dispatched, stage: Stage, work: LocalWork, round_: int
    ) -> Upload:
        executor = cast(Vectorised, cast(MethodType, fit).__self__)
        executor.uses = 1  # steps are recorded at once, and made from what was recorded
        lanes = fit(start, stage, work, round_)
        if executor.reason is not None:
            return lanes  # they were trained one by one
        executor.reason = "this check compares"
        one_by_one = fit(start, stage, work, round_)
        found = list(uploads_apart(lanes, one_by_one, start))
        if found:
            shaken = shake(start, executor.workspace.layout.parameters)
            again = fit(shaken, stage, work, round_)
            found = list(uploads_apart(lanes, one_by_one, start, again))
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
    lanes: Upload, one_by_one: Upload, start: Dispatched, again: Upload | None = None
) -> Iterator[str]:
    """What differs in the uploads of two executors by more than rounding.

    Args:
        lanes: of the vectorised one.
        one_by_one: of the sequential one.
        start: of both.
        again: of the sequential one from a start with other last bits. What differs there from
            `one_by_one` is decided by rounding alone, and is not compared: a bias before BatchNorm
            has a gradient of zero but for rounding, which Adam scales to a step of full length.
    """
    for index, client in enumerate(lanes.ids.tolist()):
        rows = [torch.as_tensor(one.params[index]) for one in (lanes, one_by_one, again or lanes)]
        moved = float((rows[1] - start.params[index]).norm())
        apart = float(_apart(rows[0], rows[1], rows[2] if again else None).norm())
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


def _apart(one: Tensor, other: Tensor, again: Tensor | None) -> Tensor:
    """The difference of two tensors, without the scalars that rounding decides."""
    difference = (one.double() - other.double()).nan_to_num()
    if again is None or again.shape != other.shape:
        return difference
    unstable = (again.double() - other.double()).nan_to_num().abs() > ROUNDING
    if 2 * unstable.sum() > unstable.numel():
        return difference  # there would be too little to compare
    return torch.where(unstable, 0.0, difference)


def _near(one: Tensor, other: Tensor, again: Tensor | None) -> bool:
    """Whether two tensors are equal to rounding; NaN equals NaN."""
    if one.shape != other.shape or not torch.equal(one.isnan(), other.isnan()):
        return False
    apart = float(_apart(one, other, again).norm())
    return apart <= RELATIVE * float(other.double().nan_to_num().norm()) + ROUNDING
