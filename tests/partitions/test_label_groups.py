"""Partitions (T26) and the stratified split, on synthetic labels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from mentions import mention

from flbench.core.dataset import Indices, Partition
from flbench.errors import UserError
from flbench.partitions.by_domain import by_domain
from flbench.partitions.iid import iid
from flbench.partitions.label_groups import label_groups, label_groups_noisy
from flbench.partitions.sharding import split_off

PARTITIONS = (iid, label_groups, label_groups_noisy)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def shuffled_labels(classes: int = 10, each: int = 97) -> Indices:
    return rng(99).permutation(np.repeat(np.arange(classes), each))


def held(partition: Partition, labels: Indices) -> list[set[int]]:
    """The labels each client holds."""
    return [set(labels[rows].tolist()) for rows in partition.clients]


def shards(partition: Partition, labels: Indices, label: int) -> list[int]:
    """Sizes of one label's shards, holders only."""
    sizes = [int((labels[rows] == label).sum()) for rows in partition.clients]
    return [size for size in sizes if size]


def assert_dealt_once(partition: Partition, samples: int) -> None:
    everything = np.concatenate(partition.clients)
    assert everything.dtype == np.int64
    assert sorted(everything.tolist()) == list(range(samples)), "a sample twice, or missing"


def test_label_groups_by_hand() -> None:
    labels = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    found = label_groups(labels, None, 4, rng(), groups=2, order="natural")
    assert found.groups is not None
    assert found.groups.tolist() == [0, 0, 1, 1]
    assert held(found, labels) == [{0, 1}, {0, 1}, {2, 3}, {2, 3}]
    assert [len(rows) for rows in found.clients] == [2, 2, 2, 2]
    assert_dealt_once(found, 8)


def test_label_groups_gives_every_client_of_the_paper_600_samples() -> None:
    labels = np.repeat(np.arange(10), 600)  # a tenth of CIFAR-10: 2 labels * 600 / 20
    found = label_groups(labels, None, 100, rng())
    assert [len(rows) for rows in found.clients] == [60] * 100


