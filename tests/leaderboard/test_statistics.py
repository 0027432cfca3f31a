"""The leaderboard's statistics: numbers by hand, then laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import sem, ttest_1samp
from scipy.stats import t as student

from flbench.leaderboard.statistics import (
    Estimate,
    RowStatistics,
    average_ranks,
    block,
    blocks,
    compare,
    critical_difference,
    estimate,
    friedman,
    holm,
    letters,
    ranks,
    seeds_needed,
    uneven,
)

CALM = settings(max_examples=25, deadline=None)


def rows_of(*tables: list[list[float]]) -> list[dict[int, np.ndarray]]:
    """Rows from nested lists: row -> seed -> clients."""
    return [
        {seed: np.array(clients, dtype=float) for seed, clients in enumerate(table)}
        for table in tables
    ]


# --- seeds of two kinds ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("means", "found"),
    [
        ([0.9, 0.55, 0.89, 0.91], True),  # a gap of .34, a range of .02
        ([0.9, 0.55, 0.53, 0.91], True),  # two and two
        ([0.3, 0.85, 0.31, 0.3], True),  # one that is better
        ([0.9, 0.55, 0.91], False),  # three seeds can be so by chance
        ([0.9, 0.8, 0.84, 0.96], False),  # spread evenly
        ([0.9, 0.86, 0.9, 0.9], False),  # a gap of .04
        ([0.9, 0.85, 0.9, 0.9], False),  # a gap of .05 is not more
        ([0.80, 0.61, 0.85, 0.80], False),  # .19 is less than four times .05
        ([0.80, 0.59, 0.85, 0.80], True),
        ([0.9] * 4, False),
    ],
)
def test_seeds_of_two_kinds_are_seen(means: list[float], found: bool) -> None:
    assert uneven(means) is found
    assert uneven(means[::-1]) is found


@CALM
@given(st.lists(st.floats(0.0, 0.5), min_size=1, max_size=8), st.floats(-0.2, 0.4))
def test_uneven_is_a_matter_of_distances(means: list[float], shift: float) -> None:
    means = [round(mean, 4) for mean in means]
    assert uneven(means) == uneven([round(mean + round(shift, 4), 4) for mean in means])
    assert not uneven([mean / 10 for mean in means]), "no gap above .05"


# --- the interval -------------------------------------------------------------------------------


def test_an_interval_of_seeds_by_hand() -> None:
    # Means of the seeds .4 and .6: standard error .1; t of one degree of freedom is 12.7062.
    # Clients vary by .1 about each: variance .04 / 2 = .02, so .05 for the mean of four;
    # t of two degrees of freedom is 4.3027, which is narrower.
    found = estimate([np.array([0.3, 0.5]), np.array([0.5, 0.7])])
    assert found.of_seeds == pytest.approx(0.1)
    assert found.of_clients == pytest.approx(np.sqrt(0.02 / 4))
    assert found.interval == pytest.approx([0.5 - 1.27062, 0.5 + 1.27062], abs=1e-5)
    # t = 5: p = 1 - 2 atan(5) / pi
    assert found.p == pytest.approx(1 - 2 * np.arctan(5) / np.pi)


def test_seeds_that_agree_by_chance_make_no_interval_narrower_than_its_clients() -> None:
    found = estimate([np.array([0.3, 0.7]), np.array([0.4, 0.6])])
    assert found.of_seeds == 0
    error = np.sqrt((0.08 + 0.02) / 2 / 4)
    assert found.interval == pytest.approx([0.5 - 4.3027 * error, 0.5 + 4.3027 * error], abs=1e-4)
    assert found.p == pytest.approx(ttest_of(0.5, float(error), 2))


def ttest_of(mean: float, error: float, freedom: int) -> float:
    """Two-sided p of Student's t."""
    return float(2 * student.sf(mean / error, freedom))


def test_one_seed_has_an_interval_of_its_clients_and_no_p() -> None:
    found = estimate([np.array([0.2, 0.4, 0.9])])
    expected = student.interval(0.95, 2, loc=0.5, scale=sem([0.2, 0.4, 0.9]))
    assert found.interval == pytest.approx(expected)
    assert np.isnan(found.p)
    assert np.isnan(estimate([np.array([0.25])]).interval).all(), "one client says nothing"


