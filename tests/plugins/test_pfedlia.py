"""pFedLIA: where groups start and where newcomers join, by hand; and what its docstring says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small import Small
from toy import CLIENTS, Play, plain_work

import flbench as fl
from flbench.engine.encoding import encoded
from flbench_plugins import pfedlia
from flbench_plugins.pfedlia import PFedLIA

LIA = {"warmup": 1, "probe_epochs": 3}
PLAIN = {"epochs": 2, "batch_size": 4, "lr": 0.1}


# --- newcomers ----------------------------------------------------------------------------------


class Joining(Small):
    """Four clients, and a newcomer that loses half the squared distance to (1, 0)."""

    clients = 4
    samples = torch.tensor([1, 1, 1, 1, 1])

    def __init__(self) -> None:
        super().__init__(((1, 0),) * 5)


def joined(rule: PFedLIA, places: Any, models: Any, membership: Any, influence: Any = None) -> Any:
    """What `join` answers: partial models (place, 0) help it by place - place^2 / 2."""
    probed = torch.tensor([[0.0, 0.0], *([place, 0.0] for place in places)])
    rows = torch.tensor([[float(value), 0.0] for value in models])
    memory = {"pfedlia.probed": probed}
    if influence is not None:
        memory["pfedlia.influence"] = torch.tensor(influence).double()
    state, ctx = fl.State(9, rows, membership, memory), Joining()
    return rule.join(state, torch.tensor([4]), ctx)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("places", "transform", "expected"),
    [
        ((1, 0.5, -1, -3), "none", 20),  # .5, .375, -1.5, -7.5: the last is cut off
        ((1, 0.5, -1, -3), "signed_sqrt", 15),  # .71, .61, -1.22, -2.74: those that harm are
        ((1, 0.5, -1, -3), "clip", 15),  # .5, .375, -.5, -.5
        ((1, 0.9, 0.8, 0.7), "none", 25),  # .5, .495, .48, .455: a tenth apart at most, all stay
        ((1, 0.9, 0.8, 0.5), "none", 20),  # .5, .495, .48 against .375
    ],
)
def test_a_newcomer_selects_its_peers_by_the_rule_of_the_clients(
    places: Any, transform: Any, expected: float
) -> None:
    rule = PFedLIA(mode="peer", kmeans_transform=transform)
    everybody = fl.Membership(torch.arange(4), torch.eye(4))
    found = joined(rule, places, (10, 20, 30, 40), everybody)
    assert found.params[0, 0] == pytest.approx(expected)


FIRST = [[10, 10, -10, -10]] * 2 + [[0, 0, 0.25, 0.25]] * 2
"""The row (.5, .5, -.5, -.5) of a newcomer is near the last two, but has the first two's shape."""
TURNED = [[-1, -1, 1, 1]] * 2 + [[1, 1, -1, -1]] * 2
"""Here its row is that of the last two, but it is the first two that help it."""


@pytest.mark.parametrize(
    ("influence", "features", "expected"),
    [
        (FIRST, "zrow", 0), (FIRST, "corr", 0), (FIRST, "raw", 1),
        (TURNED, "zrow", 1), (TURNED, "corr", 1), (TURNED, "raw", 1), (TURNED, "sym", 0),
    ],
)  # fmt: skip
def test_a_newcomer_joins_by_the_features_that_grouped_the_clients(
    influence: Any, features: Any, expected: int
) -> None:
    rule, groups = PFedLIA(features=features), fl.Membership(torch.tensor([0, 0, 1, 1]))
    harms = 1 - 2**0.5
    found = joined(rule, (1, 1, harms, harms), (1, 2), groups, influence)
    assert found.row.tolist() == [expected]


