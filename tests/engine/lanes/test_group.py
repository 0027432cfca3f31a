"""Which lanes make a step together."""

from __future__ import annotations

import torch

from flbench.engine.batches import steps
from flbench.engine.lanes.group import LaneGroup, Turn, turns


def plans(*samples: int, batch: int = 4, per_step: int = 1) -> list[list[list[slice]]]:
    return [steps(number, batch, per_step, skip_single=False) for number in samples]


def test_full_batches_come_first_and_shorter_ones_share_a_turn() -> None:
    """Lanes of 3, 7, 8 and 11 samples: three last batches have three samples."""
    assert list(turns(plans(3, 7, 8, 11))) == [
        Turn([1, 2, 3], [0, 0, 0], (4,)),
        Turn([2, 3], [1, 1], (4,)),
        Turn([0, 1, 3], [0, 1, 2], (3,)),
    ]


def test_every_step_of_every_lane_is_made_once_and_in_order() -> None:
    plan = plans(1, 5, 6, 9, 9, 16, 0, per_step=2)
    made: list[list[int]] = [[] for _ in plan]
    for turn in turns(plan):
        for lane, step in zip(turn.lanes, turn.steps, strict=True):
            sizes = tuple(cut.stop - cut.start for cut in plan[lane][step])
            assert sizes == turn.sizes
            made[lane].append(step)
    assert made == [list(range(len(own))) for own in plan]


def test_no_steps_are_no_turns() -> None:
    assert not list(turns([]))
    assert not list(turns(plans(0, 0)))


def test_a_turn_is_split_into_lanes_that_made_equally_many_steps() -> None:
    turn = Turn([0, 1, 3], [0, 1, 2], (3,))
    assert turn.parts(None) == [turn] == turn.parts([5, 5, 5])
    assert turn.parts([2, 0, 2]) == [Turn([0, 3], [0, 2], (3,)), Turn([1], [1], (3,))]


def test_neighbours_are_changed_in_place_and_others_are_put_back() -> None:
    for lanes in ([1, 2], [0, 2]):
        table = torch.arange(4.0)
        group = LaneGroup(lanes, table.device)
        rows = group.take(table)
        rows += 10
        assert (table != torch.arange(4.0)).any() == (lanes == [1, 2]), "a view"
        group.put(table, rows)
        assert [i for i in range(4) if table[i] != i] == lanes
        assert len(group) == 2