def test_an_interval_and_p_of_seeds_that_vary_are_those_of_a_t_test_of_their_means() -> None:
    draw = np.random.default_rng(2)
    values = draw.normal(0.3, 1.0, size=(6, 1)) + draw.normal(0, 0.1, size=(6, 30))
    expected = ttest_1samp(values.mean(axis=1), 0)
    found = estimate(list(values))
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(expected.confidence_interval(0.95))


def test_seeds_may_differ_in_their_clients() -> None:
    values = [np.array([0.0, 1.0, 0.5]), np.array([1.0, 0.0])]
    found = estimate(values)
    assert found.of_clients == pytest.approx(np.sqrt((0.5 + 0.5) / 3 * (1 / 3 + 1 / 2) / 4))
    assert found.freedom == 3


def test_a_client_of_two_seeds_counts_once() -> None:
    """The same three clients with the same values: the error is that of one seed, 1 / sqrt(3)."""
    values, ids = np.array([0.0, 1.0, 2.0]), np.array([0, 1, 2])
    found = estimate([values, values], [ids, ids])
    assert (found.of_clients, found.freedom) == (pytest.approx(3**-0.5), 2)
    assert estimate([values, values]).of_clients == pytest.approx(6**-0.5), "six clients"
    # -1, 0, 1 and 0, 1, -1 add up to -1, 1, 0: a sixth of these, squared, times 3 / 2
    turned = estimate([values, values], [ids, ids[[2, 0, 1]]])
    assert turned.of_clients == pytest.approx((2 / 36 * 1.5) ** 0.5)
    # no client in both seeds: as independent ones, but for the factor of four clients and of two
    others = estimate([values[:2], values[:2]], [ids[:2], ids[:2] + 2])
    assert others.of_clients == pytest.approx((4 / 64 * 4 / 3) ** 0.5)
    assert others.freedom == 3


def test_clients_that_are_the_same_in_every_seed_hold_what_they_say() -> None:
    """Differences of 40 persons that two seeds repeat: a true mean of 0 is left out in 5 %."""
    draw, ids = np.random.default_rng(8), np.arange(40)
    missed, naive = 0, 0
    for _ in range(400):
        persons = draw.normal(0, 1, 40)
        seeds = [persons + draw.normal(0, 0.3, 40) for _ in range(2)]
        low, high = estimate(seeds, [ids, ids]).within_seeds
        missed += not low <= 0 <= high
        low, high = estimate(seeds).within_seeds
        naive += not low <= 0 <= high
    assert 8 <= missed <= 34 < naive


def test_the_interval_leaves_out_0_where_p_is_below_5_percent() -> None:
    draw = np.random.default_rng(5)
    for seeds in (2, 3, 6):
        effect = draw.normal(0.05, 0.02, size=(seeds, 500, 1))
        found = estimate(list(effect + draw.normal(0, 0.1, size=(seeds, 500, 20))))
        outside = (found.interval > 0).all(axis=1) | (found.interval < 0).all(axis=1)
        assert np.array_equal(found.p < 0.05, outside)
        assert 10 < outside.sum() < 490
        beyond = (found.shown > 0).all(axis=1) | (found.shown < 0).all(axis=1)
        assert np.array_equal(found.p_shown < 0.05, beyond)
        assert (beyond.sum() > outside.sum()) == (seeds == 2), "two seeds say nothing of others"