# --- where groups start -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("home", "samples", "expected"),
    [
        ([0, 0, 1], None, [[5, 0], [0, 9]]),  # (1 * 3 + 2 * 6) / 3
        ([0, 1, 0], None, [[0.75, 6.75], [6, 0]]),
        ([0, 1, 0], 2, [[1, 6], [6, 0]]),  # the third trained on two of its three samples
    ],
)
def test_a_group_may_start_from_its_partial_models_mean(
    home: list[int], samples: int | None, expected: Any
) -> None:
    rule = PFedLIA(start="lia_mean", lia_samples=samples)
    groups = fl.Membership(torch.tensor(home), parent=torch.zeros(2, dtype=torch.int64))
    probed = torch.tensor([[7.0, 7], [3, 0], [6, 0], [0, 9]])
    state = fl.State(1, probed[:1], groups, {"pfedlia.probed": probed})
    ctx = Small()
    ctx.newcomers = 0  # type: ignore[attr-defined]
    found = rule.started(groups, state, ctx)  # type: ignore[arg-type]
    assert found.models is not None
    assert found.models.tolist() == expected
    assert len(found.memory["pfedlia.probed"]) == 0, "nobody needs them any more"
    assert PFedLIA().started(groups, state, ctx) == groups  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["central", "peer"])
def test_the_start_of_the_groups_does_not_change_the_influence(play_toy: Play, mode: str) -> None:
    """With either start it is computed before anything starts from it."""
    name = "pfedlia+scaffold" if mode == "central" else "pfedlia+fedprox"
    more = {"mu": 5} if mode == "peer" else {}
    found = [
        play_toy(name, settings={**LIA, **more, "mode": mode, "start": start}, local=PLAIN)
        for start in ("theta0", "lia_mean")
    ]
    one, other = (played.state.memory["pfedlia.influence"] for played in found)
    assert bool(one.any()), "the probe took place"
    assert torch.equal(one, other)
    assert found[0].run.ledger.totals == found[1].run.ledger.totals
    assert not torch.equal(found[0].personal, found[1].personal)


@pytest.mark.slow
def test_the_rows_are_the_means_of_the_selected_partial_models(play_toy: Play) -> None:
    settings = {**LIA, "mode": "peer", "start": "lia_mean"}
    two = play_toy("pfedlia", settings=settings, rounds=2, participation=0.2)
    assert len(two.state.memory["pfedlia.probed"]) == 0
    assert len(two.state.models) == CLIENTS
    assert two.run.history.curves["train_loss"][0] == pytest.approx(
        play_toy("pfedlia", settings=LIA, rounds=2, participation=0.2).run.history.curves[
            "train_loss"
        ][0]
    ), "the probe is no training"


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    ["fedprox", "scaffold", "moon", "fedlc", "fedphp", "per-fedavg", "pfedme", "qsgd", "dp-fedavg"],
)
def test_a_probe_is_trained_and_sent_like_any_model(other: str, play_toy: Play) -> None:
    """As a stage of the same name whose uploads are aggregated; and not as without the other."""
    params = {"fedprox": {"mu": 5}}.get(other, {})
    played = play_toy(f"pfedlia+{other}", settings={**LIA, **params}, local=PLAIN, rounds=2)
    run, state = played.run, played.state
    assert len(state.models) == 1 or state.membership.home.max() > 0
    probe = fl.Stage("probe", run.context.everybody, 2, "lia")

    def sent(stage: fl.Stage) -> torch.Tensor:
        start, ctx = run.hooks.dispatch(state, stage, run.context), run.context
        upload = run.executor.fit(start, stage, run.hooks.local_work(state, stage, ctx), 3)
        coders = run.hooks.encode(state, stage, upload, ctx)
        return encoded(upload, start, coders, state, ctx.layout.parameters)[0].selected()

    plain = plain_work(probe)
    start = run.hooks.dispatch(state, probe, run.context)
    assert torch.equal(sent(probe), sent(replace(probe, kind="train")))
    if other not in ("per-fedavg", "pfedme"):
        alone = run.executor.fit(start, probe, plain, 3).selected()
        assert not torch.equal(sent(probe), alone)


# --- what the docstring says --------------------------------------------------------------------


def test_every_open_point_is_named() -> None:
    text = pfedlia.__doc__ or ""
    assert all(f"B{number} " in text for number in range(1, 14))
