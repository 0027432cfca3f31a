"""What the checks of reproducibility compare."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mentions import mentions
from safetensors.torch import load

from flbench.core.conformance import Conformance
from flbench.run.composition import compose
from flbench.testing import reproducibility
from flbench.testing.check import CheckFailed, MethodUnderTest
from flbench.testing.reproducibility import (
    declared_equal,
    kept_pair,
    relabelled_clients,
    rest_of_run,
)
from flbench.testing.small_run import DEFAULTS, run_small, small_suite

NAN = torch.nan


def test_what_a_client_keeps_is_compared_without_padding() -> None:
    alone, together = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, NAN, NAN], [1.0, 2.0, NAN]])
    one, other = kept_pair(alone, together, 1)
    assert torch.equal(one, other)
    one, other = kept_pair(alone, alone.repeat(2, 1), 1)
    assert torch.equal(one, other)


def test_the_rest_of_a_run_ends_as_the_whole() -> None:
    method = compose("fedavg")
    whole = run_small(method, small_suite(rounds=2))
    half = run_small(method, small_suite(rounds=2), last=1)
    tensors, stable = rest_of_run(
        "fedavg", {}, small_suite(rounds=2).model_dump(mode="json"), half.checkpoint
    )
    assert torch.equal(load(tensors)["state.models"], whole.state.models)
    assert stable["summary"] == whole.stable["summary"]


def test_groups_that_follow_ids_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two runs whose clients do equally well, one of them under other ids."""
    finished = run_small(DEFAULTS, small_suite())

    def run(labels: list[int], order: list[int]) -> Any:
        loss = [finished.last.loss[client] for client in order]
        return SimpleNamespace(last=SimpleNamespace(loss=loss, labels=labels))

    monkeypatch.setattr(reproducibility, "mean_losses", lambda last: last.loss)
    order, labels = list(reproducibility.ORDER), [0, 0, 0, 1, 1, 1]
    same = [labels[client] for client in order]

    def method(after: list[int]) -> Any:
        return SimpleNamespace(
            usual_run=run(labels, list(range(6))),
            run=lambda order: run(after, list(order)),
            failure=CheckFailed,
        )

    relabelled_clients.function(method([1 - label for label in same]))
    with pytest.raises(CheckFailed, match="groups of the relabelled clients"):
        relabelled_clients.function(method([0, *same[1:]] if same[0] else [1, *same[1:]]))


@pytest.mark.parametrize(
    ("within", "holds"), [({}, False), ({"fedavg": 1e-9}, False), ({"fedavg": 1e-4}, True)]
)
def test_equal_to_a_tolerance_is_what_the_author_declares(
    within: dict[str, float], holds: bool
) -> None:
    """Secure aggregation sums in fixed point: it is FedAvg to that rounding, no better."""
    tested = MethodUnderTest("secagg")
    tested.conformance = Conformance(equals={"fedavg": {}}, within=within, rounds=2)
    found = tested.run_check(declared_equal)
    assert found.ok is holds
    assert holds or mentions(found.reason, "fedavg", "declared")


def test_a_tolerance_hides_no_other_method() -> None:
    tested = MethodUnderTest("fedprox")
    tested.conformance = Conformance(
        equals={"fedavg": {"mu": 0.5}}, within={"fedavg": 1e-4}, rounds=2
    )
    assert "clients' models" in tested.run_check(declared_equal).reason
