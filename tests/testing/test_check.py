"""What an author and a person may set of the kit is obeyed or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mentions import mention
from toy import Typed

from flbench.core.conformance import Conformance
from flbench.errors import UserError
from flbench.suite import Suite
from flbench.testing.check import FIXED, MethodUnderTest
from flbench.testing.reproducibility import plain_suite

OTHER: dict[str, Any] = {
    "changes": {"1": "first"}, "paper": "P", "printed": {"small": {"fedavg": {"accuracy": 0.5}}},
    "dataset": "small-images", "offline_dataset": "digits", "partition": {"name": "iid"},
    "model": {"name": "logistic-regression"}, "further_models": [{"name": "logistic-regression"}],
    "common_head": True, "participation": 1.0, "local": {"epochs": 3}, "test_fraction": 0.5,
    "split": "random",
    "validation_fraction": 0.3, "server_samples": 0, "test_set": "labels", "test_samples": 7,
    "test_sizes": (), "buffers": "local", "eval_every": 2, "unseen_epochs": 1, "target": 0.5,
    "ft_epochs": 1, "own_models": True, "printed_judged": "own", "headline": "validation",
    "clock": {"seconds_per_step": 1.0},
    "metrics": ["auroc"], "not_judged": [0], "periods": [{"start": 2, "change": "exchange"}],
    "plugins": [{"name": "sign-flip"}],
    "title": "Another", "superseded_by": "another",
}  # fmt: skip
"""Another value of each field of a suite than the kit's own, or the default of the schema."""
BESIDE: dict[str, Any] = {
    "common_head": {"further_models": OTHER["further_models"]},
    "test_samples": {"test_set": "proportional"},
}
"""Fields without which another has no effect."""


def declaring(**suite: object) -> MethodUnderTest:
    """A method whose author declares fields of the suite."""
    tested = MethodUnderTest("fedprox")
    tested.conformance = Conformance(suite=suite)
    return tested


@pytest.mark.parametrize("field", Suite.model_fields)
def test_every_field_that_an_author_declares_is_obeyed_or_refused(field: str) -> None:
    if field in FIXED:
        with pytest.raises(UserError, match=f"conformance.suite: '{field}' cannot be set here: "):
            declaring(**{field: 1}).suite()
        return
    if field == "unseen_epochs":  # a check says whether there are newcomers
        with pytest.raises(UserError, match=mention("'unseen_epochs'", "unseen=0")):
            declaring(unseen_epochs=OTHER[field]).suite()
        return
    beside = BESIDE.get(field, {})
    usual = declaring(**beside).suite()
    found = declaring(**{field: OTHER[field]}, **beside).suite()
    told = found.model_dump(mode="json")
    expected = {**json.loads(json.dumps(OTHER[field]))} if field == "local" else None
    if expected:
        assert told["local"].items() >= expected.items()
    else:
        same = usual.model_copy(update={field: getattr(found, field)})
        assert getattr(found, field) == getattr(Suite.model_validate(
            {**usual.model_dump(), field: OTHER[field]}), field)  # fmt: skip
        assert field == "dataset" or same == found, "and nothing else changes"


def test_another_process_plays_the_same_suite() -> None:
    """Values that are the schema's defaults, but not the kit's, too."""
    tested = declaring(participation=0.1, server_samples=0, **{"local.momentum": 0.0})
    assert Suite.model_validate(json.loads(json.dumps(plain_suite(tested)))) == tested.suite()


def test_parts_of_a_clock_that_a_check_sets_are_refused_others_are_kept() -> None:
    speeds = [1.0, 1.3, 1.7, 2.9, 4.1, 5.3]
    with pytest.raises(UserError, match=mention("clock.dropout", "check")):
        declaring(clock={"seconds_per_step": speeds, "dropout": 0.5}).suite()
    clock = declaring(clock={"seconds_per_step": speeds}).suite(clock={"absent": 0.5}).clock
    assert clock is not None
    assert (clock.absent, clock.seconds_per_step) == (0.5, tuple(speeds))


def test_the_suite_of_other_samples_has_their_network() -> None:
    tested = declaring(**{"further_models": [{"name": "mlp"}], "local.lr": 0.2})
    suite = tested.elsewhere("small-images")
    assert (suite.model.name, suite.further_models, suite.local.lr) == ("normed-cnn", (), 0.2)


def test_what_a_person_sets_goes_before_what_the_author_declares() -> None:
    tested = MethodUnderTest("fedprox", {"mu": 0.5, "momentum": 0.25, "suite.local.lr": 0.3})
    tested.conformance = Conformance(params={"mu": 0.1}, suite={"local.momentum": 0.0})
    assert tested.params["mu"] == 0.5
    assert tested.compose().described.params["mu"] == 0.5
    assert (tested.suite().local.momentum, tested.suite().local.lr) == (0.25, 0.3)


@pytest.mark.slow
def test_check_takes_settings(typed: Typed) -> None:
    words = ("check", "fedprox", "--only", "plain-parameters")
    code, out, _ = typed(*words, "--set", "fedprox.mu=0.5", "--set", "dataset=small-text")
    assert (code, out.splitlines()[-1]) == (0, "  1 passed")
    for setting, said in (
        ("nosuch=1", "unknown parameter 'nosuch'"),
        ("clients=4", "--set: 'clients' cannot be set here: the kit has six and relabels them"),
        ("dataset=digits", "unknown data set of the kit 'digits'"),
        ("local.epochs=two", "--set: suite 'small': 'local.epochs'"),
    ):
        code, _, err = typed(*words, "--set", setting)
        assert code == 1
        assert err.startswith(f"flbench: {said}")
        assert err.count("\n") == 1
