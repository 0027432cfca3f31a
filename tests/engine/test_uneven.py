"""Equal bits, where last bits depend on the rows of a pass and on addresses (`uneven.py`).

`pytest --uneven` runs any test so: with the network in the toy federation, and such products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import uneven
from toy import Play, install

from flbench.run.history import Evaluation, History
from flbench.suite import Suite
from flbench.testing import CHECKS
from flbench.testing.check import MethodUnderTest
from flbench.testing.reproducibility import ROUNDING, different_numbers

METHODS = ("lg-fedavg", "ifca", "pfedlia")
"""Explicit models, decisions by cross-evaluated losses, and groups found by them."""


BITS = [
    CHECKS[name]
    for name in (
        "same-seed-same-bytes", "trained-alone", "relabelled-clients", "vectorised-clients",
        "two-processes", "resumed-run", "seeds-apart", "declared-equal", "absent-clients-untouched",
        "test-labels-unseen", "newcomers-served",
    )
]  # fmt: skip
"""The checks that compare two runs."""


@dataclass
class Uneven(MethodUnderTest):
    """A method that the laws are tried on with the uneven network."""

    def suite(self, **changes: Any) -> Suite:
        model = {"name": "uneven", "hidden": 3}
        return super().suite(**{"model": model, **changes})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The network is found by its name, and products move, in fresh processes too."""
    install(tmp_path / "site", "uneven", uneven.POINT)
    monkeypatch.syspath_prepend(tmp_path / "site")
    with uneven.planted_products():
        yield


def test_logits_move_by_units_in_the_last_place_with_the_rows() -> None:
    net = uneven.Uneven(torch.nn.Tanh())
    x = torch.linspace(-1, 1, 4).requires_grad_()
    top = torch.tensor(torch.inf)
    same, one, two = (net(x.expand(rows, -1))[0] for rows in (7, 8, 2))
    assert torch.equal(one, torch.nextafter(same, top))
    assert torch.equal(two, torch.nextafter(one, top))
    (gradient,) = torch.autograd.grad(same.sum(), x)
    (other,) = torch.autograd.grad(two.sum(), x)
    assert torch.equal(other, gradient)


def at(place: int, table: torch.Tensor) -> torch.Tensor:
    """The same numbers, so many scalars behind the beginning of a cache line."""
    line = torch.empty(place + table.numel(), dtype=table.dtype)
    return line[place:].view(table.shape).copy_(table)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_products_move_with_rows_and_places(kind: torch.dtype) -> None:
    """(1 + 2^-13)^2 = 1 + 2^-12 and so many units in the last place, wherever torch multiplies."""
    one, bias = torch.full((1, 1), 1 + 2**-13, dtype=kind), torch.zeros(1, dtype=kind)

    def units(product: torch.Tensor) -> set[float]:
        return {*((product.double() - 1 - 2**-12) * 2**23).round().flatten().tolist()}

    with uneven.planted_products():
        for rows, first, second in ((1, 0, 0), (7, 0, 0), (7, 1, 0), (7, 0, 3), (6, 4, 5)):
            x, w = at(first, one.expand(rows, 1)), at(second, one)
            expected = {(rows + first + second) % 7.0 if kind == torch.float32 else 0.0}
            assert units(x @ w) == expected
            assert units(torch.nn.functional.linear(x, w, bias)) == expected
            assert units(at(first, x[None]) @ at(second, w[None])) == expected
            assert units(torch.func.vmap(torch.mm)(at(first, x[None]), w[None])) == expected
            exact = torch.ones(rows, 1)
            assert torch.equal(at(first, exact) @ torch.ones(1, 1), exact)


@pytest.mark.slow
def test_equal_models_are_evaluated_to_rounding(play_toy: Play) -> None:
    def net() -> torch.nn.Module:
        return uneven.build((3,), 4, hidden=3)

    one = play_toy("lg-fedavg", settings={"warm_rounds": 9}, net=net)
    other = play_toy("fedavg", net=net)
    assert torch.equal(one.served, other.served)
    assert one.run.history.last.loss != other.run.history.last.loss, "the fault is planted"
    assert different_numbers(one.run.history, other.run.history) == []


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_declared_equal_holds_to_rounding() -> None:
    verdict = Uneven("lg-fedavg").run_check(CHECKS["declared-equal"])
    assert str(verdict) == "declared-equal            passed"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("method", METHODS)
def test_the_checks_about_equal_bits_hold(method: str) -> None:
    tested = Uneven(method)
    found = {name: str(tested.run_check(name)).split(maxsplit=1)[1] for name in BITS}
    others = {name: said for name, said in found.items() if said != "passed"}
    assert others.keys() <= {"declared-equal"}, others


def history(**changes: Any) -> History:
    """Two clients with four and five test samples, after one round."""
    found = Evaluation(1, [2, 4], [4, 5], [4.0, 2.5], [1, 1], [2, 2], [0, 1])
    found = replace(found, **changes)
    kept = History()
    kept.add_round({"accuracy": found.headline(), "loss": found.mean_loss()}, found)
    return kept


@pytest.mark.parametrize(
    ("changes", "odd"),
    [
        ({}, []),
        ({"loss": [4 * (1 + ROUNDING / 2), 2.5]}, []),
        ({"correct": [3, 4]}, []),
        ({"validation_correct": [1, 0]}, []),
        ({"labels": [1, 0]}, []),
        ({"loss": [4 * (1 + 1.5 * ROUNDING), 2.5]}, ["clients' loss"]),
        ({"loss": [4.0, 2.6]}, ["loss", "clients' loss"]),
        ({"correct": [3, 3]}, ["clients' correct"]),
        ({"correct": [4, 4]}, ["accuracy", "clients' correct"]),
        ({"validation_correct": [2, 0]}, ["clients' validation_correct"]),
    ],
)
def test_what_is_more_than_rounding(changes: dict[str, Any], odd: list[str]) -> None:
    assert different_numbers(history(), history(**changes)) == odd
    assert different_numbers(history(**changes), history()) == odd


def test_a_loss_that_is_measured_once_only_differs() -> None:
    unmeasured = history()
    unmeasured.curves["loss"] = [None]
    assert different_numbers(history(), unmeasured) == ["loss"]
