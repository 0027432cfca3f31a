"""DC-PFL's trials: its hooks alone, on losses and models that are made up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import flbench as fl
from flbench_plugins.dc_pfl import DCPFL, NoDC

PLACES = (0, 0.02, 0.05, 0.6, 0.63, 1.0)
"""Models are (0, 1, place): they lie |a - b| / 3 apart. Merges at .02, .03, .04, .385 and .72, so
that g = .8 and .6 give two groups, .4 and .2 leave the last alone, and 0 everybody."""


@dataclass
class Drive:
    """Rounds without training: the loss falls by a fifth a round, trials are won when told."""

    rule: DCPFL
    rounds: int
    wins: Any = ()
    won: float = 0.9
    places: tuple[float, ...] = PLACES
    notes: dict[str, dict[int, Any]] = field(default_factory=dict)
    starts: list[fl.Start] = field(default_factory=list)

    def __post_init__(self) -> None:
        n, drive = len(self.places), self
        ids, models = torch.arange(n), torch.tensor([[0.0, 1.0, place] for place in self.places])

        class Alone(fl.Context):
            def note(self, name: str, value: Any) -> None:
                drive.notes.setdefault(name, {})[drive.round] = value

            def send(self, *_: Any) -> None:
                """Count nothing."""

            def repeated(self, row: torch.Tensor, times: int | None = None) -> torch.Tensor:
                return row.expand(times or n, -1)

        Alone.__abstractmethods__ = frozenset()

        layout = fl.ParameterLayout.of(torch.nn.Linear(2, 1))
        self.ctx = Alone(  # type: ignore[abstract]
            0, 0, self.rounds, n, ids, ids + 7, ids[:, None], 1, layout, models[0],
            fl.LocalTraining(),
        )  # fmt: skip
        setup = self.rule.setup(self.ctx)
        memory = {name: kept.value for name, kept in setup.memory.items()}
        self.state = fl.State(0, models, setup.membership, memory)
        for round_ in range(1, self.rounds + 1):
            self.round = round_
            ctx = replace(self.ctx, round=self.round)
            (stage,) = self.rule.plan(self.state, ctx)
            self.starts.append(self.rule.dispatch(self.state, stage, ctx))
            trained = torch.stack([models] * (1 + (stage.kind == "trial")), dim=1)
            loss = torch.full(trained.shape[:2], 0.8**self.round).double()
            after = loss.clone()
            after[:, 1:] *= self.won if self.round in self.wins else 1.1
            upload = fl.Upload(
                ids, trained, loss > 0, ids + 7, ids, loss[:, 0], loss, after, torch.zeros_like(ids)
            )
            scores = self.rule.score(self.state, stage, upload, ctx)
            self.state = self.state.remember(scores.memory)
            self.state = self.state.regroup(self.rule.cluster(self.state, stage, scores, ctx))
            made = self.rule.aggregate(self.state, upload, self.state.membership, ctx)
            self.state = replace(self.state, models=made.rows).remember(made.memory)

    @property
    def trials(self) -> list[int]:
        return [*self.notes.get("dc-pfl.trial", {})]

    @property
    def groups(self) -> list[list[int]]:
        same = self.state.membership.weights
        assert same is not None
        return sorted({tuple(row.nonzero()[:, 0].tolist()) for row in same})


@pytest.mark.slow
def test_adopted_trials_on_an_exponential_come_in_rounds_12_24_36() -> None:
    drive = Drive(DCPFL(), 60, range(99))
    assert drive.trials == [12, 24, 36], "and none after g = 0"
    assert drive.notes["dc-pfl.groups_by_g"] == {
        5: {"0.0": 6, "0.2": 3, "0.4": 3, "0.6": 2, "0.8": 2, "1.0": 1}
    }
    memory = drive.state.memory
    assert memory["dc-pfl.step"].tolist() == [0, 5]
    assert (int(memory["dc-pfl.changed"]), int(memory["dc-pfl.trial"])) == (36, 0)
    assert drive.notes["dc-pfl.trial"][24] == pytest.approx([0.8**24, 0.9 * 0.8**24])


@pytest.mark.parametrize(
    ("rounds", "groups", "step"),
    [(11, [(0, 1, 2, 3, 4, 5)], 5), (12, [(0, 1, 2), (3, 4, 5)], 3),
     (24, [(0, 1, 2), (3, 4), (5,)], 1), (36, [(0,), (1,), (2,), (3,), (4,), (5,)], 0)],
)  # fmt: skip
def test_groups_follow_the_trials(rounds: int, groups: Any, step: int) -> None:
    drive = Drive(DCPFL(), rounds, range(99))
    assert drive.groups == groups
    assert drive.state.memory["dc-pfl.step"].tolist() == [step, 5], "steps that cut alike are one"


def test_a_trial_that_ends_in_a_draw_changes_nothing() -> None:
    drive = Drive(DCPFL(), 20, range(99), won=1.0)
    assert drive.trials == [12, 18]
    assert drive.groups == [(0, 1, 2, 3, 4, 5)]


def test_where_everybody_is_alone_nothing_is_tried_again() -> None:
    drive = Drive(DCPFL(), 40, range(99), places=(0.0, 1.0))
    assert drive.trials == [12]
    assert drive.groups == [(0,), (1,)]


@pytest.mark.parametrize(
    ("settings", "wins", "expected"),
    [
        ({}, (), [12, 18, 24, 30]),
        ({}, (18,), [12, 18, 30]),  # after a change losses are counted anew
        ({"alpha": 1}, (), [11, 17, 23, 29]),
        ({"alpha": 1}, range(99), [11, 22, 33]),
        ({"t_sp": 4}, (), [12, 18, 24, 30]),  # 16 would be in the middle of a cycle
        ({"t_sp": 7}, (), [12, 21, 30]),
        ({"t_obs": 5}, (), [15, 21, 27, 33]),
        ({"window": 2, "t_start": 3}, (), [9, 15, 21, 27, 33]),
        ({"t_start": 9, "alpha": 1}, (), [14, 20, 26, 32]),  # rounds up to 9 are no turn
        ({"lambda_step": 0}, (), []),
        ({"fixed": 0.8}, (), []),
    ],
)
def test_rounds_of_trials(settings: Any, wins: Any, expected: list[int]) -> None:
    assert Drive(DCPFL(**settings), 33, wins).trials == expected


def test_every_radius_is_noted() -> None:
    drive = Drive(DCPFL(), 36, range(99))
    losses, noted = 0.8 ** torch.arange(1, 37).double(), drive.notes["dc-pfl.radius"]
    assert [*noted] == [*range(5, 37)], "in trials too"
    assert [r for r in noted if noted[r]] == [*range(7, 13), *range(19, 25), *range(31, 37)]
    for since, round_ in ((0, 7), (0, 11), (0, 12), (12, 19), (24, 35)):
        expected = fl.elbow.radii(losses[since:round_], 5)[-1:].tolist()
        assert noted[round_] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("lambda_step", "grid"),
    [
        (0.2, [1, 0.8, 0.6, 0.4, 0.2, 0]),
        (0.1, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0]),
        (0.3, [1, 0.7, 0.4, 0.1, 0]),
        (0.4, [1, 0.6, 0.2, 0]),  # not 1, .5, 0
        (0.25, [1, 0.75, 0.5, 0.25, 0]),
        (0.75, [1, 0.25, 0]),
        (1.0, [1, 0]),
        (1e-05, None),
    ],
)
def test_g_falls_by_the_step_that_is_asked_for(lambda_step: float, grid: Any) -> None:
    rule = DCPFL(lambda_step=lambda_step)
    state = Drive(rule, 5).state
    left, steps = state.memory["dc-pfl.step"].tolist()
    assert left == steps
    if grid is None:
        assert (steps, rule.g(state, 1)) == (100_000, 1e-05)
    else:
        assert [rule.g(state, left) for left in range(steps, -1, -1)] == grid


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lambda_step", "groups"),  # heights over the last: .028, .042, .056, .53 and 1
    [(0.2, [1, 2, 3, 6]), (0.4, [1, 2, 3, 6]), (0.75, [1, 3, 6]), (0.9, [1, 3, 6]), (1.0, [1, 6])],
)
def test_every_adopted_trial_takes_the_next_g_of_the_grid(lambda_step: float, groups: Any) -> None:
    found = [len(Drive(DCPFL(lambda_step=lambda_step), rounds, range(99)).groups)
             for rounds in (11, 12, 24, 36)]  # fmt: skip
    assert sorted(set(found)) == groups


@pytest.mark.parametrize("fixed", [0.8, 0.4, 0.2, 1.0, 0.03])
def test_fixed_groups_are_made_once_and_stay(fixed: float) -> None:
    expected = {0.8: 2, 0.4: 3, 0.2: 3, 1.0: 1, 0.03: 5}
    assert NoDC().fixed == 0.8
    assert [len(Drive(NoDC(fixed=fixed), rounds).groups) for rounds in (4, 5, 33)] == [
        1, expected[fixed], expected[fixed],
    ]  # fmt: skip


def test_a_client_alone_takes_no_part_in_a_trial() -> None:
    drive = Drive(DCPFL(), 36, range(99))
    assert drive.starts[35].params.shape == (6, 2, 3), "36 is a trial"
    assert drive.starts[35].sent_mask.all(dim=1).tolist() == [True] * 5 + [False]
    assert not drive.starts[35].sent_mask[5].any()
    assert bool(drive.starts[23].sent_mask.all())
