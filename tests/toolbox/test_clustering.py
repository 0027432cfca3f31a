"""Clusterers (T18): synthetic influence matrices, hand rows, and brute force."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from mentions import mention
from scipy.spatial.distance import cdist
from sklearn.metrics import adjusted_rand_score

from flbench.errors import UserError
from flbench.toolbox import clustering
from flbench.toolbox.clustering import (
    Features,
    Floats,
    Labels,
    Noise,
    adopt_noise,
    default_min_samples,
    distance_between_clients,
    optics,
    optics_groups,
    select_peers,
    standardised_rows,
    two_means,
    upper_group,
)

DEFAULTS: dict[str, Any] = {"features": "zrow", "min_samples": None, "xi": 0.05, "noise": "nearest"}


def block_influence(
    seed: int = 0, clients: int = 100, groups: int = 5, scale: float = 0.5
) -> tuple[Labels, Floats]:
    """Mates help, strangers harm; noise .15; log-normal scales of judges and of judged."""
    generator = np.random.default_rng(seed)
    truth = np.arange(clients) * groups // clients
    helps = np.where(truth[:, None] == truth, 1.0, -1.0)
    scores = helps + 0.15 * generator.normal(size=(clients, clients))
    scores *= generator.lognormal(0, scale, (clients, 1))
    return truth, scores * generator.lognormal(0, scale, (1, clients))


def groups_of(scores: Floats, **changes: Any) -> clustering.Groups:
    return optics_groups(scores, **{**DEFAULTS, **changes})


def numbered(labels: Labels) -> bool:
    """Whether labels are 0..k-1 without a gap."""
    return sorted(set(labels.tolist())) == list(range(labels.max() + 1))


def heavy_tailed(seed: int) -> Floats:
    generator = np.random.default_rng(seed)
    values = generator.standard_cauchy(int(generator.integers(2, 30)))
    return values * generator.lognormal(0, 2)


def scatter(values: Floats, upper: Any) -> float:
    return sum(float(((part - part.mean()) ** 2).sum()) for part in (values[upper], values[~upper]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_optics_finds_the_blocks_with_defaults(seed: int) -> None:  # T18
    truth, scores = block_influence(seed)
    order = np.random.default_rng(seed + 10).permutation(100)
    found = groups_of(scores[np.ix_(order, order)])
    assert adjusted_rand_score(truth[order], found.labels) == 1.0
    assert set(found.labels.tolist()) == set(range(5)), "and no -1"
    assert found.noise == 0
    assert found.sweep["10"] == 5
    assert set(found.sweep) == {"3", "5", "10"}


@pytest.mark.slow
@pytest.mark.parametrize("features", get_args(Features))
def test_all_four_features_find_blocks_of_equal_scale(features: str) -> None:
    truth, scores = block_influence(scale=0.0, clients=50)
    found = groups_of(scores, features=features)
    assert adjusted_rand_score(truth, found.labels) == 1.0


@pytest.mark.slow
def test_raw_features_are_fragile_where_the_scales_differ() -> None:
    truth, scores = block_influence()
    raw = groups_of(scores, features="raw")
    assert adjusted_rand_score(truth, raw.labels) < 0.9
    assert adjusted_rand_score(truth, groups_of(scores).labels) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("noise", get_args(Noise))
def test_noise_handling_leaves_nobody_out(noise: str) -> None:  # T18
    scores = block_influence()[1]
    found = groups_of(scores, features="raw", noise=noise)
    assert found.noise > 10, "there is noise to handle"
    assert numbered(found.labels)
    sizes = np.bincount(found.labels)
    assert len(found.labels) == 100
    if noise == "singleton":
        assert (sizes == 1).sum() == found.noise
    else:
        assert (sizes >= 10).all()
    if noise == "global":
        assert sizes[-1] == found.noise


def with_noise_at(monkeypatch: pytest.MonkeyPatch, labels: list[int]) -> None:
    """Let OPTICS answer what we say."""
    monkeypatch.setattr(clustering, "optics", lambda *_: np.array(labels))


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        ("nearest", [0, 0, 1, 1, 0, 1]),
        ("singleton", [0, 0, 1, 1, 2, 3]),
        ("global", [0, 0, 1, 1, 2, 2]),
    ],
)
def test_noise_by_hand(monkeypatch: pytest.MonkeyPatch, noise: str, expected: list[int]) -> None:
    with_noise_at(monkeypatch, [0, 0, 1, 1, -1, -1])
    near, far = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0, 9.0, 9.0]
    rows = np.array([near, near, far, far, [1.0] * 6, [8.0] * 6])
    found = groups_of(rows, features="raw", noise=noise)
    assert found.labels.tolist() == expected
    assert found.noise == 2


@pytest.mark.parametrize("noise", get_args(Noise))
def test_nothing_but_noise_is_one_group(monkeypatch: pytest.MonkeyPatch, noise: str) -> None:
    with_noise_at(monkeypatch, [-1] * 6)
    found = groups_of(np.random.default_rng(0).normal(size=(6, 6)), noise=noise)
    assert found.labels.tolist() == [0] * 6
    assert found.noise == 6


def test_noise_is_adopted_by_the_smallest_mean_distance() -> None:
    labels = np.array([0, 0, 3, 3, -1])
    distance = np.zeros((5, 5))
    distance[4, :4] = [1.0, 9.0, 4.0, 4.0]  # nearest point in group 0, nearest mean in group 3
    assert adopt_noise(labels, distance).tolist() == [0, 0, 3, 3, 3]
    distance[4, :4] = [1.0, 6.0, 4.0, 4.0]
    assert adopt_noise(labels, distance).tolist() == [0, 0, 3, 3, 0]
    distance[:4, :4] = [[9, 9, 0, 0], [9, 9, 0, 0], [0, 0, 9, 9], [0, 0, 9, 9]]
    assert adopt_noise(labels, distance).tolist() == [0, 0, 3, 3, 0], "only noise moves"


@pytest.mark.slow
@pytest.mark.parametrize("features", get_args(Features))
@pytest.mark.parametrize("value", [0.0, 0.1, -2.3])
def test_scores_without_spread_are_one_group(features: str, value: float) -> None:
    found = groups_of(np.full((20, 20), value), features=features)
    assert found.labels.tolist() == [0] * 20
    assert found.noise == 0


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_fewer_than_four_clients_are_one_group(clients: int) -> None:
    found = groups_of(np.diag(np.arange(1.0, clients + 1)))
    assert found.labels.tolist() == [0] * clients


def test_what_optics_sees_by_hand() -> None:
    scores = np.array([[3.0, 1, 3, 1], [0, 4, 4, 0], [5, 1, 5, 1], [1, 2, 1, 2]])
    # z-scores: [1, -1, 1, -1], [-1, 1, 1, -1], [1, -1, 1, -1], [-1, 1, -1, 1]
    half, whole = round(8**0.5, 9), 4.0
    expected = {
        "zrow": [[0, half, 0, whole], [half, 0, half, half], [0, half, 0, whole]],
        "raw": [[0, 20**0.5, 8**0.5, 10**0.5], [20**0.5, 0, 36**0.5, 18**0.5]],
        "corr": [[0, 1, 0, 2], [1, 0, 1, 1], [0, 1, 0, 2], [2, 1, 2, 0]],
        # (Z + Z^T)/2 off the diagonal: 01: -1, 02: 1, 03: -1, 12: 0, 13: 0, 23: -1; its maximum 1
        "sym": [[0, 2, 0, 2], [2, 0, 1, 1], [0, 1, 0, 2], [2, 1, 2, 0]],
    }
    for features, rows in expected.items():
        seen = distance_between_clients(scores, features)  # type: ignore[arg-type]
        assert seen[: len(rows)].tolist() == np.round(rows, 9).tolist(), features


@pytest.mark.parametrize("features", ["zrow", "raw"])
def test_groups_do_not_depend_on_the_order_of_sums(features: Any) -> None:
    # the same distances but for rounding errors, as on another processor; if OPTICS computes them
    # from the columns, its ties break in another way for some of these
    for seed in range(6):
        scores = block_influence(seed, clients=40, groups=8)[1]
        columns = np.random.default_rng(seed).permutation(40)
        here = distance_between_clients(scores, features)
        there = distance_between_clients(scores[:, columns], features)
        assert (here == here.T).all()
        assert (optics(here, 3) == optics(there, 3)).all()


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_distances_by_one_product_are_exact(scale: float) -> None:
    rows = scale * (np.random.default_rng(0).normal(size=(30, 50)) + 7)
    rows[20] = rows[3]
    rows[21] = rows[4] + 1e-9 * scale
    found = clustering.euclidean_distances(rows)
    np.testing.assert_allclose(found, cdist(rows, rows), rtol=1e-9, atol=1e-5 * scale)
    assert found[20, 3] == found[21, 4] == 0
    assert (clustering.euclidean_distances(np.ones((4, 3))) == 0).all()


def test_min_samples_and_xi_reach_optics(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []

    def spy(rows: Floats, min_samples: int, xi: float) -> Labels:
        asked.append((min_samples, xi))
        return np.zeros(len(rows), dtype=np.int64)

    monkeypatch.setattr(clustering, "optics", spy)
    scores = np.random.default_rng(0).normal(size=(20, 20))
    assert set(groups_of(scores).sweep) == {"3", "4", "5", "10"}
    assert asked[0] == (4, 0.05)
    asked.clear()
    assert set(groups_of(scores, min_samples=7, xi=0.2).sweep) == {"3", "5", "7", "10"}
    assert asked[0] == (7, 0.2)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [(4, 3), (12, 3), (15, 3), (16, 4), (20, 4), (24, 4), (30, 4), (32, 4), (44, 4), (45, 5),
     (50, 5), (100, 10), (200, 20)],
)  # fmt: skip
def test_default_min_samples_is_the_table_of_b4(clients: int, expected: int) -> None:
    assert default_min_samples(clients) == expected


def test_standardised_rows_by_hand() -> None:
    rows = standardised_rows(np.array([[2.0, 4.0, 4.0, 6.0], [7.0, 7.0, 7.0, 7.0]]))
    root = round(2**0.5, 9)
    assert rows.tolist() == [[-root, 0.0, 0.0, root], [0.0] * 4]


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e-3, 0.5, 7.0, 1e4])
def test_scaling_one_client_s_losses_changes_nothing(factor: float) -> None:  # 6.1 (h) 3
    scores = block_influence(clients=40, groups=4)[1]
    scaled = scores.copy()
    scaled[7] *= factor
    np.testing.assert_allclose(standardised_rows(scaled), standardised_rows(scores), atol=2e-9)
    assert groups_of(scaled).labels.tolist() == groups_of(scores).labels.tolist()
    assert select_peers(scaled).tolist() == select_peers(scores).tolist()
    flipped = scores.copy()
    flipped[7] *= -1
    assert select_peers(flipped)[7].tolist() != select_peers(scores)[7].tolist(), "c > 0 matters"


@pytest.mark.parametrize(
    ("values", "upper"),
    [
        ([1.0, 0.8, -0.6, -0.4], [True, True, False, False]),
        ([0.0, 0.0, 5.0], [False, False, True]),
        ([-5.0, 0.0, 0.0], [False, True, True]),
        ([2.0, 2.0, 2.0], [True, True, True]),
        ([3.0], [True]),
        ([], []),
    ],
)
def test_two_means_by_hand(values: list[float], upper: list[bool]) -> None:
    assert two_means(np.array(values)).tolist() == upper


def test_two_means_is_the_best_of_all_cuts_on_heavy_tails() -> None:
    outliers = 0
    for seed in range(200):
        values = heavy_tailed(seed)
        ordered = np.sort(values)
        cuts = [scatter(ordered, np.arange(len(values)) >= cut) for cut in range(1, len(values))]
        upper = two_means(values)
        assert 0 < upper.sum() < len(values)
        assert values[upper].min() > values[~upper].max()
        assert scatter(values, upper) == pytest.approx(min(cuts), rel=1e-9, abs=1e-12)
        outliers += 1 in (upper.sum(), (~upper).sum())
    assert 0 < outliers < 200, "some rows are cut at an outlier, some are not"


def test_no_other_pair_of_sets_is_better_than_the_best_cut() -> None:
    for seed in range(10):
        values = np.random.default_rng(seed).standard_cauchy(8)
        sets = (np.array([mask >> i & 1 for i in range(8)], bool) for mask in range(1, 255))
        best = min(scatter(values, chosen) for chosen in sets)
        assert scatter(values, two_means(values)) == pytest.approx(best, rel=1e-9)


def test_equal_values_stay_together() -> None:
    upper = two_means(np.array([1.0, 0.0, 1.0, 0.0, 1.0]))
    assert upper.tolist() == [True, False, True, False, True]


@pytest.mark.parametrize("factor", [1e-12, 0.1, 0.3, 1.0, 7.7, 1e9])
@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [1, 2, 3, 4, 5], [0, 3, 6, 9, 12, 15, 18]])
def test_of_equally_good_cuts_the_lowest_is_kept(values: list[float], factor: float) -> None:
    """Values at equal distances, an odd number of them: two cuts are exactly as good."""
    row = factor * np.array(values) / 3
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(row))
        upper = two_means(row[order])
        assert np.flatnonzero(upper[np.argsort(order)]).tolist() == [
            *range(len(row) // 2, len(row))
        ]


@pytest.mark.parametrize("values", [10**9 + np.arange(7.0), 10**9 + 3 * np.arange(11.0)])
def test_far_from_zero_the_lowest_of_equally_good_cuts_is_kept(values: Floats) -> None:
    assert two_means(values).sum() == (len(values) + 1) // 2


def test_cuts_that_differ_by_less_than_a_billionth_are_equally_good() -> None:
    values = np.arange(21) / 20
    values[9] += 2e-9  # the cut above the tenth value is better by 7e-11
    assert two_means(values).sum() == 11


def test_values_that_differ_by_rounding_stay_together() -> None:
    assert two_means(np.array([0.3, 0.1 + 0.2, 0.3])).tolist() == [True] * 3
    assert two_means(np.array([0.3, 0.1 + 0.2, 0.9, 0.0])).tolist() == [False, False, True, False]


def test_a_tenth_exactly_is_a_difference() -> None:
    for factor in (1.0, 0.1, 0.3, 7.7):
        assert first_row([factor * 1.0, factor * 0.9]) == [True, False]
    assert first_row([1.0, 0.901]) == [True, True]


def test_the_upper_group_of_one_row_is_that_of_the_matrix() -> None:
    scores = block_influence(clients=12, groups=3)[1]
    for transform in get_args(clustering.Transform):
        whole = select_peers(scores, transform)
        for client, row in enumerate(scores):
            others = np.arange(12) != client
            alone = upper_group(row[others], transform)
            assert whole[client, others].tolist() == alone.tolist()


def test_better_half_of_the_hand_example() -> None:  # 6.1 (h) 5
    row = np.array([1.0, 0.8, -0.6, -0.4])
    chosen = select_peers(np.tile(row, (4, 1)))
    sets = [set(np.flatnonzero(mine).tolist()) for mine in chosen]
    assert sets[0] == {0, 1}
    assert sets == [{0, 1}, {0, 1}, {0, 1, 2}, {0, 1, 3}], "oneself is always kept"


def test_the_own_entry_takes_no_part_in_the_split() -> None:
    row = np.array([100.0, 1.0, 0.8, -0.6, -0.4])  # with 100 in it the split would be {0}
    assert select_peers(np.tile(row, (5, 1)))[0].tolist() == [True, True, True, False, False]
    row[0] = -100.0  # and with -100 everybody
    assert select_peers(np.tile(row, (5, 1)))[0].tolist() == [True, True, True, False, False]


def first_row(others: list[float], own: float = 0.0, **how: Any) -> list[bool]:
    scores = np.zeros((len(others) + 1, len(others) + 1))
    scores[0] = [own, *others]
    kept: list[bool] = select_peers(scores, **how)[0].tolist()
    assert kept[0] is True
    return kept[1:]


def test_everybody_is_kept_where_all_help_about_equally() -> None:
    assert first_row([1.0, 0.99, 0.95, 0.93]) == [True] * 4  # .995 - .94 < .0995
    assert first_row([1.0, 0.99, 0.95, 0.93], own=-5.0) == [True] * 4
    assert first_row([1.0, 0.98, 0.89, 0.87]) == [True, True, False, False]  # .99 - .88 > .099
    assert first_row([1.0, 0.99, 0.95, -0.93]) == [True, True, True, False]
    assert first_row([-1.0, -0.99, -0.95, -0.93]) == [False, False, True, True], "nobody helps"
    assert first_row([1.0, 1.0, 1.0]) == [True] * 3
    assert first_row([-1.0, -1.0, -1.0]) == [True] * 3, "no spread, no split"


def test_transforms_stop_a_heavy_tail_from_admitting_harm() -> None:
    others = [1.0, 0.9, -1.0, -9.0]
    assert first_row(others) == [True, True, True, False]
    # square roots 1, .95, -1, -3: cutting off -3 alone leaves 2.6, cutting in the middle 2.0
    assert first_row(others, transform="signed_sqrt") == [True, True, False, False]
    # clipped 1, .9, -1, -1
    assert first_row(others, transform="clip") == [True, True, False, False]
    assert first_row([1.0, 0.1, -9.0], transform="clip") == [True, True, False], "-1, and not 0"
    assert first_row([-1.0, -2.0, -9.0], transform="clip") == [True, True, False], "no gain"


def test_a_client_alone_keeps_itself() -> None:
    assert select_peers(np.array([[-3.0]])).tolist() == [[True]]


def test_two_means_is_exact_far_from_zero() -> None:
    upper = two_means(np.array([0.0, 1.0, 10.0, 11.0]) + 1e9)
    assert upper.tolist() == [False, False, True, True]


def test_rounding_noise_is_no_spread() -> None:
    row = np.array([[0.3, 0.1 + 0.2, 0.3, 0.1 + 0.2]])
    assert standardised_rows(row).tolist() == [[0.0] * 4]
    assert standardised_rows(row * 1e-12 + [[0, 1e-12, 0, 0]]).any(), "small is not equal"


def test_more_samples_than_clients_are_refused() -> None:
    scores = np.random.default_rng(0).normal(size=(6, 6))
    with pytest.raises(UserError, match=mention("min_samples", "9", "at most 6")):
        optics_groups(scores, "zrow", 9, 0.05, "nearest")


@pytest.mark.parametrize(
    ("min_samples", "xi", "message"),
    [
        (1, 0.05, "min_samples 1: expected 2 or more"),
        (2, -0.1, "xi -0.1: expected 0 to below 1"),
        (2, 1.0, "xi 1.0: expected 0 to below 1"),
    ],
)
def test_settings_that_optics_cannot_have_are_refused(
    min_samples: int, xi: float, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        optics(np.ones((6, 6)), min_samples, xi)


@pytest.mark.parametrize(
    ("features", "distance"),
    [
        ("zrow", [[0.0, round(8**0.5, 9)]]),
        ("corr", [[0.0, 2.0]]),
        ("sym", [[1.0, -1.0]]),  # nobody scores the newcomer: its own scores, negated
        ("raw", [[round((5**2 + 7**2) ** 0.5, 9), round((3**2 + 9**2) ** 0.5, 9)]]),
    ],
)
def test_newcomers_are_compared_by_the_same_features(features: Any, distance: Any) -> None:
    """The newcomer and client 0 have the row (-1, 1), client 1 has (1, -1)."""
    scores = np.array([[0.0, 2.0], [2.0, 0.0]])
    found = clustering.distance_to_clients(np.array([[5.0, 9.0]]), scores, features)
    assert found.tolist() == distance


def test_nobody_is_added_where_somebody_does_not_help_at_all() -> None:
    """The means 1 and 1.05 differ by less than a tenth, but one of the scores is 0."""
    values = np.concatenate([[0.0], np.full(3000, 1.0), np.full(3000, 1.05)])
    assert upper_group(values).tolist() == [False] * 3001 + [True] * 3000
    assert upper_group(values[1:]).all()


@pytest.mark.parametrize(
    ("clients", "min_samples", "sweep"), [(4, 3, {"3"}), (5, 4, {"3", "4", "5"})]
)
def test_a_sweep_ends_with_the_number_of_clients(
    clients: int, min_samples: int, sweep: set[str]
) -> None:
    found = groups_of(np.diag(np.arange(1.0, clients + 1)), min_samples=min_samples)
    assert set(found.sweep) == sweep


def test_a_sweep_counts_groups_and_not_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    with_noise_at(monkeypatch, [0, 0, 1, 1, 2, -1])
    scores = np.random.default_rng(0).normal(size=(6, 6))
    assert groups_of(scores, min_samples=3).sweep == {"3": 3, "5": 3}
    with_noise_at(monkeypatch, [-1] * 6)
    assert groups_of(scores, min_samples=3).sweep == {"3": 0, "5": 0}


def test_four_clients_may_be_two_groups_and_equal_ones_are_one() -> None:
    pairs = np.array([[0.0], [0.1], [9.0], [9.1]])
    distance = np.abs(pairs - pairs.T)
    assert optics(distance, 2).tolist() == [0, 0, 1, 1]
    assert optics(distance / 9.1, 2).tolist() == [0, 0, 1, 1]
    assert optics(np.zeros((6, 6)), 2).tolist() == [0] * 6


@pytest.mark.parametrize("features", get_args(Features))
def test_distances_are_rounded_to_nine_digits(features: Any) -> None:
    scores = np.random.default_rng(0).normal(size=(5, 5))
    of_clients = distance_between_clients(scores, features)
    of_newcomers = clustering.distance_to_clients(scores[:2], scores, features)
    z = standardised_rows(scores)
    exact = {
        "zrow": cdist(z, z),
        "raw": cdist(scores, scores),
        "corr": 1 - z @ z.T / 5,
        "sym": -(z + z.T) / 2,
    }[features]
    if features == "sym":
        exact -= exact.min()
    off = ~np.eye(5, dtype=bool)
    np.testing.assert_allclose(of_clients[off], exact[off], atol=1e-9)
    for found in (of_clients, of_newcomers):
        assert (found == np.round(found, 9)).all()


def test_fewer_than_four_points_are_one_group() -> None:
    points = np.array([[0.0], [0.1], [9.0], [9.1]])
    distance = cdist(points, points)
    assert optics(distance[:3, :3], 4).tolist() == [0, 0, 0], "whatever min_samples is"
    assert optics(distance, 2).tolist() == [0, 0, 1, 1]


def test_distances_that_are_not_finite_are_refused() -> None:
    distance = np.ones((10, 10))
    distance[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        optics(distance, 4)
