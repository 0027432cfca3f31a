"""What becomes of methods together: the same as a run, in one line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from mentions import mentions

import flbench as fl
from flbench.errors import UnknownName, UserError
from flbench.plugin.own_objects import own_method
from flbench.plugin.registry import offering
from flbench.sweeps.request import RunRequest
from flbench.testing import composability
from flbench.testing.composability import outcome_of, partners

PAIRS = {
    "fedavg+fedprox": "runs",
    "fedasync+qsgd": "runs",
    "fedavgm+scaffold": "refused",
    "fedbabu+knn-per": "undefined",
    "pfedlia+ditto": "refused",
    "fedper+fedbabu+qsgd": "runs",
}


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_outcomes_of_pairs(pair: str) -> None:
    found = outcome_of(pair)
    assert found.what == PAIRS[pair], found
    assert bool(found.why) == (found.what != "runs")
    assert "\n" not in str(found) and str(found).startswith(f"{pair}: {found.what}")


def test_a_refusal_has_the_reason_of_a_run_and_trains_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(composability, "run_small", lambda *args, **kwargs: pytest.fail("trained"))
    with pytest.raises(UserError) as refused:
        fl.run_suite("fedavgm+scaffold", "noisy-noniid", rounds=1)
    found = outcome_of("fedavgm+scaffold")
    assert found.what == "refused"
    assert str(refused.value) == f"'fedavgm+scaffold' cannot be composed: {found.why}"


@pytest.mark.parametrize("text", ["nobody", "fedavg+nobody", "fedavg+fedavg", "fedavg+", ""])
def test_names_that_are_wrong_are_an_error_of_one_line(text: str) -> None:
    for error in (lambda: outcome_of(text), lambda: list(partners(text))):
        with pytest.raises(UserError):
            error()


@dataclass(frozen=True)
class Averages:
    """Averages; only after one that is named before it."""

    @fl.hookimpl
    def aggregate(self, state: Any, upload: Any, membership: Any) -> Any:
        return fl.Models(fl.member_mean(state.models, upload, membership))


@dataclass(frozen=True)
class Fragile:
    """Has no meaning beside others."""

    @fl.hookimpl
    def setup(self, ctx: Any) -> None:
        if ctx.rounds > 1:
            raise fl.Undefined("rounds")


@dataclass(frozen=True)
class Broken:
    """Is broken."""

    @fl.hookimpl
    def personalise(self) -> Any:
        return 1 / 0


def test_a_method_alone_and_then_with_every_other(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {kind.__name__.lower(): own_method(kind) for kind in (Averages, Broken, Fragile)}
    own = {("methods", n): (replace(one, name=n), kind) for n, (one, kind) in mine.items()}
    known = dict.fromkeys(sorted([*mine, "fedavg", "fedavgm"]))
    monkeypatch.setattr(composability, "entries", lambda kind: known)
    with offering(own):
        found = {one.text: one for one in partners("averages")}
        (alone,) = partners("fragile")
    assert {text: one.what for text, one in found.items()} == {
        "averages": "runs",
        "averages+broken": "fails",
        "averages+fedavg": "runs",
        "averages+fedavgm": "refused",
        "averages+fragile": "undefined",
    }
    assert mentions(found["averages+broken"].why, "broken.personalise", "division by zero")
    assert mentions(found["averages+fragile"].why, "fragile", "rounds")
    assert (alone.text, alone.what) == ("fragile", "undefined")


@pytest.mark.slow
def test_an_order_that_runs_is_said() -> None:
    found = outcome_of("secagg+dp-fedavg")
    assert found.what == "refused"
    assert mentions(found.why, "dp-fedavg+secagg runs")


@pytest.mark.slow
def test_a_suite_decides_as_its_runs_do() -> None:
    """A suite with several networks, of which a method knows one."""
    asked = RunRequest(suites=("noisy-noniid",), settings={"suite.clients": 6, "rounds": 9})
    assert outcome_of("fedprox+top-k", asked).what == "runs"
    several = RunRequest(suites=("several-networks",))
    found = outcome_of("fedbabu+qsgd", several)
    with pytest.raises(fl.Undefined) as error:
        fl.run_suite("fedbabu+qsgd", "several-networks", rounds=2)
    assert found.what == "undefined" and found.why in str(error.value)
    with pytest.raises(UnknownName):
        outcome_of("fedbabu+qsgd", RunRequest(suites=("nowhere",)))
