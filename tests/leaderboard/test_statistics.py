"""The leaderboard's statistics: numbers by hand, then laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flbench.leaderboard.statistics import (
    REPLICATES,
    Comparison,
    average_ranks,
    block,
    blocks,
    compare,
    critical_difference,
    friedman,
    letters,
    ranks,
    weights,
)

CALM = settings(max_examples=25, deadline=None)


def rows_of(*tables: list[list[float]]) -> list[dict[int, np.ndarray]]:
    """Rows from nested lists: row -> seed -> clients."""
    return [
        {seed: np.array(clients, dtype=float) for seed, clients in enumerate(table)}
        for table in tables
    ]


# --- the weights --------------------------------------------------------------------------------


@pytest.mark.parametrize(("seeds", "clients"), [(1, 5), (3, 4), (2, 1)])
def test_weights_are_means_of_as_many_clients_of_as_many_seeds(seeds: int, clients: int) -> None:
    table = weights(seeds, clients)
    assert table.shape == (REPLICATES, seeds * clients)
    assert np.allclose(table.sum(axis=1), 1)
    counts = table * seeds * clients
    assert np.array_equal(counts, counts.round())
    by_seed = counts.reshape(REPLICATES, seeds, clients).sum(axis=2)
    assert (by_seed % clients == 0).all(), "a drawn seed gives as many clients as there are"
    assert by_seed.max() == seeds * clients, "a seed may be drawn every time"


def test_the_draws_are_these_for_ever() -> None:
    rng = np.random.RandomState(20260101)
    drawn, who = rng.randint(2, size=(2, 2, 1)), rng.randint(3, size=(2, 2, 3))
    expected = np.zeros((2, 6))
    for b in range(2):
        for slot in range(2):
            for client in who[b, slot]:
                expected[b, drawn[b, slot, 0] * 3 + client] += 1 / 6
    assert np.allclose(weights(2, 3, replicates=2), expected)


def test_the_interval_has_the_width_that_theory_gives() -> None:
    # One seed: the mean of n drawn clients has variance s^2 / n with s^2 of ddof 0. Half the
    # clients right: s = 0.5, n = 400, so 1.96 * 0.5 / 20 = 0.049 on either side.
    (found,) = compare(rows_of([[0.0, 1.0] * 200])).intervals
    assert found == pytest.approx([0.451, 0.549], abs=0.003)
    # Seeds that differ count as such: two seeds of equal clients, at 0 and 1: both seeds are
    # drawn from one of them with probability 1/4, which is more than 2.5 %.
    (found,) = compare(rows_of([[0.0] * 50, [1.0] * 50])).intervals
    assert found.tolist() == [0, 1]


def test_one_client_of_one_seed_has_no_width() -> None:
    assert compare(rows_of([[0.25]])).intervals.tolist() == [[0.25, 0.25]]


# --- what can be told apart ---------------------------------------------------------------------


def test_a_paired_difference_is_seen_where_the_rows_own_intervals_overlap() -> None:
    spread = np.linspace(0.1, 0.8, 40)
    found = compare([{0: spread}, {0: spread + 0.01}])
    assert found.intervals[0, 1] > found.intervals[1, 0], "they overlap widely"
    assert found.differences[1, 0] == pytest.approx([0.01, 0.01])
    assert found.better.tolist() == [[False, False], [True, False]]


def test_a_difference_by_hand() -> None:
    # Two clients of one seed, rows differ by 1 on the first and -0.5 on the second: the mean of
    # two draws is 1, 0.25 or -0.5, each with at least 1/4, so the 95 % interval is [-0.5, 1].
    found = compare(rows_of([[1.0, 0.5]], [[0.0, 1.0]]))
    assert found.differences[0, 1].tolist() == [-0.5, 1.0]
    assert found.differences[1, 0].tolist() == [-1.0, 0.5]
    assert not found.separable.any()


def test_only_common_seeds_are_compared() -> None:
    many = {0: np.full(9, 0.9), 1: np.full(9, 0.1), 2: np.full(9, 0.5)}
    few, stranger = {1: np.full(9, 0.2), 2: np.full(9, 0.6)}, {7: np.full(9, 0.0)}
    found = compare([many, few, stranger])
    assert found.differences[1, 0] == pytest.approx([0.1, 0.1]), "seed 0 is not common"
    assert np.isnan(found.differences[0, 2]).all()
    assert np.isnan(found.differences[2, 1]).all()
    assert found.better.tolist() == [[False] * 3, [True, False, False], [False] * 3]
    assert found.intervals[2].tolist() == [0, 0]
    assert found.intervals[1].tolist() == [0.2, 0.6]
    third = {1: np.full(9, 0.3)}
    steady = {1: np.full(9, 0.2), 2: np.full(9, 0.5)}
    for rows in ([many, steady, third], [third, many, steady]):
        found = compare(rows)
        at = [row is steady for row in rows].index(True)
        apart = found.differences[at, [row is many for row in rows].index(True)]
        assert apart.tolist() == pytest.approx([0.0, 0.1]), "seeds 1 and 2, whatever others have"


CLIENTS = st.lists(st.integers(0, 10), min_size=6, max_size=6)
ROW = st.lists(CLIENTS, min_size=2, max_size=2)


@CALM
@given(row=ROW, other=ROW)
def test_identical_rows_are_never_separable(row: list[list[int]], other: list[list[int]]) -> None:
    tables = [[[value / 7 for value in seed] for seed in one] for one in (row, other, row)]
    found = compare(rows_of(*tables))
    assert not found.separable[0, 2]
    assert found.differences[0, 2].tolist() == [0, 0]
    assert (found.separable == found.separable.T).all()
    assert not found.separable.diagonal().any()


@CALM
@given(row=ROW)
def test_a_shift_of_every_client_is_always_separable(row: list[list[int]]) -> None:
    low = [[value / 20 for value in seed] for seed in row]
    high = [[value + 0.5 for value in seed] for seed in low]
    found = compare(rows_of(low, high))
    assert found.better.tolist() == [[False, False], [True, False]]


SEEDED = st.dictionaries(st.integers(0, 3), CLIENTS, min_size=1)


@pytest.mark.slow
@CALM
@given(one=SEEDED, other=SEEDED, strangers=st.lists(SEEDED, max_size=3))
def test_two_rows_are_compared_as_if_they_were_alone(
    one: dict[int, list[int]], other: dict[int, list[int]], strangers: list[dict[int, list[int]]]
) -> None:
    rows = [
        {seed: np.array(clients) / 10 for seed, clients in row.items()}
        for row in (one, other, *strangers)
    ]
    alone, beside = compare(rows[:2]), compare(rows)
    assert np.array_equal(alone.intervals, beside.intervals[:2])
    assert np.array_equal(alone.differences, beside.differences[:2, :2], equal_nan=True)


@pytest.mark.slow
@CALM
@given(tables=st.lists(ROW, min_size=2, max_size=5), data=st.data())
def test_the_order_of_rows_does_not_matter(tables: list[list[list[int]]], data: st.DataObject):
    rows = rows_of(*[[[value / 10 for value in seed] for seed in table] for table in tables])
    order = data.draw(st.permutations(range(len(rows))))
    found, again = compare(rows), compare([rows[at] for at in order])
    assert np.array_equal(found.intervals[order], again.intervals)
    assert np.array_equal(found.differences[np.ix_(order, order)], again.differences)


# --- ranks and letters --------------------------------------------------------------------------


def comparison(*differences: tuple[int, int, float, float], rows: int) -> Comparison:
    table = np.zeros((rows, rows, 2))
    table[..., 0], table[..., 1] = -1, 1
    for i, j, low, high in differences:
        table[i, j], table[j, i] = (low, high), (-high, -low)
    return Comparison(np.zeros((rows, 2)), table)


def test_ranks_count_who_is_separably_better() -> None:
    found = comparison((0, 2, 0.1, 0.2), (0, 3, 0.1, 0.2), (1, 3, 0.0, 0.2), rows=4)
    assert ranks(found.better) == [1, 1, 2, 2], "an interval that touches 0 separates nobody"


def test_letters_by_hand() -> None:
    def told(*pairs: str, rows: int) -> list[str]:
        table = np.zeros((rows, rows), dtype=bool)
        for i, j in pairs:
            table[int(i), int(j)] = table[int(j), int(i)] = True
        return letters(table)

    assert told(rows=3) == ["a", "a", "a"]
    assert told("01", "02", "12", rows=3) == ["a", "b", "c"]
    assert told("02", rows=3) == ["a", "ab", "b"]
    assert told("02", "03", "13", rows=4) == ["a", "ab", "bc", "c"]
    assert told("01", rows=3) == ["a", "b", "b"], "a run has no holes"
    assert told(rows=0) == []


@pytest.mark.slow
@CALM
@given(st.data())
def test_rows_that_share_a_letter_are_not_separable(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 7))
    flags = data.draw(st.lists(st.booleans(), min_size=rows * rows, max_size=rows * rows))
    table = np.triu(np.array(flags).reshape(rows, rows), 1)
    table |= table.T
    found = letters(table)
    assert all(found), "every row has a letter"
    for i in range(rows):
        for j in range(i):
            assert not (set(found[i]) & set(found[j]) and table[i, j])
    for i in range(rows - 1):
        assert table[i, i + 1] or set(found[i]) & set(found[i + 1]), "neighbours that tie share one"


def test_there_are_more_than_26_letters() -> None:
    found = letters(~np.eye(28, dtype=bool))
    assert found[:2] == ["a", "b"]
    assert found[25:] == ["z", "aa", "ab"]


# --- across tables ------------------------------------------------------------------------------

# Demšar (JMLR 7, 2006), Table 6: AUC of C4.5 with m and/or cf tuned, 14 data sets.
DEMSAR = np.array([
    [0.763, 0.768, 0.771, 0.798], [0.599, 0.591, 0.590, 0.569], [0.954, 0.971, 0.968, 0.967],
    [0.628, 0.661, 0.654, 0.657], [0.882, 0.888, 0.886, 0.898], [0.936, 0.931, 0.916, 0.931],
    [0.661, 0.668, 0.609, 0.685], [0.583, 0.583, 0.563, 0.625], [0.775, 0.838, 0.866, 0.875],
    [1.000, 1.000, 1.000, 1.000], [0.940, 0.962, 0.965, 0.962], [0.619, 0.666, 0.614, 0.669],
    [0.972, 0.981, 0.9751, 0.975], [0.957, 0.978, 0.946, 0.970],
])  # fmt: skip


def test_demsars_example_of_average_ranks_and_friedmans_test() -> None:
    assert average_ranks(DEMSAR) == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    statistic, p = friedman(DEMSAR)
    # The paper prints 9.28 by the formula without ties; ties of a table divide it by
    # 1 - sum(t^3 - t) / (n k (k^2 - 1)): three pairs and one four, so 1 - 78 / 840.
    assert statistic == pytest.approx(9.28 / (1 - 78 / 840), abs=0.02)
    assert p == pytest.approx(0.017, abs=0.002)


def test_demsars_example_of_the_critical_difference() -> None:
    assert critical_difference(4, 14) == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), abs=5e-4)
    assert round(critical_difference(4, 14), 2) == 1.25
    # Table 5 (a) of the same: q of 2 to 10 classifiers at 5 %
    printed = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
    ours = [critical_difference(k, 1) / np.sqrt(k * (k + 1) / 6) for k in range(2, 11)]
    assert ours == pytest.approx(printed, abs=1e-3)
    assert round(critical_difference(4, 14, alpha=0.1) / np.sqrt(20 / 84), 3) == 2.291


def test_equals_share_the_middle_of_their_ranks() -> None:
    assert average_ranks(np.array([[0.5, 0.7, 0.5, 0.1]])).tolist() == [2.5, 1, 2.5, 4]
    noise = np.array([[0.1 + 0.2, 0.3, 0.3 - 1e-16]])
    assert average_ranks(noise).tolist() == [2, 2, 2]


def test_methods_that_are_always_equal_are_no_reason_to_divide_by_nothing() -> None:
    assert friedman(np.full((3, 4), 0.5)) == (0.0, 1.0)


SCORES = {
    "one": {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.6},
    "two": {"a": 0.9, "b": 0.95, "c": 0.7, "d": 0.6},
    "three": {"a": 0.5, "b": 0.4, "c": 0.3},
    "four": {"a": 0.5, "b": 0.4, "c": 0.4},
    "five": {"a": 0.5, "e": 0.6},
}


def test_a_block_ranks_over_the_tables_that_hold_all_of_its_methods() -> None:
    found = block(SCORES, ["c", "a", "b"])
    assert found.tables == ("four", "one", "three", "two")
    assert found.ranks == {"a": 1.25, "b": (2.5 + 2 + 2 + 1) / 4, "c": (2.5 + 3 + 3 + 3) / 4}
    assert list(found.ranks) == ["a", "b", "c"]
    assert found.distance == critical_difference(3, 4)


def test_the_widest_block_comes_first_then_that_of_most_tables() -> None:
    (found,) = blocks(SCORES)
    assert set(found.ranks) == {"a", "b", "c"}, "12 cells, not 8"
    wide = {**SCORES, **{name: {**SCORES["one"], "f": 0, "g": 0} for name in ("one", "two")}}
    wide["one"] |= {"h": 0}
    wide["two"] |= {"h": 0}
    first, second = blocks(wide)
    assert (len(first.ranks), len(first.tables)) == (7, 2), "14 cells"
    assert (len(second.ranks), len(second.tables)) == (3, 4)


def test_there_may_be_no_block() -> None:
    assert blocks({}) == []
    assert blocks({"one": SCORES["one"]}) == []
    assert blocks({"one": {"a": 1, "b": 1}, "two": {"a": 1, "b": 1}}) == []
    assert blocks({"one": SCORES["one"], "five": SCORES["five"]}) == [], "nowhere together"
