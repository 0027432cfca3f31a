"""Improvability and its draws: numbers by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from flbench.leaderboard.resampling import (
    SEED,
    TableErrors,
    bootstrap,
    drawn_units,
    improvability,
    mean_over_suites,
)
from flbench.metrics import Floats


def of(errors: Mapping[str, Sequence[Floats]]) -> dict[str, list[TableErrors]]:
    return {suite: [TableErrors(one) for one in tables] for suite, tables in errors.items()}


def test_improvability_by_hand() -> None:
    # errors .4, .2, .3: the best is (.4 - .2) / .4 below the first, (.3 - .2) / .3 below the third
    found = improvability(np.array([[0.4, 0.2, 0.3], [0.0, 0.5, 0.0], [0.3, 0.3, 0.3]]))
    assert found[0] == pytest.approx([50, 0, 100 / 3])
    assert found[1].tolist() == [0, 100, 0], "an error of nothing cannot be improved"
    assert found[2].tolist() == [0, 0, 0]


def test_every_suite_counts_once_however_many_tables_it_has() -> None:
    values = {"s": [np.array([0.0, 4.0]), np.array([2.0, 0.0])], "t": [np.array([5.0, 6.0])]}
    assert mean_over_suites(values).tolist() == [3.0, 4.0]


def test_the_draws_are_these_for_ever() -> None:
    rng = np.random.default_rng(0)
    errors = {"s": [rng.random((5, 3)), rng.random((4, 3))], "t": [rng.random((3, 3))]}
    draw = np.random.RandomState(SEED)
    chosen = draw.randint(2, size=(6, 2))
    expected = np.zeros((6, 3))
    for suite, found in enumerate(errors.values()):
        for slot in range(2):
            replicates = [b for b in range(6) if chosen[b, slot] == suite]
            for table in found:
                seeds = draw.randint(len(table), size=(len(replicates), len(table)))
                for b, drawn in zip(replicates, seeds, strict=True):
                    means = [sum(table[seed, m] for seed in drawn) / len(drawn) for m in range(3)]
                    for m in range(3):
                        own = 100 * (means[m] - min(means)) / means[m]
                        expected[b, m] += own / len(found) / 2
    assert bootstrap(of(errors), replicates=6) == pytest.approx(expected)


def test_suites_are_drawn_and_seeds_within_them() -> None:
    # equal seeds: improvability 50 in one suite, 0 in the other; draws give 0, 25 or 50
    errors = {"s": [np.array([[0.4, 0.2]] * 3)], "t": [np.array([[0.2, 0.2]] * 3)]}
    values, counts = np.unique(bootstrap(of(errors))[:, 0].round(6), return_counts=True)
    assert values.tolist() == [0, 25, 50]
    assert counts / 2000 == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
    seeds = {"s": [np.array([[0.4, 0.2], [0.2, 0.2], [0.4, 0.2]])]}
    assert set(bootstrap(of(seeds))[:, 0].round(6)) == {
        round(100 * (1 - 0.6 / total), 6) for total in (0.6, 0.8, 1.0, 1.2)
    }


def test_a_reference_may_be_better_than_the_best_of_the_ranked() -> None:
    # the best of the two ranked has .2; a reference of .1 makes half of its error
    found = improvability(np.array([[0.4, 0.2, 0.1, 0.8], [0.4, 0.2, 0.0, 0.2]]), ranked=2)
    assert found[0] == pytest.approx([50, 0, -100, 75])
    assert found[1, :2] == pytest.approx([50, 0])
    assert np.isnan(found[1, 2]), "an error of nothing, which no ranked method has"


def test_of_two_seeds_clients_are_drawn_within_seeds_and_paired() -> None:
    # 4 clients, errors .4 and .2, or .2 and .2, for both methods alike: pairs are never taken apart
    one = np.array([[0.4, 0.2], [0.4, 0.2], [0.2, 0.2], [0.2, 0.2]])
    table = TableErrors(np.stack([one.mean(axis=0)] * 2), (one, one))
    assert table.unit == "clients"
    drawn = table.drawn(np.random.RandomState(0), 4000)
    assert drawn[:, 1] == pytest.approx(0.2), "every client has .2"
    assert drawn[:, 0].mean() == pytest.approx(0.3, abs=0.003)
    # the mean of 8 draws of .4 or .2 has the variance .01 / 8
    assert drawn[:, 0].var() == pytest.approx(0.01 / 8, rel=0.1)
    # clients of one seed are never drawn for another: in the second all have .2
    other = np.full((4, 2), 0.2)
    mixed = TableErrors(np.stack([one.mean(axis=0), other.mean(axis=0)]), (one, other))
    values = mixed.drawn(np.random.RandomState(0), 4000)[:, 0]
    assert values.min() == pytest.approx(0.2) and values.max() == pytest.approx(0.3)


def test_a_client_that_is_the_same_in_both_seeds_is_drawn_with_both() -> None:
    one = np.array([[0.4], [0.4], [0.2], [0.2]])
    ids = np.arange(4)
    table = TableErrors(np.full((2, 1), 0.3), (one, one[[2, 3, 0, 1]]), (ids, ids[[2, 3, 0, 1]]))
    drawn = table.drawn(np.random.RandomState(0), 4000)[:, 0]
    # the mean of 4 draws of .4 or .2 has the variance .01 / 4, twice that of 8
    assert drawn.mean() == pytest.approx(0.3, abs=0.004)
    assert drawn.var() == pytest.approx(0.01 / 4, rel=0.1)
    # who is in one seed only counts there: each seed is a mean of those that were drawn of it
    apart = TableErrors(np.full((2, 1), 0.3), (one[:2], one[2:]), (ids[:2], ids[2:]))
    found = apart.drawn(np.random.RandomState(0), 4000)[:, 0]
    # one has .4, the other .2: both count alike where both are drawn, else the one that is
    assert sorted({*np.round(found, 6).tolist()}) == [0.2, 0.3, 0.4]
    assert np.isclose(found, 0.4).mean() == pytest.approx(1 / 16, abs=0.02), (
        "all four draws of the first"
    )


def test_two_seeds_without_clients_have_no_interval() -> None:
    alone = TableErrors(np.array([[0.4, 0.2], [0.4, 0.3]]))
    assert alone.unit == ""
    assert np.isnan(bootstrap({"s": [alone]}, 5)).all()
    assert drawn_units({"s": [alone]}) == ""


def test_what_is_drawn_is_said() -> None:
    seeds = TableErrors(np.zeros((3, 2)))
    clients = TableErrors(np.zeros((2, 2)), (np.zeros((4, 2)),) * 2)
    assert drawn_units({"s": [seeds]}) == "seeds"
    assert drawn_units({"s": [seeds], "t": [clients]}) == "suites, clients within seeds and seeds"
    assert drawn_units({"s": [clients]}) == "clients within seeds"
