"""Skewed partitions: label skew, Dirichlet, primary and secondary labels, on synthetic labels."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from mentions import mention, mentioning

from flbench.core.dataset import Indices, Partition
from flbench.core.parameters import checked
from flbench.core.seeding import rng as generator_at
from flbench.errors import BadParameter, UserError
from flbench.partitions import dirichlet as dirichlet_module
from flbench.partitions.dirichlet import dirichlet
from flbench.partitions.label_skew import label_skew
from flbench.partitions.primary_secondary import PLANS, LabelPlan, in_band, primary_secondary
from flbench.plugin.registry import entries, find, load_entry, summary_of
from flbench.toolbox.heterogeneity import mean_kld

CIFAR = np.repeat(np.arange(10), 5000)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def shuffled_labels(classes: int = 10, each: int = 97) -> Indices:
    return rng(99).permutation(np.repeat(np.arange(classes), each))


def counted(partition: Partition, labels: Indices) -> np.ndarray:
    """Samples per client and label."""
    kinds, places = np.unique(labels, return_inverse=True)
    rows = [np.bincount(places[mine], minlength=len(kinds)) for mine in partition.clients]
    return np.stack(rows)


def owned(partition: Partition) -> list[int]:
    everything = np.concatenate(partition.clients)
    assert everything.dtype == np.int64
    assert all((np.diff(mine) > 0).all() for mine in partition.clients), "ascending, none twice"
    return sorted(everything.tolist())


# --- label skew -------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "held"), [(0.2, 2), (0.3, 3), (0.25, 3), (0.01, 1), (1.0, 10)])
def test_a_client_holds_its_own_label_and_others_up_to_the_share(share: float, held: int) -> None:
    labels = shuffled_labels()
    found = label_skew(labels, None, 30, rng(), share=share)
    assert found.groups is None
    assert owned(found) == list(range(len(labels)))
    counts = counted(found, labels)
    assert (counts > 0).sum(axis=1).tolist() == [held] * 30
    assert all(counts[client, client % 10] > 0 for client in range(30))


def test_a_fifth_and_three_tenths_of_a_hundred_labels_are_20_and_30() -> None:
    labels = np.repeat(np.arange(100), 50)
    for share, held in ((0.2, 20), (0.3, 30)):
        counts = counted(label_skew(labels, None, 100, rng(), share=share), labels)
        assert (counts > 0).sum(axis=1).tolist() == [held] * 100


def test_each_label_is_dealt_in_equal_shards_to_its_holders() -> None:
    labels = shuffled_labels()
    for column in counted(label_skew(labels, None, 25, rng()), labels).T:
        shards = column[column > 0]
        assert shards.max() - shards.min() <= 1
        assert len(shards) >= 2, "each label is the own one of two clients or three"


@pytest.mark.slow
def test_the_further_labels_are_uniform() -> None:
    labels = np.repeat(np.arange(5), 5000)
    counts = counted(label_skew(labels, None, 5000, rng(), share=0.4), labels) > 0
    for own in range(5):
        further = counts[own::5].sum(axis=0)
        assert further[own] == 1000
        others = np.delete(further, own)
        assert others.sum() == 1000
        assert (abs(others - 250) < 4 * (1000 * 0.25 * 0.75) ** 0.5).all()


def test_fewer_clients_than_labels_leave_samples_to_nobody() -> None:
    labels = shuffled_labels()
    found = label_skew(labels, None, 3, rng(), share=0.1)
    assert [set(labels[mine].tolist()) for mine in found.clients] == [{0}, {1}, {2}]
    assert len(owned(found)) == 3 * 97


def test_a_label_with_fewer_samples_than_holders_is_refused() -> None:
    labels = np.array([0] * 50 + [1])
    with pytest.raises(UserError, match=mention("label 1", "1 samples", "2 clients", "at least")):
        label_skew(labels, None, 4, rng(), share=0.5)


# --- Dirichlet --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("clients", [1, 2, pytest.param(20, marks=pytest.mark.long), 97])
def test_dirichlet_deals_every_sample_once_and_ten_to_everybody(clients: int, alpha: float) -> None:
    labels = shuffled_labels()
    found = dirichlet(labels, None, clients, rng(), alpha=alpha)
    assert found.groups is None
    assert len(found.clients) == clients
    assert owned(found) == list(range(len(labels)))
    assert min(map(len, found.clients)) >= 10


def test_the_smaller_alpha_the_more_clients_differ() -> None:
    skews = [
        mean_kld(counted(dirichlet(CIFAR, None, 20, rng(), alpha=alpha), CIFAR))
        for alpha in (0.05, 0.5, 5.0, 500.0)
    ]
    assert skews == sorted(skews, reverse=True)
    assert skews[-1] < 0.02


def test_a_large_alpha_shares_out_every_label_equally() -> None:
    counts = counted(dirichlet(CIFAR, None, 10, rng(), alpha=1e6), CIFAR)
    assert (abs(counts - 500) < 10).all()


def test_a_full_client_gets_nothing_of_the_next_labels() -> None:
    for seed in range(20):
        labels = np.repeat(np.arange(5), 400)
        counts = counted(dirichlet(labels, None, 8, rng(seed), alpha=0.2, min_samples=1), labels)
        before = counts.cumsum(axis=1) - counts
        assert (counts[before >= 2000 / 8] == 0).all()
        assert (before >= 2000 / 8).any()


def test_where_all_weight_falls_on_full_clients_another_gets_the_label() -> None:
    labels = np.repeat(np.arange(2), 50)
    for seed in range(10):  # at this alpha, every label falls on one client
        found = dirichlet(labels, None, 2, rng(seed), alpha=1e-9)
        assert sorted(counted(found, labels).tolist()) == [[0, 50], [50, 0]]


def test_a_client_with_exactly_its_share_is_full() -> None:
    sizes = np.array([50, 50])
    for seed in range(10):  # at this alpha the first label falls on one client, whose share is 50
        counts = dirichlet_module._draw_counts(sizes, 2, 1e-9, rng(seed))
        assert sorted(counts.tolist()) == [[0, 50], [50, 0]]


def drawn(monkeypatch: pytest.MonkeyPatch, draws: Iterator[list[list[int]]]) -> list[int]:
    """Let Dirichlet draw these counts per label and client; the list grows with each draw."""
    asked: list[int] = []

    def draw(*_: object) -> Indices:
        asked.append(1)
        return np.array(next(draws))

    monkeypatch.setattr(dirichlet_module, "_draw_counts", draw)
    return asked


def test_the_first_draw_that_suffices_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.repeat([3, 5], 20)
    draws = [[[20, 0], [19, 1]], [[15, 5], [15, 5]], [[10, 10], [10, 10]]]
    asked = drawn(monkeypatch, iter(draws))
    found = dirichlet(labels, None, 2, rng(), min_samples=10)
    assert counted(found, labels).T.tolist() == [[15, 5], [15, 5]]
    assert len(asked) == 2


def test_of_draws_that_do_not_suffice_the_first_with_the_least_missing_is_filled_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = np.repeat([3, 5], 20)
    draws = [[[20, 0], [20, 0]], [[20, 0], [12, 8]], [[12, 8], [20, 0]], [[20, 0], [13, 7]]]
    asked = drawn(monkeypatch, (draws[min(i, 3)] for i in range(2000)))
    found = dirichlet(labels, None, 2, rng(), min_samples=10)
    assert len(asked) == 1000
    assert list(map(len, found.clients)) == [30, 10], "two were missing"
    assert counted(found, labels)[1, 1] >= 8, "8 of the second label were the client's"


@pytest.mark.parametrize(("labels", "clients", "tries"), [(2, 20_000, 250), (1, 20_000, 500)])
def test_many_clients_and_labels_have_fewer_tries(
    labels: int, clients: int, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = np.zeros((labels, clients), dtype=np.int64)
    counts[:, 0] = clients
    asked = drawn(monkeypatch, iter([counts] * 2000))  # type: ignore[list-item]
    dirichlet(np.repeat(np.arange(labels), clients), None, clients, rng(), min_samples=1)
    assert len(asked) == tries


def test_there_is_one_try_however_many_clients_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet_module, "DRAWN", 39)
    asked = drawn(monkeypatch, iter([[[40] + [0] * 39]] * 9))
    dirichlet(np.zeros(40, dtype=np.int64), None, 40, rng(), min_samples=1)
    assert len(asked) == 1


@pytest.mark.slow
def test_shares_are_those_of_a_dirichlet() -> None:
    labels = np.zeros(1000, dtype=np.int64)  # one label: the balance rule does not come in
    shares = [
        counted(dirichlet(labels, None, 4, rng(s), alpha=0.5, min_samples=1), labels)[:, 0] / 1000
        for s in range(400)
    ]
    # mean 1/4 and variance (1/4)(3/4)/(4 * 0.5 + 1), a little less without empty clients
    assert np.mean(shares, axis=0) == pytest.approx([0.25] * 4, abs=0.05)
    assert np.var(shares) == pytest.approx(0.0625, rel=0.2)


def test_a_label_with_one_sample_goes_to_any_client() -> None:
    labels = np.array([0] * 60 + [1])
    found = [
        counted(dirichlet(labels, None, 3, rng(s), alpha=1e6, min_samples=1), labels)[:, 1].argmax()
        for s in range(90)
    ]
    assert (np.bincount(found, minlength=3) > 15).all(), "nobody is preferred"


def test_when_no_draw_suffices_the_largest_clients_give(caplog: pytest.LogCaptureFixture) -> None:
    labels = np.zeros(1000, dtype=np.int64)  # at this alpha, one client gets it all
    sizes = [len(mine) for mine in dirichlet(labels, None, 20, rng(), alpha=1e-9).clients]
    assert sum(sizes) == 1000
    assert sorted(sizes) == [10] * 19 + [810]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == mentioning(
        "dirichlet", "1000 draws", "none", "20 clients", "10 samples", "190 samples"
    )


def test_those_that_give_are_levelled_and_stay_the_largest() -> None:
    from flbench.partitions.dirichlet import fill_up

    for seed in range(10):
        owner = np.repeat(np.arange(5), [50, 48, 20, 3, 0])
        fill_up(owner, 5, 10, rng(seed))  # 17 are missing: 50 and 48 go down to 41 and 40
        sizes = np.bincount(owner).tolist()
        assert sorted(sizes[:2]) == [40, 41]
        assert sizes[2:] == [20, 10, 10]


def test_too_few_samples_for_the_least_of_each_client_are_refused() -> None:
    labels = np.repeat([0, 1], 20)
    assert [len(mine) for mine in dirichlet(labels, None, 4, rng(), 1e6).clients] == [10] * 4
    with pytest.raises(UserError, match=r"^39 samples cannot give 4 clients 10 each"):
        dirichlet(labels[1:], None, 4, rng(), 1e6)


@pytest.mark.slow
def test_as_many_samples_as_are_needed_are_dealt_and_one_fewer_refused() -> None:
    labels = shuffled_labels(5, 20)
    assert [len(mine) for mine in dirichlet(labels, None, 10, rng()).clients] == [10] * 10
    expected = "^99 samples cannot give 10 clients 10 each; use fewer clients or set min_samples$"
    with pytest.raises(UserError, match=expected):
        dirichlet(labels[:99], None, 10, rng())


@pytest.mark.slow
@pytest.mark.long
def test_a_hundred_thousand_clients_at_the_smallest_alpha_get_an_answer() -> None:
    labels = np.repeat(np.arange(10), 100_000)
    found = dirichlet(labels, None, 100_000, rng(), alpha=0.01, min_samples=3)
    sizes = np.array([len(mine) for mine in found.clients])
    assert sizes.min() >= 3
    assert sizes.sum() == 1_000_000
    with pytest.raises(UserError, match="cannot give 100000 clients 10 each"):
        dirichlet(labels[1:], None, 100_000, rng(), alpha=0.01)


# --- primary and secondary label --------------------------------------------------------------


def test_two_labels_make_up_the_shares_asked_for() -> None:
    found = primary_secondary(CIFAR, None, 50, rng(), sigma_p=0.5, sigma_s=0.3)
    assert found.groups is None
    assert all(len(set(mine.tolist())) == 1000 for mine in found.clients), "none twice in a client"
    for row in counted(found, CIFAR):
        assert sorted(row.tolist()) == [25] * 8 + [300, 500]


def test_shares_are_drawn_once_per_dataset_or_per_client() -> None:
    once = counted(primary_secondary(CIFAR, None, 50, rng()), CIFAR)
    assert len(set(once.max(axis=1).tolist())) == 1
    each = counted(primary_secondary(CIFAR, None, 50, rng(), per="client"), CIFAR)
    assert len(set(each.max(axis=1).tolist())) > 20
    tops = np.sort(each, axis=1)[:, -2:] / 1000
    assert (tops[:, 1] >= 0.4).all()
    assert (tops[:, 1] <= 0.6).all()
    assert (tops[:, 0] >= 0.2).all()
    assert (tops[:, 0] <= 0.4).all()


def test_primary_and_secondary_labels_are_uniform_and_never_the_same() -> None:
    plan = LabelPlan.drawn((20_000, 5), (0.5, 0.5), (0.3, 0.3), "dataset", "allow", rng())
    pairs = np.zeros((5, 5), dtype=np.int64)
    np.add.at(pairs, (plan.primary, plan.secondary), 1)
    assert np.diag(pairs).tolist() == [0] * 5
    assert (abs(pairs[~np.eye(5, dtype=bool)] - 1000) < 4 * 1000**0.5).all()


def test_something_is_left_for_the_other_labels() -> None:
    row = counted(primary_secondary(CIFAR, None, 50, rng(), sigma_p=0.6, sigma_s=0.4), CIFAR)[0]
    assert sorted(row.tolist()) == [1] * 6 + [2] * 2 + [390, 600], "0.4 becomes 0.39"
    few = counted(primary_secondary(CIFAR, None, 50, rng(), 0.6, 0.4, samples=3), CIFAR)
    assert all(sorted(row.tolist()) == [0] * 7 + [1] * 3 for row in few)


def test_what_cannot_be_spread_evenly_differs_by_one_and_begins_anywhere() -> None:
    plan = LabelPlan.drawn((500, 10), (0.5, 0.5), (0.3, 0.3), "dataset", "allow", rng())
    for size in (3, 4, 17, 60, 99, 101):
        counts = plan.counts(size)
        assert counts.sum(axis=1).tolist() == [size] * 500
        others = np.ones((500, 10), dtype=bool)
        others[np.arange(500), plan.primary] = others[np.arange(500), plan.secondary] = False
        rest = counts[others].reshape(500, 8)
        assert (np.ptp(rest, axis=1) <= 1).all()
        assert (rest.sum(axis=1) >= 1).all()
    more = (plan.counts(17) * others).sum(axis=0)
    assert more.max() < 2 * more.min(), "no label is preferred"


def test_a_sample_may_be_several_clients_only_where_that_is_allowed() -> None:
    allowed = np.concatenate(primary_secondary(CIFAR, None, 50, rng()).clients)
    assert len(np.unique(allowed)) < len(allowed) == 50_000
    balanced = primary_secondary(CIFAR, None, 50, rng(), overlap="balanced")
    everything = owned(balanced)
    assert len(set(everything)) == len(everything)


def test_balanced_clients_take_turns_with_primary_labels_and_get_equally_many() -> None:
    found = primary_secondary(CIFAR, None, 50, rng(), overlap="balanced")
    counts = counted(found, CIFAR)
    assert np.bincount(counts.argmax(axis=1)).tolist() == [5] * 10
    sizes = counts.sum(axis=1)
    assert sizes.min() == sizes.max() < 1000, "a label is short at 1000"
    assert (counts.sum(axis=0) <= 5000).all()
    other = primary_secondary(CIFAR, None, 50, rng(1), overlap="balanced")
    assert (counted(other, CIFAR).argmax(axis=1) != counts.argmax(axis=1)).any(), "shuffled"


def test_balanced_clients_get_as_many_samples_as_are_asked_for() -> None:
    found = primary_secondary(CIFAR, None, 2, rng(), overlap="balanced", samples=1000)
    assert [len(mine) for mine in found.clients] == [1000, 1000]


@pytest.mark.parametrize("seed", range(6))
def test_balanced_clients_get_as_many_samples_as_the_supply_allows(seed: int) -> None:
    labels = np.repeat(np.arange(5), [40, 90, 60, 80, 70])
    found = primary_secondary(labels, None, 7, rng(seed), overlap="balanced")
    plan = LabelPlan.drawn((7, 5), (0.4, 0.6), (0.2, 0.4), "dataset", "balanced", rng(seed))
    fits = [
        size
        for size in range(3, len(labels) // 7 + 1)
        if (plan.counts(size).sum(axis=0) <= np.bincount(labels)).all()
    ]
    assert [len(mine) for mine in found.clients] == [max(fits)] * 7


@pytest.mark.parametrize(
    ("settings", "clients", "says"),
    [
        ({"sigma_p": (0.6, 0.4)}, 5, "sigma_p expects .* 0 < low <= high < 0.99; got"),
        ({"sigma_s": 0.0}, 5, "sigma_s expects"),
        ({"sigma_p": 0.99}, 5, "sigma_p expects"),
        ({}, 400, "970 samples cannot give 400 clients 3 each"),
        ({"samples": 300}, 5, r"label \d has 97 samples, client \d is to get \d+ of them; use"),
        ({"samples": 200, "sigma_p": 0.6, "sigma_s": 0.3}, 1, "client 0 is to get 120 of them"),
        ({"sigma_p": 0.5, "sigma_s": 0.3, "band": "mid"}, 970, "cannot give"),
    ],
)
def test_what_cannot_be_is_one_clear_line(
    settings: dict[str, object], clients: int, says: str
) -> None:
    with pytest.raises(UserError, match=says) as raised:
        primary_secondary(shuffled_labels(), None, clients, rng(), **settings)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_two_labels_are_too_few_and_so_is_a_label_nobody_could_share() -> None:
    with pytest.raises(UserError, match="needs 3 labels, got 2"):
        primary_secondary(shuffled_labels(2), None, 5, rng())
    labels = np.array([0] * 30 + [1] * 30 + [2])
    with pytest.raises(UserError, match=mention("61 samples", "6 clients", "3 each")):
        primary_secondary(labels, None, 6, rng(), overlap="balanced")


def plan_of(first: float, second: float, start: int = 0, labels: int = 4) -> LabelPlan:
    """The plan of one client: label 0, then label 2."""
    shares = np.array([first]), np.array([second])
    return LabelPlan((1, labels), *shares, np.array([0]), np.array([2]), np.array([start]))


@pytest.mark.parametrize(
    ("first", "second", "start", "size", "counts"),
    [
        (0.5, 0.3, 0, 10, [5, 1, 3, 1]),
        (0.5, 0.2, 0, 10, [5, 2, 2, 1]),  # three others: one each, and one more from `start` on
        (0.5, 0.2, 2, 10, [5, 1, 2, 2]),
        (0.5, 0.2, 3, 10, [5, 1, 2, 2]),
        (0.01, 0.98, 0, 3, [1, 1, 1, 0]),  # everybody has a primary, a secondary and another one
        (0.98, 0.01, 1, 3, [1, 1, 1, 0]),
        (0.98, 0.01, 3, 4, [2, 0, 1, 1]),
        (0.01, 0.98, 3, 5, [1, 0, 3, 1]),
    ],
)
def test_the_counts_of_a_plan_by_hand(
    first: float, second: float, start: int, size: int, counts: list[int]
) -> None:
    assert plan_of(first, second, start).counts(size).tolist() == [counts]


def test_balanced_clients_may_get_three_samples_each_and_all_that_there_is() -> None:
    """Two clients of 0.6 and 0.39; of three samples they get one of each label."""
    labels = np.array([0, 0, 1, 1, 2, 2])
    found = primary_secondary(labels, None, 2, rng(), 0.6, 0.39, overlap="balanced")
    assert counted(found, labels).tolist() == [[1, 1, 1]] * 2
    labels = np.repeat([0, 1, 2], [60, 39, 1])
    sizes = set()
    for seed in range(8):  # the secondary label is 1 or 2
        try:
            found = primary_secondary(labels, None, 1, rng(seed), 0.6, 0.39, overlap="balanced")
        except UserError:
            continue
        sizes.add(len(found.clients[0]))
    assert max(sizes) == 100


@pytest.mark.parametrize(
    ("partition", "settings", "expected"),
    [
        (label_skew, {}, "39d775e5e701"),
        (label_skew, {"share": 0.35}, "c3bc4bce4a22"),
        (dirichlet, {}, "cf28cf53baa6"),
        (dirichlet, {"alpha": 0.2, "min_samples": 14}, "a4ccd20ef0dc"),
        (primary_secondary, {}, "67fe80afe72a"),
        (primary_secondary, {"per": "client", "sigma_p": 0.3}, "96134f2bb7ce"),
        (primary_secondary, {"overlap": "balanced"}, "84f7f70a4e69"),
        (primary_secondary, {"band": "mid", "samples": 12}, "d52d4a732585"),
    ],
)
def test_draws_that_results_depend_on_stay_as_they_are(
    partition: Callable[..., Partition], settings: dict[str, object], expected: str
) -> None:
    labels = np.arange(600, dtype=np.int64) * 7 % 10
    generator = np.random.Generator(np.random.Philox(key=5))
    found = partition(labels, None, 20, generator, **settings)
    digest = hashlib.sha256()
    for rows in found.clients:
        digest.update(rows.astype("<i8").tobytes() + b"/")
    digest.update(str(generator.integers(1 << 30)).encode())
    assert digest.hexdigest()[:12] == expected


# --- bands of the KL divergence ---------------------------------------------------------------


def test_in_band_takes_the_median_of_a_third_of_the_range() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.5, 5.0, 4.0, 9.0])  # thirds at 3 and 6
    assert [in_band(values, band) for band in ("low", "mid", "high")] == [1, 5, 6]
    assert in_band(np.array([0.0, 2.0, 1.0, 2.5, 9.0]), "low") == 2, "the lower of two medians"
    with pytest.raises(UserError, match=mention("none", "2 data", "mid")):
        in_band(np.array([0.0, 9.0]), "mid")
    with pytest.raises(UserError, match=mention("differ", "equally")):
        primary_secondary(CIFAR, None, 1, rng(), band="low", samples=100)


@pytest.mark.slow
def test_bands_of_the_papers_setting_are_thirds_of_a_hundred_data_sets() -> None:
    drawn = [
        LabelPlan.drawn(
            (50, 10), (0.4, 0.6), (0.2, 0.4), "dataset", "allow",
            generator_at(seed, "primary-secondary"),
        )
        for seed in range(PLANS)
    ]  # fmt: skip
    values = np.array([mean_kld(plan.counts(1000)) for plan in drawn])
    edges = np.linspace(values.min(), values.max(), 4)
    assert edges == pytest.approx([0.760, 1.774, 2.789, 3.804], abs=1e-3)
    assert np.histogram(values, edges)[0].tolist() == [61, 33, 6]
    skews = []
    for band, expected in (("low", 1.366), ("mid", 2.153), ("high", 2.960)):
        found = primary_secondary(CIFAR, None, 50, rng(), band=band)  # type: ignore[arg-type]
        skews.append(mean_kld(counted(found, CIFAR)))
        assert skews[-1] == pytest.approx(expected, abs=1e-3)
    assert all(low <= skew < high for low, skew, high in zip(edges, skews, edges[1:], strict=False))


def test_the_seed_draws_a_bands_samples_and_not_its_shares() -> None:
    one, other = (primary_secondary(CIFAR, None, 50, rng(s), band="high") for s in (1, 2))
    assert np.array_equal(counted(one, CIFAR), counted(other, CIFAR))
    assert not np.array_equal(one.clients[0], other.clients[0])


@pytest.mark.slow
def test_bands_go_with_both_ways_to_overlap_and_with_shares_per_client() -> None:
    for settings in ({"overlap": "balanced"}, {"per": "client"}):
        skews = [
            mean_kld(counted(primary_secondary(CIFAR, None, 50, rng(), band=b, **settings), CIFAR))  # type: ignore[arg-type]
            for b in ("low", "mid", "high")
        ]
        assert skews == sorted(skews)


# --- by name, from suite files ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["label-skew", "dirichlet", "primary-secondary"])
def test_they_are_installed_by_name(name: str) -> None:
    assert summary_of(entries("partitions")[name])
    assert load_entry(find("partitions", name)) in (label_skew, dirichlet, primary_secondary)


@pytest.mark.parametrize(
    ("name", "text", "good"),
    [
        ("label-skew", "share = 0.3", True),
        ("label-skew", "share = 0", False),
        ("label-skew", "share = 1.1", False),
        ("dirichlet", "alpha = 1\nmin_samples = 5", True),
        ("dirichlet", "alpha = 0", False),
        ("dirichlet", "alpha = inf", False),
        ("dirichlet", "min_samples = 0", False),
        ("primary-secondary", "sigma_p = [0.3, 0.5]\nsigma_s = 0.2", True),
        ("primary-secondary", "band = 'mid'\nsamples = 100", True),
        ("primary-secondary", "sigma_p = [0.3, 0.5, 0.7]", False),
        ("primary-secondary", "samples = 2", False),
        ("primary-secondary", "band = 'middle'", False),
        ("label-groups", "classes = 8\ngroups = 4", True),
        ("label-groups", "order = 'domains'", True),
        ("by-domain", "per_label = 100", True),
        ("by-domain", "sizes = [200, 200, 125, 197]", True),
        ("by-domain", "sizes = [1.5]", False),
    ],
)
def test_parameters_have_types(name: str, text: str, good: bool) -> None:
    function, values = load_entry(find("partitions", name)), tomllib.loads(text)
    if good:
        assert list(checked(name, function, values, skip=4)) == list(values)
    else:
        with pytest.raises(BadParameter) as raised:
            checked(name, function, values, skip=4)
        assert "Annotated" not in str(raised.value)
