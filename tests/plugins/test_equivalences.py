"""Laws: methods that must be each other where a parameter vanishes.

Numbers such as T16 are the names of the laws; other files of this folder hold the rest of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from mentions import mentions
from toy import CLIENTS, Play, Played, composition

from flbench import Context, Membership, Stage, hookimpl
from flbench.run.composition import compose
from flbench.testing.reproducibility import different_numbers
from flbench_plugins.oracle import Oracle
from flbench_plugins.pfedlia import PROBE, PFedLIA


def same_run(one: Played, other: Played) -> None:
    """What is trained, bit for bit; what is evaluated, to rounding; and the groups."""
    assert torch.equal(one.personal, other.personal)
    assert different_numbers(one.run.history, other.run.history) == []
    assert one.run.history.curves["train_loss"] == other.run.history.curves["train_loss"]
    assert one.run.history.last.labels == other.run.history.last.labels


@dataclass(frozen=True)
class Truth:
    """Replaces what pfedlia's clustering finds by the true groups, after a real probe."""

    uses_true_groups: ClassVar[bool] = True
    mode: str = "central"

    @hookimpl
    def cluster(self, stage: Stage, phase: str, scores: Any, ctx: Context) -> Membership | None:
        if stage.label != PROBE or phase != "after":
            return None
        assert scores.values.shape == (CLIENTS, CLIENTS), "the probe took place"
        assert bool(scores.values.any())
        groups = ctx.true_groups
        if self.mode == "central":
            return Membership(home=groups, parent=torch.zeros(2, dtype=torch.int64))
        same = (groups[:, None] == groups).float()
        everybody = torch.arange(CLIENTS)
        return Membership(home=everybody, weights=same, parent=torch.zeros_like(everybody))


def pfedlia_told(**params: Any) -> Any:
    lia = PFedLIA(warmup=1, probe_epochs=3, **params)
    return composition(("pfedlia", lia), ("truth", Truth(mode=lia.mode)))


@pytest.mark.slow
def test_pfedlia_with_the_true_labels_is_oracle(play_toy: Play) -> None:  # T16
    told = play_toy(pfedlia_told())
    oracle = play_toy("oracle", settings={"warmup": 1})
    assert len(told.state.models) == len(oracle.state.models) == 2
    assert bool(told.state.memory["pfedlia.influence"].any()), "the probe took place"
    same_run(told, oracle)
    fedavg = play_toy("fedavg")
    assert not torch.equal(told.personal, fedavg.personal), "groups made a difference"


@pytest.mark.slow
def test_peer_with_block_selections_is_central(play_toy: Play) -> None:  # T16
    peer, central = play_toy(pfedlia_told(mode="peer")), play_toy(pfedlia_told())
    assert len(peer.state.models) == CLIENTS
    same_run(peer, central)


@pytest.mark.slow
def test_oracle_with_one_group_is_fedavg(play_toy: Play) -> None:  # T16
    one = {"name": "label-groups", "groups": 1}
    oracle = play_toy("oracle", settings={"warmup": 1}, partition=one)
    fedavg = play_toy("fedavg", partition=one)
    assert oracle.run.history.last.labels == [0] * CLIENTS
    same_run(oracle, fedavg)


def test_oracle_never_lets_another_group_in(play_toy: Play) -> None:
    played = play_toy("oracle", settings={"warmup": 0}, rounds=1, participation=0.2)
    (trained,) = played.run.executor.samples and [
        g for g in (0, 1) if not torch.equal(played.state.models[g], played.run.context.initial)
    ]
    member = int(played.run.groups.tolist().index(trained))
    assert played.state.membership.home[member] == trained


@pytest.mark.slow
def test_warmup_that_never_ends_is_fedavg(play_toy: Play) -> None:  # T17
    fedavg = play_toy("fedavg")
    for method in ("pfedlia", "oracle"):
        for warmup in (3, 9):
            played = play_toy(method, settings={"warmup": warmup})
            same_run(played, fedavg)
            assert played.run.ledger.totals == fedavg.run.ledger.totals
            assert any("do not exceed warmup" in text for text in played.said)


@pytest.mark.slow
def test_probe_of_no_epochs_has_no_influence(play_toy: Play) -> None:  # T17
    probes: list[Stage] = []

    @dataclass(frozen=True)
    class Watch:
        @hookimpl
        def score(self, stage: Stage, phase: str) -> None:
            if stage.label == PROBE and phase == "after":
                probes.append(stage)

    lia = PFedLIA(warmup=1, probe_epochs=0)
    played = play_toy(composition(("pfedlia", lia), ("watch", Watch())))
    assert [len(stage.clients) for stage in probes] == [CLIENTS], "the probe took place"
    assert not played.state.memory["pfedlia.influence"].any()
    assert len(played.state.models) == 1
    same_run(played, play_toy("fedavg"))