def test_an_interval_within_seeds_leaves_them_out() -> None:
    """Two seeds that are far apart, each of which has two clients that differ by 2."""
    low, high = estimate([np.array([0.0, 2.0]), np.array([10.0, 12.0])]).within_seeds
    half = 4.3027 * (2.0 * 2 / 2 / 4) ** 0.5  # t of 2 degrees, variance 2, 4 clients
    assert (low, high) == pytest.approx((6 - half, 6 + half), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("seeds", [2, 3, 4, 8, 16])
def test_intervals_hold_what_they_say(seeds: int, spread: float) -> None:
    """Of the difference of equal rows: 100 clients of deviation .2, seeds of deviation 0 to .1.

    The simulation error is .0035 at .95; the two-stage bootstrap has .66 for two seeds and .1.
    """
    draw = np.random.default_rng([seeds, round(1000 * spread)])
    values = 0.2 * draw.standard_normal((seeds, 4000, 100))
    values += spread * draw.standard_normal((seeds, 4000, 1))
    low, high = estimate(list(values)).interval.T
    assert ((low <= 0) & (high >= 0)).mean() >= 0.935


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [2, *(pytest.param(seeds, marks=pytest.mark.long) for seeds in (3, 8)), 4, 16]
)
@pytest.mark.parametrize("spread", [0.0, 0.02, 0.05])
def test_intervals_of_skewed_accuracies_hold_what_they_say(seeds: int, spread: float) -> None:
    """Single means: right answers of 20, clients skewed about .9, which seeds move evenly.

    Even effects are the hardest for a t interval of two or three seeds; bootstrap has .64.
    """
    draw = np.random.default_rng([7, seeds, round(1000 * spread)])
    center = 0.9 + spread * np.sqrt(3) * draw.uniform(-1, 1, size=(seeds, 2000, 1))
    chance = draw.beta(5 * center, 5 * (1 - center), size=(seeds, 2000, 100))
    values = draw.binomial(20, chance) / 20
    low, high = estimate(list(values)).interval.T
    assert ((low <= 0.9) & (high >= 0.9)).mean() >= 0.92


# --- what can be told apart ---------------------------------------------------------------------


def test_a_paired_difference_is_seen_where_the_rows_own_intervals_overlap() -> None:
    spread = np.linspace(0.1, 0.8, 40)
    found = compare([{0: spread, 1: spread}, {0: spread + 0.01, 1: spread + 0.02}])
    assert found.intervals[0, 1] > found.intervals[1, 0], "they overlap widely"
    assert found.gains[1, 0] == pytest.approx(0.015)
    assert found.p[1, 0] == pytest.approx(1 - 2 * np.arctan(0.015 / 0.005) / np.pi)
    found = compare([{0: spread, 1: spread}, {0: spread + 0.01, 1: spread + 0.01}])
    assert found.better([0, 1]).tolist() == [[False, False], [True, False]]


def test_one_seed_separates_nobody() -> None:
    found = compare([{0: np.full(9, 0.9)}, {0: np.full(9, 0.1)}])
    assert found.gains[0, 1] == pytest.approx(0.8)
    assert np.isnan(found.p).all()
    assert not found.better([0, 1]).any()


def test_only_common_seeds_are_compared() -> None:
    many = {0: np.full(9, 0.9), 1: np.full(9, 0.1), 2: np.full(9, 0.5)}
    few, stranger = {1: np.full(9, 0.2), 2: np.full(9, 0.6)}, {7: np.full(9, 0.0)}
    found = compare([many, few, stranger])
    assert found.gains[1, 0] == pytest.approx(0.1), "seed 0 is not common"
    assert np.isnan(found.gains[0, 2])
    assert found.p[0, 1] == found.p[1, 0] == 0
    assert np.isnan(found.p[2]).all()
    assert found.better([0, 1, 2]).tolist() == [[False] * 3, [True, False, False], [False] * 3]
    assert found.better([1, 2]).tolist() == [[False, False], [False, False]]
    assert found.intervals[2].tolist() == [0, 0]


CLIENTS = st.lists(st.integers(0, 10), min_size=6, max_size=6)
ROW = st.lists(CLIENTS, min_size=2, max_size=2)


@CALM
@given(row=ROW, other=ROW)
def test_identical_rows_are_never_separable(row: list[list[int]], other: list[list[int]]) -> None:
    tables = [[[value / 7 for value in seed] for seed in one] for one in (row, other, row)]
    found = compare(rows_of(*tables))
    assert found.p[0, 2] == 1
    assert found.gains[0, 2] == 0
    better = found.better([0, 1, 2])
    assert not (better & better.T).any()
    assert not better[0, 2] and not better[2, 0]


