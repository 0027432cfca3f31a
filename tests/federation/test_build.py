"""Domains held out by name join after the last round; partitions by classes need classes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from mentions import mention, mentions

from flbench.core.dataset import Dataset
from flbench.errors import UnknownName, UserError
from flbench.federation.build import divide
from flbench.federation.federation import Federation
from flbench.plugin.hooks import HookCaller
from flbench.suite import Suite

SITES = tuple(f"site-{number}" for number in range(1, 13))


def data_of(sites: int = 6, **changes: Any) -> Dataset:
    """Sample k is the number k, of label k mod 3; each site has 30."""
    numbers = torch.arange(30 * sites)
    made = Dataset(
        "own:file", numbers[:, None].float(), numbers % 3, 3, numbers // 30,
        domain_names=SITES[:sites],
    )  # fmt: skip
    return replace(made, **changes)


def suite(**changes: Any) -> Suite:
    return Suite.model_validate(
        {
            "name": "s", "version": 1, "summary": "", "dataset": "own:file", "rounds": 1,
            "clients": 6, "partition": "natural", "model": "mlp", **changes,
        }
    )  # fmt: skip


def federation(data: Dataset | None = None, **changes: Any) -> Federation:
    one = suite(**changes)
    return divide(one, HookCaller((one.name, one), ()), data_of() if data is None else data, 0)


def sites_of(found: Federation) -> tuple[list[set[int]], list[set[int]], set[int]]:
    """The sites of the samples of each training client, of each newcomer, and of the server."""
    guests = found.newcomers
    assert guests is not None
    pools = [(found.visible, found.held_out), (guests.visible, guests.held_out)]
    training, late = (
        [
            {int(value) // 30 for split in ("train", "validation", "test")
             for pool in pair if split in pool.splits
             for value in pool.x[pool.splits[split][client], 0]}
            for client in range(len(pair[1].splits["test"]))
        ]
        for pair in pools
    )  # fmt: skip
    rows = found.visible.splits.get("server", [torch.arange(0)])[0]
    return training, late, {int(value) // 30 for value in found.visible.x[rows, 0]}


@pytest.mark.parametrize("test_set", ["own", "labels", "proportional"])
@pytest.mark.parametrize(
    ("partition", "clients"),
    [("natural", 6), ("by-domain", 6), ("by-domain", 10), ("iid", 5), ("dirichlet", 4)],
)
def test_named_sites_are_clients_of_their_own_that_nobody_else_has_samples_of(
    partition: str, clients: int, test_set: str
) -> None:
    found = federation(
        partition=partition, clients=clients, unseen=["site-5", "site-2"], test_set=test_set,
        server_samples=9,
    )  # fmt: skip
    training, late, server = sites_of(found)
    assert late == [{1}, {4}], "in the order of their names"
    assert len(training) == clients - 2
    assert set.union(*training) == {0, 2, 3, 5}
    assert server
    assert server <= {0, 2, 3, 5}
    if partition in ("natural", "by-domain"):
        assert all(len(own) == 1 for own in training)


def test_of_many_sites_the_named_one_is_surely_there() -> None:
    for seed in range(4):
        one = suite(clients=3, unseen="site-11")
        found = divide(one, HookCaller((one.name, one), ()), data_of(12), seed)
        assert sites_of(found)[1] == [{10}]


def test_a_named_site_has_all_its_samples_and_is_a_true_group_of_its_own() -> None:
    found = federation(partition="by-domain", clients=10, unseen=["site-6"])
    assert found.newcomers is not None
    parts = found.newcomers.visible.splits
    assert len(parts["train"][0]) + len(parts["validation"][0]) == 22, "8 of 30 are tested"
    assert found.groups is not None and found.newcomers.groups is not None
    assert set(found.groups.tolist()) == {0, 1, 2, 3, 4}
    assert found.newcomers.groups.tolist() == [5]
    assert federation(unseen=["site-6"]).groups is None


def test_without_names_the_division_is_the_one_of_a_share() -> None:
    """An equal seed gives the same samples to those that train, whoever they are."""
    assert federation(unseen=0.0).fingerprint == federation().fingerprint
    assert suite(unseen=0.0).hash() == suite().hash()
    assert suite(unseen=["a"]).hash() != suite().hash()
    assert suite(unseen=["b", "a", "b"]).hash() == suite(unseen=["a", "b"]).hash()
    assert suite(unseen="7").hash() == suite(unseen=[7]).hash()


def test_domains_without_names_are_numbers() -> None:
    found = federation(data_of(domain_names=()), unseen=[4])
    assert sites_of(found)[1] == [{4}]


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"unseen": 1.0}, ("unseen", "share", 1.0)),
        ({"unseen": -0.1}, ("unseen", "share")),
        ({"unseen": True}, ("unseen", "share")),
        ({"unseen": []}, ("unseen", "share")),
        ({"unseen": ["a", 0.5]}, ("unseen", "share")),
        ({"unseen": list("abcdef")}, ("unseen", "fewer", 6)),
    ],
)
def test_what_is_neither_a_share_nor_names_is_refused(
    changes: dict[str, Any], facts: tuple[object, ...]
) -> None:
    from flbench.suite import build_suite

    table = suite().model_dump(exclude={"unseen"})
    with pytest.raises(UserError, match=mention(*facts)):
        build_suite("s", {**table, **changes})


def test_an_unknown_name_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(UnknownName, match=mention("own:file", "site-77", "'site-7'", 12)):
        federation(data_of(12), unseen=["site-77"])
    with pytest.raises(UnknownName, match=mention("site-9", "site-6")) as caught:
        federation(unseen=["site-9"])
    assert all(name in str(caught.value) for name in SITES[:6])
    with pytest.raises(UserError, match=mention("own:file", "no domains", 0.2)):
        federation(data_of(domains=None, domain_names=()), unseen=["site-1"], partition="iid")


def test_too_many_clients_beside_the_named_ones_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=mention("natural", 5, "suite.clients=7", "unseen")):
        federation(clients=7, unseen=["site-1"])


# --- classes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "refused"),
    [
        ("iid", False), ("natural", False), ("by-domain", False), ("quantity-skew", False),
        ("dirichlet", True), ("balanced-dirichlet", True), ("extended-dirichlet", True),
        ("label-skew", True), ("label-groups", True), ("label-groups-noisy", True),
        ("primary-secondary", True),
    ],
)  # fmt: skip
def test_partitions_by_classes_are_refused_for_other_targets(partition: str, refused: bool) -> None:
    numbers = data_of(y=torch.arange(180.0), classes=1, task="numbers")
    if not refused:
        federation(numbers, partition=partition)
        return
    with pytest.raises(UserError, match=mention(partition, "numbers", "quantity-skew")):
        federation(numbers, partition=partition)


@pytest.mark.parametrize(
    ("changes", "has_test", "said"),
    [
        ({"test_set": "labels"}, True, "own:file has a test part"),
        ({"test_set": "labels"}, False, ""),
        ({"test_set": "own"}, True, ""),
        ({"test_set": "labels", "test_sizes": [9] * 6}, False, "test_sizes says how many"),
        ({"test_set": "labels", "test_fraction": 0.25}, True, ""),  # its default: nobody set it
    ],
)
def test_a_test_fraction_that_decides_nothing_is_told(
    changes: dict[str, Any], has_test: bool, said: str
) -> None:
    test = torch.arange(180) % 4 == 0 if has_test else None
    one = suite(**{"test_fraction": 0.4, "partition": "iid", **changes})
    lines: list[str] = []
    divide(one, HookCaller((one.name, one), ()), data_of(test=test), 0, say=lines.append)
    expected = [f"test_fraction=0.4 has no effect: {said}"] if said else []
    assert [line for line in lines if "test_fraction" in line] == expected


@pytest.mark.parametrize(
    ("changes", "data", "said"),
    [
        ({}, {}, ""),
        ({"validation_fraction": 0.0}, {}, ""),
        ({"test_set": "labels"}, {}, ""),
        ({"test_set": "labels", "validation_fraction": 0.0}, {}, "nothing is drawn"),
        ({"validation_fraction": 0.0}, {"test": True, "keeps_test": True}, "nothing is drawn"),
        ({}, {"test": True, "keeps_test": True}, ""),
        ({}, {"gap": 1}, "divided by time"),
        ({}, {"y": torch.arange(180.0), "classes": 1, "task": "numbers"}, ""),  # by domains
        (
            {"partition": "by-domain", "clients": 6},
            {"y": torch.arange(180.0), "classes": 1, "task": "numbers"},
            "no client has samples of two labels",
        ),
        (
            {"partition": "iid"},
            {"y": torch.arange(180.0), "classes": 1, "task": "numbers", "domains": None},
            "no labels",
        ),
    ],
)
def test_a_split_that_decides_nothing_is_told(
    changes: dict[str, Any], data: dict[str, Any], said: str
) -> None:
    data = {**data, "test": torch.arange(180) % 4 == 0} if data.get("test") else data
    one, lines = suite(**{"split": "random", "partition": "iid", **changes}), list[str]()
    divide(one, HookCaller((one.name, one), ()), data_of(**data), 0, say=lines.append)
    told = [line for line in lines if line.startswith("split=random has no effect")]
    assert (len(told), said in "".join(told)) == (bool(said), True)


@pytest.mark.parametrize(("asked", "told"), [(3, 0), (10_000, 1)])
def test_clients_that_get_fewer_test_samples_are_told(asked: int, told: int) -> None:
    one, lines = suite(test_set="proportional", test_samples=asked), list[str]()
    divide(one, HookCaller((one.name, one), ()), data_of(), 0, say=lines.append)
    assert sum(f"test_samples={asked}: " in line for line in lines) == told


def test_a_test_fraction_of_the_last_rows_has_an_effect() -> None:
    """Parts by time are cut by it, unless the file has a test part."""
    test = torch.arange(180) % 30 > 24
    for changes, told in (({"gap": 1}, 0), ({"gap": 1, "test": test}, 1)):
        one, lines = suite(test_fraction=0.4), list[str]()
        divide(one, HookCaller((one.name, one), ()), data_of(**changes), 0, say=lines.append)
        assert sum("test_fraction=0.4" in line for line in lines) == told


def test_domains_that_nobody_has_are_told() -> None:
    """Of twelve sites five take part; all twelve do without a word."""
    said: list[str] = []
    for clients in (5, 12):
        one = suite(clients=clients)
        divide(one, HookCaller((one.name, one), ()), data_of(12), 0, say=said.append)
    (line,) = said
    assert mentions(line, "5 of 12", "--set suite.clients=")
