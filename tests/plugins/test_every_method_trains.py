"""Every installed method learns; executors agree about those whose own tests do not say so."""

from __future__ import annotations

import pytest
import torch
from every import METHODS, run_of, settings_of
from toy import Play, toy_dataset

from flbench.engine.lanes import vectorised
from flbench.engine.lanes.vectorised import Vectorised
from flbench.engine.sequential import Sequential

pytestmark = pytest.mark.slow  # every method, played several times

AT_ONCE = {
    "lg-fedavg": {},
    "oracle": {"warmup": 0},
}
"""The special stage in round 1 already."""
ATTACKS = ("inner-product", "label-flip", "sign-flip")
"""Without a defence nobody learns from them."""
OFTEN = {
    "cfl", "clusterfl", "dc-pfl", "fedavg", "fedc2i", "fedprox", "fedrep", "fesem", "flis-dc",
    "flis-hc", "ifca", "lg-fedavg", "local-only", "oracle", "per-fedavg", "pfedlia", "scaffold",
}  # fmt: skip
"""Of these `tox` tests it: the systems of the papers and what they compare with."""
SLOW = {"apple": 80, "fedasync": 40, "fltrust": 40, "q-fedavg": 40}
"""Rounds of methods that take short steps: of few samples, of one client, or of a mixture."""
IN_NEED: dict[str, tuple[str, dict[str, object]]] = {
    "fedlc": ("oracle+fedlc", {"oracle.warmup": 1}),
    "lora": ("lora", {"head": True}),
}
"""Alone, fedlc never compares labels that no client has both; lora keeps its random head."""


@pytest.mark.parametrize("method", ["fedavg", "lg-fedavg", "oracle", "pfedlia"])
def test_both_executors_agree_after_a_round(method: str, play_toy: Play) -> None:
    ragged = {"participation": 1.0, "dataset": toy_dataset(samples=100)}
    settings = AT_ONCE.get(method, settings_of(method))
    one, other = (
        run_of(play_toy, method, settings=settings, rounds=1, executor=executor, **ragged)
        for executor in ("sequential", "vectorised")
    )
    assert set(one.run.context.samples.tolist()) == {8, 10}, "clients differ in size"
    assert type(one.run.executor) is Sequential
    assert isinstance(other.run.executor, Vectorised)
    assert other.run.executor.reason is None
    assert not torch.equal(one.personal, one.run.context.initial.expand_as(one.personal))
    close = {"rtol": 0.0, "atol": 1e-5, "equal_nan": True}
    torch.testing.assert_close(other.state.models, one.state.models, **close)
    assert other.state.memory.keys() == one.state.memory.keys()
    for name, value in one.state.memory.items():
        torch.testing.assert_close(other.state.memory[name], value, **close)
    assert torch.equal(other.state.membership.home, one.state.membership.home)
    assert other.run.ledger.totals == one.run.ledger.totals
    curves = one.run.history.curves, other.run.history.curves
    for name in ("loss", "train_loss"):
        assert curves[1][name] == pytest.approx(curves[0][name], abs=1e-5)


NO_STEPS = {
    *("boosting", "boosting-alone", "linear-alone", "own-majority", "random-intercept"),
    "random-slopes",
}
"""Methods that train no network."""
FAVOURITE = {"boosting-alone", "own-majority"}
"""Methods that know no more of seven samples: a leaf of trees holds five."""


@pytest.mark.parametrize(
    "method",
    [
        name
        if name in {*OFTEN, "fedproto", "pfedme"}
        else pytest.param(name, marks=pytest.mark.long)
        for name in METHODS
        if name not in NO_STEPS
    ],
)
def test_lanes_record_the_step_of_every_method(
    method: str, play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a step cannot be recorded, lanes are as right, but slower, and nothing says so."""
    monkeypatch.setattr(vectorised, "USES", 1)
    executor = run_of(play_toy, method, executor="vectorised").run.executor
    assert isinstance(executor, Vectorised)
    assert executor.reason is None
    programs = [one for kind in executor.programs.values() for one in kind.known.values()]
    assert any(program is not None for program in programs)


@pytest.mark.parametrize(
    "method",
    [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.long)
        for name in METHODS
        if name not in {*ATTACKS, *FAVOURITE}
    ],
)
def test_a_method_learns_more_than_a_clients_favourite_label(method: str, play_toy: Play) -> None:
    """A client owns two labels alike, so whoever knows that much is right half the time."""
    rounds = SLOW.get(method, 15)
    name, settings = IN_NEED.get(method, (method, None))
    played = run_of(play_toy, name, settings=settings, rounds=rounds, eval_every=rounds)
    assert played.result.summary["accuracy_mean"] > 0.7