@CALM
@given(row=ROW)
def test_a_shift_of_every_client_is_always_separable(row: list[list[int]]) -> None:
    low = [[value / 20 for value in seed] for seed in row]
    high = [[value + 0.5 for value in seed] for seed in low]
    found = compare(rows_of(low, high))
    assert found.better([0, 1]).tolist() == [[False, False], [True, False]]


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
    assert np.array_equal(alone.gains, beside.gains[:2, :2], equal_nan=True)
    assert np.array_equal(alone.p, beside.p[:2, :2], equal_nan=True)


@pytest.mark.slow
@CALM
@given(tables=st.lists(ROW, min_size=2, max_size=5), data=st.data())
def test_the_order_of_rows_does_not_matter(tables: list[list[list[int]]], data: st.DataObject):
    rows = rows_of(*[[[value / 10 for value in seed] for seed in table] for table in tables])
    order = data.draw(st.permutations(range(len(rows))))
    found, again = compare(rows), compare([rows[at] for at in order])
    assert np.array_equal(found.intervals[order], again.intervals)
    among = np.ix_(order, order)
    assert np.array_equal(found.gains[among], again.gains, equal_nan=True)
    assert np.array_equal(found.p[among], again.p, equal_nan=True)
    assert np.array_equal(found.better(order), again.better(range(len(rows))))


# --- the error rate of a table ------------------------------------------------------------------


def test_holms_procedure_by_hand() -> None:
    # .01 <= .05 / 4, .015 <= .05 / 3, .03 > .05 / 2, and so .04 is not rejected although <= .05
    p = np.array([0.03, 0.015, np.nan, 0.04, 0.01])
    assert holm(p).tolist() == [False, True, False, False, True]
    assert holm(np.array([])).tolist() == []
    assert holm(np.array([np.nan])).tolist() == [False]


def test_rows_that_are_not_asked_about_do_not_count_as_pairs() -> None:
    p = np.full((3, 3), 0.04)
    differences = np.array([[0.0, 0.1, 0.2], [-0.1, 0.0, 0.1], [-0.2, -0.1, 0.0]])
    found = RowStatistics(np.zeros((3, 2)), differences, p)
    assert not found.better([0, 1, 2]).any(), ".04 > .05 / 3"
    assert found.better([0, 2]).tolist() == [[False, True], [False, False]]


LONG = [(2, 10, 1500), (2, 30, 500), (4, 10, 1500), (4, 30, 500), (8, 10, 1500), (8, 30, 500)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "rows", "tables"),
    [(2, 10, 500), *(pytest.param(*one, marks=pytest.mark.long) for one in LONG)],
)
def test_a_table_of_equal_rows_separates_two_in_one_of_twenty_at_most(
    seeds: int, rows: int, tables: int
) -> None:
    """Familywise error; without correction it is above .7."""
    draw = np.random.default_rng([seeds, rows])
    errors = 0
    for _ in range(tables):
        effect = 0.05 * draw.standard_normal((rows, seeds, 1))
        values = effect + 0.2 * draw.standard_normal((rows, seeds, 20))
        found = compare([dict(enumerate(row)) for row in values])
        errors += bool(found.better(range(rows)).any())
    assert errors / tables <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / tables)


# --- how many seeds ------------------------------------------------------------------------------


def of_pair(mean: float, deviation: float, seeds: int = 4) -> Estimate:
    """An estimate of a difference with this deviation over seeds."""
    error = np.array(deviation / np.sqrt(seeds))
    return Estimate(np.array(mean), seeds, error, np.array(0.0), 100)


