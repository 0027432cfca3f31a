"""Periods: whose data change, how, and what follows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from mentions import mention
from torch import Tensor

from flbench.core.period_settings import PeriodSettings
from flbench.errors import UserError
from flbench.federation.federation import Samples
from flbench.federation.periods import Period, Periods, periods_of
from flbench.federation.row_lists import RowLists

GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
CLASSES = 6


def change(kind: str, start: int = 3, **fields: Any) -> PeriodSettings:
    return PeriodSettings(start=start, change=kind, **fields)  # type: ignore[arg-type]


def found(
    *changes: PeriodSettings,
    seed: int = 0,
    groups: Tensor | None = GROUPS,
    names: Sequence[int] = range(12),
) -> tuple[Period, ...]:
    return periods_of(changes, 9, seed, groups, names, CLASSES)


def pool(splits: Sequence[str] = ("train", "validation")) -> Samples:
    """Of each client two samples a split; the first pixel names client and split."""
    rows = 2 * 12 * len(splits)
    x = torch.arange(rows).float()[:, None, None, None] + torch.tensor([[0.0, 0.1], [0.2, 0.3]])
    y = torch.arange(rows) % CLASSES
    lists = {
        name: RowLists.of(torch.arange(2) + 2 * (len(splits) * client + at) for client in range(12))
        for at, name in enumerate(splits)
    }
    return Samples(x, y, lists)


def test_half_of_each_group_exchange_their_data_with_other_groups() -> None:
    first, second = found(change("exchange", share=0.5))
    assert (first.first, second.first) == (1, 3)
    assert first.origin.tolist() == list(range(12))
    moved = second.origin != first.origin
    assert [int(moved[group == GROUPS].sum()) for group in range(3)] == [2, 2, 2]
    assert sorted(second.origin.tolist()) == list(range(12)), "each data set has one client"
    assert bool((GROUPS[second.origin] != GROUPS)[moved].all()), "everybody gets another group's"
    assert second.groups is not None
    assert torch.equal(second.groups, GROUPS[second.origin]), "the true group is that of the data"


def test_movers_of_a_group_go_to_several_groups() -> None:
    ends = {
        tuple(sorted(GROUPS[found(change("exchange"), seed=seed)[1].origin][:4].tolist()))
        for seed in range(8)
    }
    assert any(len(set(groups)) > 1 for groups in ends)


@pytest.mark.parametrize("sizes", [(2, 1, 1), (3, 3), (1, 1), (5, 3, 1, 1), (2, 2, 2, 2, 2)])
def test_everybody_can_exchange_where_no_group_has_more_than_half(sizes: tuple[int, ...]) -> None:
    groups = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    for seed in range(20):
        (_, now) = periods_of([change("exchange")], 9, seed, groups, range(sum(sizes)), CLASSES)
        assert sorted(now.origin.tolist()) == list(range(sum(sizes)))
        assert bool((groups[now.origin] != groups).all())


def test_samples_of_all_splits_follow_their_data_set() -> None:
    visible, held_out = pool(), pool(["test"])
    _, second = found(change("exchange", share=0.5))
    for samples in (visible, held_out):
        after = second.of(samples)
        assert after.x is samples.x, "no sample is copied"
        for name, lists in samples.splits.items():
            for client, origin in enumerate(second.origin.tolist()):
                assert torch.equal(after.splits[name][client], lists[origin])


def test_a_swap_of_labels_that_a_client_lacks_changes_nothing_of_it() -> None:
    """Of the first group two have label 0 or 1; in the second case one has 5 for 2 by then."""
    held = [{0, 2}, {2, 3}, {1}, {2}, *[{4}] * 8]

    def played(*changes: PeriodSettings) -> list[list[int]]:
        periods = periods_of(changes, 9, 0, GROUPS, range(12), CLASSES, held)
        return [[] if one.groups is None else one.groups[:4].tolist() for one in periods[1:]]

    first = change("swap-labels", labels=((0, 1),), groups=(0,))
    assert played(first) == [[3, 0, 3, 0]]
    moved = change("swap-labels", labels=((2, 5),), clients=(1,))
    again = change("swap-labels", start=5, labels=((5, 3),), clients=(0, 1, 2, 3))
    assert played(moved, again) == [[0, 3, 0, 0], [0, 4, 0, 0]]
    turned = change("rotate", degrees=90, clients=(3,))
    assert played(turned) == [[0, 0, 0, 3]]
    for nobody in (
        change("swap-labels", labels=((0, 1),), groups=(1, 2)),
        change("swap-labels", labels=((5, 3),), clients=(0, 2)),
    ):
        with pytest.raises(UserError, match="nobody changes, as none of these clients has such"):
            played(nobody)


def test_labels_are_swapped_of_those_who_change_alone() -> None:
    samples = pool()
    first, second, third = found(
        change("swap-labels", labels=((0, 1), (2, 5)), groups=(1,)),
        change("swap-labels", start=5, labels=((1, 0), (5, 2)), clients=(4, 5)),
    )
    table = torch.tensor([1, 0, 5, 3, 4, 2])
    for period, changed in ((first, ()), (second, (4, 5, 6, 7)), (third, (6, 7))):
        after = period.of(samples)
        for name, lists in samples.splits.items():
            for client in range(12):
                rows, before = after.splits[name][client], lists[client]
                assert torch.equal(after.x[rows], samples.x[before])
                labels = samples.y[before]
                expected = table[labels] if client in changed else labels
                assert torch.equal(after.y[rows], expected)
    assert second.groups is not None
    assert third.groups is not None
    assert second.groups.tolist() == [0] * 4 + [3] * 4 + [2] * 4, "another task, another group"
    assert third.groups.tolist() == [0] * 4 + [1] * 2 + [3] * 2 + [2] * 4, "swapped back"


def test_images_are_turned() -> None:
    samples = pool()
    _, second, third = found(
        change("rotate", degrees=90, clients=(0,)), change("rotate", 4, degrees=180, clients=(0,))
    )
    (before, *_), turned = samples.splits["train"][0], second.of(samples)
    now = turned.x[turned.splits["train"][0][0]]
    assert torch.equal(now[0], samples.x[before][0].rot90(1))
    again = third.of(samples)
    last = again.x[again.splits["train"][0][0]]
    assert torch.equal(last[0], samples.x[before][0].rot90(3))
    flat = Samples(samples.x[:, 0, 0], samples.y, samples.splits)
    with pytest.raises(UserError, match=mention("shape", "got (2,)")):
        second.of(flat)


def test_changed_data_move_with_their_changes() -> None:
    swap = change("swap-labels", labels=((0, 1),), groups=(0,))
    _, second, third = found(swap, change("exchange", start=4))
    assert second.groups is not None
    assert third.groups is not None
    assert torch.equal(third.groups, second.groups[third.origin])
    after = third.of(samples := pool())
    client = int((third.origin == 0).nonzero())
    assert after.y[after.splits["train"][client]].tolist() == [1, 0]
    assert samples.y[samples.splits["train"][0]].tolist() == [0, 1]


def test_clients_leave_come_and_come_back() -> None:
    table = found(
        change("leave", 3, clients=(0, 1), until=6),
        change("come", 5, clients=(2,)),
        change("come", 20, clients=(3,)),
        change("leave", 20, clients=(4,)),
    )
    absent = {one.first: (~one.present).nonzero()[:, 0].tolist() for one in table}
    assert absent == {1: [2, 3], 3: [0, 1, 2, 3], 5: [0, 1, 3], 6: [3]}
    periods = Periods(table, pool(), pool(["test"]))
    assert [periods.at(round_).first for round_ in (0, 1, 2, 3, 4, 5, 6, 9)] == [
        *(1, 1, 1, 3, 3, 5, 6, 6)
    ]


def test_periods_follow_the_names_of_clients() -> None:
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7, 11, 10]
    changes = (
        change("exchange", share=0.5),
        change("swap-labels", 4, labels=((0, 1),), share=0.5),
        change("leave", 5, share=0.5),
    )
    usual = found(*changes)
    other = found(*changes, groups=GROUPS[order], names=order)
    for one, same in zip(usual, other, strict=True):
        assert same.present.tolist() == one.present[order].tolist()
        assert [order[i] for i in same.origin.tolist()] == one.origin[order].tolist()
        assert same.transforms == tuple(one.transforms[name] for name in order)
        assert one.groups is not None
        assert same.groups is not None
        assert same.groups.tolist() == one.groups[order].tolist()


def test_what_is_drawn_depends_on_the_seed() -> None:
    draws = {tuple(found(change("leave", share=0.5), seed=s)[1].present.tolist()) for s in range(5)}
    assert len(draws) > 1
    for draw in draws:
        assert [sum(draw[at : at + 4]) for at in (0, 4, 8)] == [2, 2, 2]


def test_without_true_groups_anybody_may_get_the_data_of_anybody_else() -> None:
    _, second = found(change("exchange"), groups=None)
    assert second.groups is None
    assert sorted(second.origin.tolist()) == list(range(12))
    assert bool((second.origin != torch.arange(12)).all())


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (change("leave", clients=(12,)), "clients 0 to 11 expected in training, got 12"),
        (change("leave", groups=(5,)), "true group expected of 0, 1, 2, got 5"),
        (change("leave", share=0.1), "nobody changes; expected a larger share"),
        (change("exchange", groups=(1,)), "more than half of the 4 clients that change expected"),
        (change("swap-labels", labels=((0, 6),)), "labels 0 to 5 expected, got 6"),
    ],
)
def test_a_change_that_cannot_be_made_is_one_line(wrong: PeriodSettings, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as refused:
        found(wrong)
    assert "\n" not in str(refused.value)