@pytest.mark.slow
def test_influence_is_what_each_row_client_saves(play_toy: Play) -> None:  # T17, orientation
    """Recompute one entry with plain torch: the row is the judge, positive is helpful."""
    kept: dict[str, Any] = {}

    @dataclass(frozen=True)
    class Spy:
        @hookimpl
        def score(self, state: Any, stage: Stage, phase: str, upload: Any) -> None:
            if stage.label == PROBE and phase == "after":
                kept.update(theta0=state.models[0].clone(), partial=upload.selected().clone())

    lia = PFedLIA(warmup=1, probe_epochs=4)
    played = play_toy(composition(("pfedlia", lia), ("spy", Spy())))
    influence, run = played.state.memory["pfedlia.influence"], played.run
    samples, space = run.executor.samples, run.executor.workspace

    def loss(row: torch.Tensor, client: int) -> float:
        space.load(row)
        rows = samples.splits["validation"][client]
        with torch.no_grad():
            logits = space.module(samples.x[rows]).double()
        return float(torch.nn.functional.cross_entropy(logits, samples.y[rows]))

    for i, j in ((0, 1), (1, 0), (0, 5), (5, 0)):
        by_hand = loss(kept["theta0"], i) - loss(kept["partial"][j], i)
        assert abs(float(influence[i, j]) - by_hand) < 1e-6
    assert not torch.allclose(influence, influence.T)
    mates = run.groups[:, None] == run.groups
    assert influence[mates].mean() > influence[~mates].mean()
    assert influence[~mates].mean() < 0 < influence[mates].mean()


@pytest.mark.slow
def test_composition_with_fedavg_is_the_method_itself(play_toy: Play) -> None:
    settings = {"warmup": 1, "probe_epochs": 3}
    alone, with_fedavg = (play_toy(m, settings=settings) for m in ("pfedlia", "pfedlia+fedavg"))
    assert with_fedavg.job.method.described == alone.job.method.described
    assert with_fedavg.job.path == alone.job.path
    same_run(alone, with_fedavg)


@pytest.mark.slow
def test_the_plugin_named_last_wins_and_the_run_says_so(play_toy: Play) -> None:
    settings = {"warmup": 1, "probe_epochs": 3}
    layers = [compose(name, settings).layers[0] for name in ("pfedlia", "oracle")]
    last = play_toy(composition(*layers))
    assert mentions(last.said, "cluster", "oracle", "pfedlia")
    assert last.said == last.result.warnings
    same_run(last, play_toy("oracle", settings={"warmup": 1}))


@pytest.mark.slow
def test_every_method_sees_the_same_federation_cohorts_and_weights(play_toy: Play) -> None:  # T30
    runs = [
        play_toy(method, settings={"warmup": 1, "probe_epochs": 1})
        for method in ("fedavg", "local-only", "oracle", "pfedlia")
    ]
    for field in ("data", "partition", "initial_weights", "cohorts", "suite"):
        assert len({getattr(played.marks, field) for played in runs}) == 1
    assert len({played.marks.config for played in runs}) == 4
    other = play_toy("fedavg", seed=1)
    assert other.marks.partition != runs[0].marks.partition
    assert other.marks.cohorts != runs[0].marks.cohorts
    assert other.marks.initial_weights != runs[0].marks.initial_weights


@pytest.mark.slow
def test_batches_do_not_depend_on_the_method(play_toy: Play) -> None:  # T30
    """Round 1 of oracle, pfedlia and fedavg trains the same clients on the same batches."""
    uploads: dict[str, list[torch.Tensor]] = {}

    def watched(name: str, plugin: Any) -> None:
        @dataclass(frozen=True)
        class Watch:
            @hookimpl
            def aggregate(self, upload: Any) -> None:
                uploads.setdefault(name, []).append(upload.params.clone())

        play_toy(composition((name, plugin), ("watch", Watch())), rounds=2)

    @dataclass(frozen=True)
    class Nothing:
        pass

    watched("fedavg", Nothing())
    watched("oracle", Oracle(warmup=1))
    watched("pfedlia", PFedLIA(warmup=1, probe_epochs=5))
    assert torch.equal(uploads["fedavg"][0], uploads["oracle"][0])
    assert torch.equal(uploads["fedavg"][0], uploads["pfedlia"][0])
    assert torch.equal(uploads["fedavg"][1], uploads["oracle"][1]), "groups start equal"


@pytest.mark.slow
def test_local_only_exchanges_nothing_and_depends_on_nobody(play_toy: Play) -> None:
    played = play_toy("local-only")
    assert all(played.run.ledger.total(way) == 0 for way in ("down", "up", "peer"))
    seen = {int(i) for r in (1, 2, 3) for i in cohort_of(played, r)}
    moved = (played.state.models != played.run.context.initial).any(dim=1)
    assert set(moved.nonzero()[:, 0].tolist()) == seen
    alone = play_toy("local-only", settings={"schedule": "full"}, participation=1.0)
    same_run(alone, play_toy("local-only", participation=1.0))


@pytest.mark.slow
def test_one_client_alone_is_fedavg_and_local_only(play_toy: Play) -> None:
    one = {"clients": 1, "participation": 1.0, "partition": {"name": "iid"}}
    same_run(play_toy("local-only", **one), play_toy("fedavg", **one))


def cohort_of(played: Played, round_: int) -> list[int]:
    from flbench.run.rounds import cohort

    return cohort(played.job.suite, played.job.seed, round_).tolist()
