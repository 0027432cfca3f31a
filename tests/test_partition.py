"""Partitions (T26) and the stratified split, on synthetic labels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from flbench.dataset import Indices, Partition
from flbench.errors import UserError
from flbench.partition import by_domain, iid, patho5, patho5_noisy, split_off

PARTITIONS = (iid, patho5, patho5_noisy)


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


def test_patho5_by_hand() -> None:
    labels = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    found = patho5(labels, None, 4, rng(), groups=2, order="natural")
    assert found.groups is not None
    assert found.groups.tolist() == [0, 0, 1, 1]
    assert held(found, labels) == [{0, 1}, {0, 1}, {2, 3}, {2, 3}]
    assert [len(rows) for rows in found.clients] == [2, 2, 2, 2]
    assert_dealt_once(found, 8)


def test_patho5_gives_every_client_of_the_paper_600_samples() -> None:
    labels = np.repeat(np.arange(10), 600)  # a tenth of CIFAR-10: 2 labels * 600 / 20
    found = patho5(labels, None, 100, rng())
    assert [len(rows) for rows in found.clients] == [60] * 100


@pytest.mark.parametrize(("clients", "groups"), [(20, 5), (23, 5), (7, 3), (10, 10), (4, 1)])
def test_patho5_cuts_labels_and_clients_into_groups(clients: int, groups: int) -> None:
    labels = shuffled_labels()
    found = patho5(labels, None, clients, rng(), groups=groups)
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
    found = patho5(labels, None, 4, rng(), groups=1)
    assert all((np.diff(rows) > 1).any() for rows in found.clients)


def test_natural_order_cuts_neighbours_and_shuffled_order_does_not() -> None:
    labels = shuffled_labels()
    natural = patho5(labels, None, 5, rng(), order="natural")
    assert held(natural, labels) == [{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}]
    cuts = {tuple(map(frozenset, held(patho5(labels, None, 5, rng(s)), labels))) for s in range(9)}
    assert len(cuts) == 9


def test_labels_need_not_be_0_to_n() -> None:
    labels = np.array([30, 7, 30, 7, 100, 100, 50, 50])
    found = patho5(labels, None, 2, rng(), groups=2, order="natural")
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


def test_noisy_adds_labels_outside_the_group_at_the_rate() -> None:  # T26
    clients, labels = 2000, shuffled_labels(10, 700)
    found = patho5_noisy(labels, None, clients, rng(), order="natural")
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
    found = patho5_noisy(labels, None, 20, rng(), **settings)
    assert [len(mine) for mine in held(found, labels)] == [5] * 20
    settings["extra_labels"] = 50
    found = patho5_noisy(labels, None, 20, rng(), **settings)
    assert held(found, labels) == [set(range(10))] * 20


def test_noisy_without_probability_or_with_one_group_holds_group_labels_only() -> None:
    labels = shuffled_labels()
    settings = {"groups": 5, "order": "natural", "extra_probability": 0.0}
    found = patho5_noisy(labels, None, 5, rng(), **settings)
    assert held(found, labels) == [{2 * g, 2 * g + 1} for g in range(5)]
    one = patho5_noisy(labels, None, 5, rng(), groups=1, extra_probability=1.0)
    assert held(one, labels) == [set(range(10))] * 5


@pytest.mark.parametrize("partition", [patho5, patho5_noisy])
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
@pytest.mark.parametrize("partition", [patho5, patho5_noisy])
def test_a_number_of_groups_that_cannot_be_is_refused(
    partition: Callable[..., Partition], clients: int, groups: int, came: str
) -> None:
    with pytest.raises(UserError, match=came):
        partition(shuffled_labels(), None, clients, rng(), groups=groups)


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(UserError, match="expected 'shuffled' or 'natural', got 'sorted'"):
        patho5(shuffled_labels(), None, 20, rng(), order="sorted")


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
    with pytest.raises(UserError, match="needs a data set with domains, such as digits-shift"):
        by_domain(labels, None, 2, rng())
    with pytest.raises(UserError, match="3 domains need at least 3 clients, got 2"):
        by_domain(labels, np.arange(6) % 3, 2, rng())