@pytest.mark.parametrize(("effect", "seeds"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_the_seeds_that_are_needed_are_those_of_the_tables_of_power(
    effect: float, seeds: int
) -> None:
    # paired t test, two-sided, 5 %, power .8: as G*Power and Cohen's tables have it
    assert seeds_needed(of_pair(effect / 10, 0.1)) == seeds
    assert seeds_needed(of_pair(-effect / 10, 0.1)) == seeds


def test_what_no_number_of_seeds_or_any_would_show() -> None:
    assert seeds_needed(of_pair(0.0, 0.1)) is None
    assert seeds_needed(of_pair(1e-4, 0.1)) is None, "about 7.8 million"
    assert seeds_needed(of_pair(0.1, 0.0)) == 2
    assert seeds_needed(of_pair(0.1, 0.1, seeds=1)) is None
    by_clients = Estimate(np.array(0.1), 4, np.array(0.0), np.array(0.05), 100)
    assert seeds_needed(by_clients) == seeds_needed(of_pair(0.1, 0.1)), "the greater error counts"


@pytest.mark.slow
@pytest.mark.parametrize(("effect", "pairs"), [(1.0, 1), (2.0, 45), (3.0, 435)])
def test_as_many_seeds_as_are_needed_show_a_difference_in_four_of_five(
    effect: float, pairs: int
) -> None:
    draw = np.random.default_rng(6)
    needed = seeds_needed(of_pair(effect, 1.0), pairs)
    assert needed is not None

    def power(seeds: int) -> float:
        values = draw.normal(effect, 1, size=(seeds, 8000, 1))
        return float((estimate(list(values)).p <= 0.05 / pairs).mean())

    assert power(needed) >= 0.785
    assert power(needed - 1) < 0.815


# --- ranks and letters --------------------------------------------------------------------------


def test_ranks_count_who_is_separably_better() -> None:
    better = np.zeros((4, 4), dtype=bool)
    better[0, 2] = better[0, 3] = True
    assert ranks(better) == [1, 1, 2, 2]
    better[2, 1] = True
    assert ranks(better) == [1, 2, 2, 2]
    better[0, 1], better[0, 2] = True, False
    assert ranks(better) == [1, 3, 3, 3], "no rank is better than the one above"


def test_letters_by_hand() -> None:
    def told(*pairs: str, rows: int) -> list[str]:
        table = np.zeros((rows, rows), dtype=bool)
        for i, j in pairs:
            table[int(i), int(j)] = table[int(j), int(i)] = True
        return letters(table)

    assert told(rows=3) == ["a", "a", "a"]
    assert told("01", "02", "12", rows=3) == ["a", "b", "c"]
    assert told("02", rows=3) == ["a", "ab", "b"]
    assert told("12", rows=3) == ["a", "a", "b"], "no two of a run are separable"
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
    assert found[25:] == ["z", "a1", "b1"]


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


# --- against scikit-posthocs ---------------------------------------------------------------------

KINDS = {
    "plain": lambda draw, shape: draw.random(shape),
    "ties": lambda draw, shape: draw.integers(0, 4, shape) / 4,
    "effect": lambda draw, shape: draw.random(shape) + np.arange(shape[1]) / 4,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape",
    [
        *((3, 3), (8, 5), (14, 4)),
        *(pytest.param(shape, marks=pytest.mark.long) for shape in ((20, 10), (5, 30))),
    ],
)
def test_nemenyis_test_and_holms_procedure_are_those_of_scikit_posthocs(
    kind: str, shape: tuple[int, int]
) -> None:
    posthocs = pytest.importorskip("scikit_posthocs")
    scores = KINDS[kind](np.random.default_rng([len(kind), *shape]), shape)
    ranks = average_ranks(scores)
    apart = np.abs(ranks[:, None] - ranks) > critical_difference(shape[1], shape[0])
    assert np.array_equal(apart, posthocs.posthoc_nemenyi_friedman(scores).to_numpy() < 0.05)
    upper = np.triu_indices(shape[1], 1)
    p, adjusted = (
        posthocs.posthoc_conover_friedman(scores, p_adjust=how).to_numpy()[upper]
        for how in (None, "holm")
    )
    assert np.array_equal(holm(p), adjusted <= 0.05)
    if kind == "effect" and shape[0] >= 8:
        assert apart.any()
        assert holm(p).any()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_demsars_example_is_that_of_scikit_posthocs() -> None:
    posthocs = pytest.importorskip("scikit_posthocs")
    p = posthocs.posthoc_nemenyi_friedman(DEMSAR).to_numpy()
    ranks, distance = average_ranks(DEMSAR), critical_difference(4, 14)
    for i, j in zip(*np.triu_indices(4, 1), strict=True):
        assert (abs(ranks[i] - ranks[j]) > distance) == (p[i, j] < 0.05)
    # the distance at which p of the two that are farthest apart would be alpha
    far = float(ranks.max() - ranks.min())
    assert critical_difference(4, 14, alpha=float(p.min())) == pytest.approx(far, abs=1e-3)


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