@pytest.mark.parametrize(("clients", "groups"), [(20, 5), (23, 5), (7, 3), (10, 10), (4, 1)])
def test_label_groups_cuts_labels_and_clients_into_groups(clients: int, groups: int) -> None:
    labels = shuffled_labels()
    found = label_groups(labels, None, clients, rng(), groups=groups)
    assert found.groups is not None
    assert found.groups.tolist() == [i * groups // clients for i in range(clients)]
    assert_dealt_once(found, len(labels))
    of_group: dict[int, set[int]] = {}
    for group, mine in zip(found.groups.tolist(), held(found, labels), strict=True):
        assert of_group.setdefault(group, mine) == mine, "a group holds the same labels"
    assert sorted(label for mine in of_group.values() for label in mine) == list(range(10))
    sizes = [len(mine) for mine in of_group.values()]
    assert len(of_group) == groups
    assert max(sizes) - min(sizes) <= 1
    for label in range(10):
        dealt = shards(found, labels, label)
        assert max(dealt) - min(dealt) <= 1


def test_samples_of_a_label_are_shuffled_before_they_are_dealt() -> None:
    labels = np.zeros(40, dtype=np.int64)
    found = label_groups(labels, None, 4, rng(), groups=1)
    assert all((np.diff(rows) > 1).any() for rows in found.clients)


def test_natural_order_cuts_neighbours_and_shuffled_order_does_not() -> None:
    labels = shuffled_labels()
    natural = label_groups(labels, None, 5, rng(), order="natural")
    assert held(natural, labels) == [{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}]
    cuts = {
        tuple(map(frozenset, held(label_groups(labels, None, 5, rng(s)), labels))) for s in range(9)
    }
    assert len(cuts) == 9


def test_labels_need_not_be_0_to_n() -> None:
    labels = np.array([30, 7, 30, 7, 100, 100, 50, 50])
    found = label_groups(labels, None, 2, rng(), groups=2, order="natural")
    assert held(found, labels) == [{7, 30}, {50, 100}]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_equal_generators_give_equal_partitions_and_others_do_not(
    partition: Callable[..., Partition],
) -> None:
    labels = shuffled_labels()
    one, same, other = (partition(labels, None, 20, rng(seed)) for seed in (3, 3, 4))
    assert one.groups is not None
    assert same.groups is not None
    assert one.groups.tolist() == same.groups.tolist()
    pairs = list(zip(one.clients, same.clients, strict=True))
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert any(not np.array_equal(a, b) for a, b in zip(one.clients, other.clients, strict=True))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_client_lists_ascend_and_never_overlap(partition: Callable[..., Partition]) -> None:
    labels = shuffled_labels()
    found = partition(labels, None, 20, rng())
    assert_dealt_once(found, len(labels))
    assert all((np.diff(rows) > 0).all() for rows in found.clients)


def test_iid_deals_sizes_that_differ_by_at_most_one() -> None:
    found = iid(np.zeros(23, dtype=np.int64), None, 5, rng())
    assert [len(rows) for rows in found.clients] == [5, 5, 5, 4, 4]
    assert found.groups is not None
    assert found.groups.tolist() == [0] * 5
    assert any((np.diff(rows) != 1).any() for rows in found.clients), "shuffled before dealing"


@pytest.mark.slow
def test_noisy_adds_labels_outside_the_group_at_the_rate() -> None:  # T26
    clients, labels = 2000, shuffled_labels(10, 700)
    found = label_groups_noisy(labels, None, clients, rng(), order="natural")
    assert_dealt_once(found, len(labels))
    assert found.groups is not None
    assert found.groups.tolist() == [i * 5 // clients for i in range(clients)]
    extra: list[int] = []
    for group, mine in zip(found.groups.tolist(), held(found, labels), strict=True):
        assert {2 * group, 2 * group + 1} <= mine, "its own labels stay"
        outside = mine - {2 * group, 2 * group + 1}
        assert len(outside) <= 1
        extra += outside
    assert abs(len(extra) - 1000) <= 3 * (2000 * 0.5 * 0.5) ** 0.5
    per_label = np.bincount(extra, minlength=10)
    assert (abs(per_label - len(extra) / 10) <= 4 * (len(extra) * 0.1 * 0.9) ** 0.5).all()
    for label in range(10):
        dealt = shards(found, labels, label)
        assert max(dealt) - min(dealt) <= 1
        assert len(dealt) == 400 + per_label[label], "dealt over all holders"


def test_noisy_extra_labels_are_distinct_and_may_be_many() -> None:
    labels = shuffled_labels()
    settings = {"order": "natural", "extra_labels": 3, "extra_probability": 1.0}
    found = label_groups_noisy(labels, None, 20, rng(), **settings)
    assert [len(mine) for mine in held(found, labels)] == [5] * 20
    settings["extra_labels"] = 50
    found = label_groups_noisy(labels, None, 20, rng(), **settings)
    assert held(found, labels) == [set(range(10))] * 20


def test_noisy_without_probability_or_with_one_group_holds_group_labels_only() -> None:
    labels = shuffled_labels()
    settings = {"groups": 5, "order": "natural", "extra_probability": 0.0}
    found = label_groups_noisy(labels, None, 5, rng(), **settings)
    assert held(found, labels) == [{2 * g, 2 * g + 1} for g in range(5)]
    one = label_groups_noisy(labels, None, 5, rng(), groups=1, extra_probability=1.0)
    assert held(one, labels) == [set(range(10))] * 5


def test_a_probability_of_zero_is_never() -> None:
    class Zeros(np.random.Generator):
        def random(self, *_: object) -> float:  # type: ignore[override]
            return 0.0

    labels, zeros = shuffled_labels(), Zeros(np.random.PCG64(0))
    settings = {"order": "natural", "extra_probability": 0.0}
    found = label_groups_noisy(labels, None, 5, zeros, **settings)  # type: ignore[arg-type]
    assert held(found, labels) == [{2 * g, 2 * g + 1} for g in range(5)]


@pytest.mark.parametrize("partition", [label_groups, label_groups_noisy])
def test_too_few_samples_for_the_holders_is_one_clear_line(
    partition: Callable[..., Partition],
) -> None:
    labels = np.array([0] * 9 + [1] * 2)
    expected = "^label 1 has 2 samples for 3 clients: expected at least one each; use fewer"
    with pytest.raises(UserError, match=expected):
        partition(labels, None, 3, rng(), groups=1)


@pytest.mark.parametrize(
    ("clients", "groups", "came"),
    [(20, 11, "11 label groups from 10 labels and 20"), (4, 5, "5 .* 4 clients"), (4, 0, "0 ")],
)
@pytest.mark.parametrize("partition", [label_groups, label_groups_noisy])
def test_a_number_of_groups_that_cannot_be_is_refused(
    partition: Callable[..., Partition], clients: int, groups: int, came: str
) -> None:
    with pytest.raises(UserError, match=came):
        partition(shuffled_labels(), None, clients, rng(), groups=groups)


# --- whole superclasses, and some labels only -------------------------------------------------


def superclassed(each: int = 40) -> tuple[Indices, Indices]:
    """Labels 0..19 in superclasses of five that are not neighbours: label % 4."""
    labels = rng(5).permutation(np.repeat(np.arange(20), each))
    return labels, labels % 4


@pytest.mark.parametrize("partition", [label_groups, label_groups_noisy])
@pytest.mark.parametrize("groups", [2, 4])
def test_label_groups_of_whole_superclasses(
    partition: Callable[..., Partition], groups: int
) -> None:
    labels, domains = superclassed()
    off = {"extra_probability": 0.0} if partition is label_groups_noisy else {}
    found = partition(labels, domains, 8, rng(), groups=groups, order="domains", **off)
    assert found.groups is not None
    assert found.groups.tolist() == [i * groups // 8 for i in range(8)]
    assert_dealt_once(found, len(labels))
    seen = set()
    for group, mine in zip(found.groups.tolist(), held(found, labels), strict=True):
        above = {label % 4 for label in mine}
        assert mine == {label for label in range(20) if label % 4 in above}, "whole ones"
        assert len(above) == 4 // groups
        seen |= {(group, one) for one in above}
    assert len(seen) == 4, "each superclass is one group's"


def test_superclasses_are_shuffled_and_named_by_any_number() -> None:
    labels, domains = superclassed()
    cuts = set()
    for seed in range(20):
        found = label_groups(labels, 7 - 3 * domains, 4, rng(seed), groups=4, order="domains")
        cuts.add(tuple(min(mine) for mine in held(found, labels)))
    assert len(cuts) > 8
    assert all(sorted(cut) == [0, 1, 2, 3] for cut in cuts)


def test_cifar100s_twenty_superclasses_are_cut_into_fives_of_four() -> None:
    fine = np.repeat(np.arange(100), 6)
    coarse = rng(3).permutation(np.repeat(np.arange(20), 5))[fine]
    found = label_groups(fine, coarse, 10, rng(), order="domains")
    assert [len(mine) for mine in held(found, fine)] == [20] * 10
    noisy = label_groups_noisy(
        fine, coarse, 10, rng(), order="domains", extra_labels=5, extra_probability=1.0
    )
    assert [len(mine) for mine in held(noisy, fine)] == [25] * 10


def test_superclasses_that_cannot_be_are_one_clear_line() -> None:
    labels, domains = superclassed()
    with pytest.raises(UserError, match=mention("domains", "superclasses")):
        label_groups(labels, None, 4, rng(), groups=2, order="domains")
    with pytest.raises(UserError, match=mention("5 label", "4 superclasses", "8")):
        label_groups(labels, domains, 8, rng(), order="domains")
    torn = domains.copy()
    torn[np.flatnonzero(labels == 6)[0]] = 9
    expected = "label 6 has samples of the domains 2 and 9: expected one superclass per label"
    with pytest.raises(UserError, match=expected):
        label_groups(labels, torn, 4, rng(), groups=2, order="domains")


def test_eight_labels_in_four_groups_of_eight_clients() -> None:
    labels = shuffled_labels()
    found = label_groups(labels, None, 32, rng(), groups=4, classes=8)
    assert found.groups is not None
    assert np.bincount(found.groups).tolist() == [8] * 4
    mine = held(found, labels)
    assert [len(labels) for labels in mine] == [2] * 32
    used = set().union(*mine)
    assert len(used) == 8
    dealt = np.sort(np.concatenate(found.clients))
    assert dealt.tolist() == np.flatnonzero(np.isin(labels, list(used))).tolist(), "others: nobody"
    whole = label_groups(labels, None, 32, rng(), groups=5)
    assert mine[0] == held(whole, labels)[0], "the first labels of the same order"


def test_the_labels_used_are_those_there_are() -> None:
    labels = shuffled_labels()
    natural = label_groups(labels, None, 4, rng(), groups=4, order="natural", classes=4)
    assert held(natural, labels) == [{0}, {1}, {2}, {3}]
    with pytest.raises(UserError, match="cannot use 11 labels: there are 10"):
        label_groups(labels, None, 4, rng(), groups=4, classes=11)
    with pytest.raises(UserError, match=mention("5 label", "4 labels", "8 clients")):
        label_groups(labels, None, 8, rng(), classes=4)
    with pytest.raises(UserError, match="cannot use 5 labels"):
        label_groups(*superclassed(), 4, rng(), groups=2, order="domains", classes=5)


# --- what results already depend on -----------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "settings", "expected"),
    [
        (iid, {}, "b385183d567e"),
        (label_groups, {}, "b1d4f8dac64a"),
        (label_groups, {"groups": 3, "order": "natural"}, "98695b7a6184"),
        (label_groups_noisy, {}, "f65baabb8717"),
        (by_domain, {}, "d3eee396fe86"),
    ],
)
def test_draws_that_results_depend_on_stay_as_they_are(
    partition: Callable[..., Partition], settings: dict[str, object], expected: str
) -> None:
    labels = np.arange(600, dtype=np.int64) * 7 % 10
    domains = np.arange(600, dtype=np.int64) * 3 % 4
    generator = np.random.Generator(np.random.Philox(key=5))
    found = partition(labels, domains, 20, generator, **settings)
    digest = hashlib.sha256()
    for rows in found.clients:
        digest.update(rows.astype("<i8").tobytes() + b"/")
    digest.update(str(generator.integers(1 << 30)).encode())
    assert digest.hexdigest()[:12] == expected


def test_split_off_keeps_the_shares_of_the_labels_by_hand() -> None:
    labels = np.array([0] * 8 + [1] * 4)
    keep, taken = split_off(labels, 0.25, rng())
    assert np.bincount(labels[taken]).tolist() == [2, 1]
    assert np.bincount(labels[keep]).tolist() == [6, 3]


def test_split_off_gives_what_is_left_to_the_largest_remainder_ties_at_random() -> None:
    labels = np.array([0] * 5 + [1] * 3 + [2] * 2)  # quotas of 5: 2.5, 1.5, 1.0
    found = {
        tuple(np.bincount(labels[split_off(labels, 0.5, rng(seed))[1]]).tolist())
        for seed in range(30)
    }
    assert found == {(3, 1, 1), (2, 2, 1)}
    labels = np.array([0] * 7 + [1] * 3)  # quotas of 4: 2.8, 1.2
    for seed in range(10):
        taken = split_off(labels, 0.4, rng(seed))[1]
        assert np.bincount(labels[taken]).tolist() == [3, 1]


def test_split_off_lets_single_sample_labels_go_either_way() -> None:
    labels = np.arange(10)
    times = np.zeros(10)
    for seed in range(100):
        keep, taken = split_off(labels, 0.2, rng(seed))
        assert len(taken) == 2
        assert len(keep) == 8
        times[taken] += 1
    assert (times > 0).all(), "every label is taken sometimes"
    assert (times < 100).all(), "and left sometimes"


def test_split_off_draws_samples_at_random() -> None:
    labels = np.zeros(20, dtype=np.int64)
    found = {tuple(split_off(labels, 0.25, rng(seed))[1].tolist()) for seed in range(10)}
    assert len(found) > 5
    again = [split_off(labels, 0.25, rng(3))[1].tolist() for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("size", [2, 3, 7, 40, 101])
def test_split_off_is_disjoint_complete_and_of_the_size_asked_for(
    size: int, fraction: float
) -> None:
    for seed in range(5):
        labels = rng(seed).integers(0, 6, size)
        keep, taken = split_off(labels, fraction, rng(seed + 1))
        assert sorted([*keep.tolist(), *taken.tolist()]) == list(range(size))
        assert (np.diff(keep) > 0).all()
        assert (np.diff(taken) > 0).all()
        assert len(keep) >= 1
        assert len(taken) >= 1
        assert abs(len(taken) - fraction * size) <= 0.5 or 1 in (len(taken), len(keep))
        quota = len(taken) * np.bincount(labels, minlength=6) / size
        off = abs(np.bincount(labels[taken], minlength=6) - quota)
        assert (off < 1).all(), "never more than rounding from the label's share"


def test_split_off_of_fraction_0_takes_nothing() -> None:
    keep, taken = split_off(np.array([0, 1, 1]), 0.0, rng())
    assert keep.tolist() == [0, 1, 2]
    assert taken.tolist() == []


# --- by domain --------------------------------------------------------------------------------


def test_by_domain_gives_every_client_samples_of_one_domain() -> None:
    domains = rng(3).permutation(np.repeat(np.arange(3), (10, 11, 12)))
    found = by_domain(np.zeros(33, dtype=np.int64), domains, 6, rng())
    assert found.groups is not None
    assert found.groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert [set(domains[rows]) for rows in found.clients] == [{0}, {0}, {1}, {1}, {2}, {2}]
    assert [len(rows) for rows in found.clients] == [5, 5, 6, 5, 6, 6]
    assert_dealt_once(found, 33)
    again = by_domain(np.zeros(33, dtype=np.int64), domains, 6, rng())
    assert all(np.array_equal(a, b) for a, b in zip(found.clients, again.clients, strict=True))


def test_by_domain_says_what_it_needs() -> None:
    labels = np.zeros(6, dtype=np.int64)
    with pytest.raises(UserError, match=mention("digits-shift", "domains")):
        by_domain(labels, None, 2, rng())
    with pytest.raises(UserError, match=mention("3 domains", "3 clients", "got 2")):
        by_domain(labels, np.arange(6) % 3, 2, rng())


def test_by_domain_keeps_at_most_so_many_of_each_label() -> None:
    labels = rng(1).integers(0, 4, 600)
    domains = rng(2).integers(0, 3, 600)
    whole = by_domain(labels, domains, 3, rng())
    found = by_domain(labels, domains, 3, rng(), per_label=45)
    for all_, mine in zip(whole.clients, found.clients, strict=True):
        there = np.bincount(labels[all_], minlength=4)
        assert np.bincount(labels[mine], minlength=4).tolist() == np.minimum(there, 45).tolist()
        assert set(mine) < set(all_), "of what the client would have had"
        assert (np.diff(mine) > 0).all()
    one, other = (by_domain(labels, domains, 3, rng(s), per_label=9).clients[0] for s in (1, 2))
    assert one.tolist() != other.tolist(), "at random"


def test_by_domain_keeps_so_many_samples_of_each_client_by_the_labels_shares() -> None:
    labels = np.tile(np.repeat([0, 1], [60, 20]), 3)
    domains = np.repeat(np.arange(3), 80)
    found = by_domain(labels, domains, 3, rng(), sizes=(40, 80, 1))
    assert [len(mine) for mine in found.clients] == [40, 80, 1]
    assert np.bincount(labels[found.clients[0]]).tolist() == [30, 10]
    assert [set(domains[mine]) for mine in found.clients] == [{0}, {1}, {2}]
    assert all((np.diff(mine) > 0).all() for mine in found.clients)


def test_office_10_takes_what_table_6_says() -> None:
    there = (766, 898, 125, 236)
    domains = np.repeat(np.arange(4), there)
    labels = rng().integers(0, 10, sum(there))
    found = by_domain(labels, domains, 4, rng(), sizes=(200, 200, 125, 197))
    assert [len(mine) for mine in found.clients] == [200, 200, 125, 197]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sizes": (3, 3)}, "sizes names 2 clients, expected 3"),
        ({"sizes": (3, 5, 3)}, "asks for 5 samples for client 1: expected 1 to 4"),
        ({"sizes": (3, 0, 3)}, "asks for 0 samples for client 1: expected 1 to 4"),
        ({"sizes": (3, 3, 3), "per_label": 2}, "give per_label or sizes, not both"),
    ],
)
def test_by_domain_says_what_it_cannot_keep(settings: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        by_domain(np.zeros(12, dtype=np.int64), np.arange(12) % 3, 3, rng(), **settings)
