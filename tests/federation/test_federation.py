"""Federation: one split for everybody, and no way from what methods see to what is tested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mentioning
from torch import Tensor

from flbench.core.dataset import Dataset, Partition
from flbench.errors import UserError
from flbench.federation.federation import (
    Federation,
    Samples,
    SplitRule,
    federated,
    server_indices,
    split_up,
)
from flbench.partitions.label_groups import label_groups

SHARES = {"test_fraction": 0.25, "validation_fraction": 0.2}


def unique_dataset(samples: int = 400, classes: int = 4) -> Dataset:
    """Sample k is the pair (k, k + 1/2), so that a value names its sample."""
    numbers = torch.arange(samples, dtype=torch.float32)
    x = torch.stack([numbers, numbers + 0.5], dim=1)
    return Dataset("unique", x, torch.arange(samples) % classes, classes)


def dealt(dataset: Dataset, clients: int = 4, seed: int = 0) -> Partition:
    generator = np.random.default_rng(seed)
    return label_groups(dataset.y.numpy(), None, clients, generator, groups=2)


def split(
    dataset: Dataset | None = None,
    partition: Partition | None = None,
    seed: int = 0,
    server: Any = None,
    **shares: float,
) -> Federation:
    dataset = unique_dataset() if dataset is None else dataset
    partition = dealt(dataset) if partition is None else partition
    rule = SplitRule(seed, **{**SHARES, **shares})
    return federated(dataset, split_up(dataset, partition, rule, server=server))


def names(federation: Federation, name: str, client: int) -> list[int]:
    """The samples of one split as the numbers they had in the data set."""
    pool = federation.held_out if name == "test" else federation.visible
    return [int(value) for value in pool.x[pool.splits[name][client], 0]]


def reachable(thing: object, seen: set[int] | None = None) -> Iterator[Tensor]:
    """All tensors that can be reached by attributes, items and closures."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type, type(None))):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
        yield from reachable(thing._base, seen)
        return
    inside: list[object] = list(getattr(thing, "__dict__", {}).values())
    if is_dataclass(thing):
        inside += [getattr(thing, field.name) for field in fields(thing)]
    if isinstance(thing, Mapping):
        inside += [*thing.keys(), *thing.values()]
    if isinstance(thing, (list, tuple, set, frozenset)):
        inside += thing
    inside += [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
    for part in inside:
        yield from reachable(part, seen)


def test_the_paper_s_600_samples_are_cut_into_360_90_and_150() -> None:
    dataset = unique_dataset(1200, classes=2)
    halves = Partition((np.arange(600), np.arange(600, 1200)), np.array([0, 0]))
    found = split(dataset, halves)
    assert found.visible.sizes("train").tolist() == [360, 360]
    assert found.visible.sizes("validation").tolist() == [90, 90]
    assert found.held_out.sizes("test").tolist() == [150, 150]
    assert found.clients == 2
    assert found.classes == 2


def test_the_smallest_client_has_one_sample_of_each_split() -> None:
    found = split(partition=Partition((np.arange(3),), None))
    sizes = [len(names(found, name, 0)) for name in ("train", "validation", "test")]
    assert sizes == [1, 1, 1]
    assert found.groups is None


def test_splits_are_disjoint_and_complete_for_every_client() -> None:
    dataset = unique_dataset()
    partition = dealt(dataset)
    found = split(dataset, partition)
    for client, owned in enumerate(partition.clients):
        parts = [names(found, name, client) for name in ("train", "validation", "test")]
        assert sorted(name for part in parts for name in part) == owned.tolist()
        assert [len(part) for part in parts] == [60, 15, 25]
    assert found.groups is not None
    assert found.groups.tolist() == [0, 0, 1, 1]


def test_samples_keep_their_labels_and_splits_are_stratified() -> None:
    found = split()
    for pool in (found.visible, found.held_out):
        assert torch.equal(pool.y, pool.x[:, 0].long() % 4)
        for lists in pool.splits.values():
            for rows in lists:
                counts = torch.bincount(pool.y[rows], minlength=4)
                counts = counts[counts > 0]
                assert len(counts) == 2
                assert counts.max() - counts.min() <= 1


def test_a_random_split_has_a_label_as_often_as_chance_has_it() -> None:
    """Of 20 samples, 8 with label 1, five are tested: hypergeometric, mean 2, variance 0.947."""
    labels, owned = np.repeat([0, 1], [12, 8]), np.arange(20)

    def tested(seed: int, stratified: bool) -> int:
        rule = SplitRule(seed, test_fraction=0.25, validation_fraction=0.2, stratified=stratified)
        parts = rule.split(0, owned, labels, None)
        assert [len(parts[name]) for name in ("train", "validation", "test")] == [12, 3, 5]
        assert sorted(np.concatenate(list(parts.values()))) == owned.tolist()
        return int(labels[parts["test"]].sum())

    drawn = np.array([tested(seed, stratified=False) for seed in range(4000)])
    assert abs(drawn.mean() - 2) < 0.05  # three standard errors
    assert abs(drawn.var() - 0.947) < 0.07
    assert {tested(seed, stratified=True) for seed in range(50)} == {2}


def test_the_visible_pool_holds_not_one_test_sample() -> None:  # T29
    found = split()
    tested = set(found.held_out.x.flatten().tolist())
    assert len(found.held_out.y) == 100
    assert set(found.held_out.splits) == {"test"}
    assert set(found.visible.splits) == {"train", "validation"}
    assert tested.isdisjoint(found.visible.x.flatten().tolist())
    assert len(found.visible.y) == 300


def test_nothing_on_visible_reaches_held_out() -> None:  # T29
    dataset = unique_dataset()
    found = split(dataset)
    hidden = {t.untyped_storage().data_ptr() for t in (*reachable(found.held_out),)}
    hidden |= {t.untyped_storage().data_ptr() for t in (dataset.x, dataset.y)}
    tested = set(found.held_out.x.flatten().tolist())
    tensors = list(reachable(found.visible))
    assert len(tensors) == 2
    for tensor in tensors:
        storage = tensor.untyped_storage()
        assert storage.data_ptr() not in hidden
        whole = torch.empty(0, dtype=tensor.dtype).set_(storage)
        if tensor.is_floating_point():
            assert tested.isdisjoint(whole.tolist()), "not even behind a view"
    assert len(list(reachable(found.held_out))) == 3, "samples, labels and places in the data"


def test_leaky_puts_the_test_split_in_the_place_of_validation() -> None:
    honest = split()
    leaky = honest.with_test_as_validation()
    for client in range(4):
        assert names(leaky, "validation", client) == names(honest, "test", client)
        assert names(leaky, "train", client) == names(honest, "train", client)
        rows = leaky.visible.splits["validation"][client]
        test = honest.held_out.splits["test"][client]
        assert torch.equal(leaky.visible.x[rows], honest.held_out.x[test])
        assert torch.equal(leaky.visible.y[rows], honest.held_out.y[test])
    assert leaky.fingerprint == honest.fingerprint
    assert leaky.held_out is honest.held_out
    named = honest.relabelled([1, 0, 2, 3]).with_test_as_validation()
    assert named.visible.names == (1, 0, 2, 3)
    assert honest.visible.sizes("validation").tolist() == [15] * 4, "the honest one is as it was"


def test_without_validation_everything_left_is_trained_on() -> None:
    found = split(validation_fraction=0.0)
    assert found.visible.sizes("train").tolist() == [75] * 4
    assert found.visible.sizes("validation").tolist() == [0] * 4
    two = Partition((np.arange(2), np.arange(2, 4)), None)
    found = split(partition=two, validation_fraction=0.0)
    assert found.visible.sizes("train").tolist() == [1, 1]
    assert found.held_out.sizes("test").tolist() == [1, 1]


def test_a_client_that_could_not_validate_is_refused() -> None:
    three = Partition((np.arange(10, 20), np.arange(3)), None)
    assert split(partition=three).visible.sizes("validation").tolist() == [2, 1]
    with pytest.raises(UserError) as caught:
        split(partition=three, test_fraction=0.7)
    assert str(caught.value) == mentioning(
        "client 1", "3 samples", "2 of them", "none", "test_fraction"
    )


@pytest.mark.parametrize("few", [0, 1, 2])
def test_too_few_samples_is_one_clear_line(few: int) -> None:
    owners = Partition((np.arange(10, 20), np.arange(few)), None)
    with pytest.raises(UserError) as caught:
        split(partition=owners)
    text = str(caught.value)
    assert text.startswith(f"client 1 has {few} samples: expected at least 3")
    assert "use fewer clients" in text
    assert "\n" not in text


def test_a_client_s_split_does_not_depend_on_the_other_clients() -> None:
    dataset = unique_dataset()
    first, second = np.arange(100), np.arange(100, 200)
    both = split(dataset, Partition((first, second), None))
    other = split(dataset, Partition((first, np.arange(300, 350)), None))
    for name in ("train", "validation", "test"):
        assert names(both, name, 0) == names(other, name, 0)
    assert names(both, "test", 0) != [number - 100 for number in names(both, "test", 1)]


def test_server_samples_by_hand() -> None:
    labels = np.arange(1000) % 10
    drawn = server_indices(labels, 50, np.random.default_rng(0))
    assert np.bincount(labels[drawn]).tolist() == [5] * 10
    assert (np.diff(drawn) > 0).all()
    other = server_indices(labels, 50, np.random.default_rng(1))
    assert drawn.tolist() != other.tolist()


@pytest.mark.parametrize(
    ("samples", "classes", "wanted", "each"),
    [(1000, 10, 2500, 10), (200, 5, 100, 4), (199, 5, 100, 3), (1000, 5, 17, 3), (1000, 10, 9, 0)],
)
def test_server_samples_are_balanced_and_never_above_a_tenth(
    samples: int, classes: int, wanted: int, each: int
) -> None:
    labels = np.arange(samples) % classes
    drawn = server_indices(labels, wanted, np.random.default_rng(0))
    assert np.bincount(labels[drawn], minlength=classes).tolist() == [each] * classes
    assert len(drawn) <= min(wanted, samples / 10)
    assert len(np.unique(drawn)) == len(drawn)


def test_the_server_leaves_half_of_a_rare_label_to_the_clients() -> None:
    labels = np.array([0] * 500 + [1] * 7)
    drawn = server_indices(labels, 40, np.random.default_rng(0))
    assert np.bincount(labels[drawn]).tolist() == [3, 3]


def test_the_server_s_samples_are_visible_and_nobody_else_s() -> None:
    dataset = unique_dataset()
    server = np.array([1, 7, 390])
    owners = Partition((np.arange(10, 40), np.arange(50, 90)), None)
    found = split(dataset, owners, server=server)
    assert names(found, "server", 0) == [1, 7, 390]
    assert len(found.visible.splits["server"]) == 1
    assert "server" not in split(dataset, owners, server=np.arange(0)).visible.splits
    assert found.fingerprint["partition"] != split(dataset, owners).fingerprint["partition"]


def test_the_fingerprint_is_stable() -> None:
    one, again = split(), split()
    assert one.fingerprint == again.fingerprint
    assert set(one.fingerprint) == {"data", "partition"}
    assert all(len(value) == 16 for value in one.fingerprint.values())
    for client in range(4):
        assert names(one, "test", client) == names(again, "test", client)
    named = split(replace(unique_dataset(), name="other"))
    assert named.fingerprint == one.fingerprint, "the name is no data"


def test_the_fingerprint_changes_when_one_index_moves() -> None:
    first, second = np.arange(50), np.arange(50, 100)
    base = split(partition=Partition((first, second), None))
    moved = Partition((first[:-1], np.concatenate([[49], second])), None)
    exchanged = Partition((np.r_[first[:-1], 50], np.r_[49, second[1:]]), None)
    swapped = Partition((second, first), None)
    for other in (moved, exchanged, swapped):
        changed = split(partition=other)
        assert changed.fingerprint["partition"] != base.fingerprint["partition"]
        assert changed.fingerprint["data"] == base.fingerprint["data"]
    for changed in (
        split(partition=Partition((first, second), None), seed=1),
        split(partition=Partition((first, second), None), test_fraction=0.3),
        split(partition=Partition((first, second), None), validation_fraction=0.3),
    ):
        assert changed.fingerprint["partition"] != base.fingerprint["partition"]


def test_the_fingerprint_changes_when_one_pixel_or_one_label_changes() -> None:
    dataset = unique_dataset()
    partition = dealt(dataset)
    base = split(dataset, partition)
    x, y = dataset.x.clone(), dataset.y.clone()
    x[3, 1] += 1 / 256
    y[3] = (y[3] + 1) % 4
    pixel = split(replace(dataset, x=x), partition)
    label = split(replace(dataset, y=y), partition)
    assert pixel.fingerprint["data"] != base.fingerprint["data"]
    assert label.fingerprint["data"] != base.fingerprint["data"]
    assert pixel.fingerprint["partition"] == base.fingerprint["partition"]


def test_moving_a_pool_keeps_its_samples() -> None:
    found = split()
    moved = found.visible.to(torch.device("cpu"))
    assert torch.equal(moved.x, found.visible.x)
    assert moved.splits is found.visible.splits


def test_clients_are_called_by_name_in_ascending_order() -> None:
    pool = Samples(torch.zeros(0, 1), torch.zeros(0), {}, names=(7, 3, 5))
    assert pool.called(torch.tensor([5, 7])).tolist() == [0, 2]
    assert Samples(pool.x, pool.y, {}).called(torch.tensor([5, 7])).tolist() == [5, 7]


def test_a_relabelled_client_keeps_samples_group_and_name() -> None:
    federation = split(server=np.arange(3))
    order = [2, 0, 3, 1]
    other = federation.relabelled(order)
    assert federation.groups is not None
    assert other.groups is not None
    for new, old in enumerate(order):
        for name in ("train", "validation", "test"):
            assert names(other, name, new) == names(federation, name, old)
        assert other.groups[new] == federation.groups[old]
        assert other.visible.name(new) == other.held_out.name(new) == old
    assert len(set(federation.groups.tolist())) > 1
    assert names(other, "server", 0) == [0, 1, 2]


def test_the_fingerprint_changes_when_a_sample_changes_its_owner() -> None:
    """The samples of all clients stand in the same order; only a border between two moved."""
    marks = []
    for border in (50, 51):
        clients = (np.arange(border), np.arange(border, 100))
        division = split_up(
            unique_dataset(100, 1),
            Partition(clients),
            SplitRule(seed=0, test_fraction=0.0, validation_fraction=0.0),
            tests=(np.arange(0), np.arange(0)),
        )
        marks.append(federated(unique_dataset(100, 1), division).fingerprint)
    assert marks[0]["data"] == marks[1]["data"]
    assert marks[0]["partition"] != marks[1]["partition"]
