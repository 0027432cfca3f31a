"""Parts that the data fix: a person's test part is tested whole, sequences are cut by time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mention

from flbench.core.dataset import Dataset
from flbench.errors import PluginError, UserError
from flbench.federation import shared_test_sets
from flbench.federation.build import divide
from flbench.federation.fixed_parts import by_time, dealt, fixed_parts
from flbench.federation.loading import check
from flbench.plugin.hooks import HookCaller
from flbench.suite import Suite


def own_file(domains: int = 4, **changes: Any) -> Dataset:
    """Sample k is the number k, of label k mod 3; the last quarter of each domain is its test."""
    numbers = torch.arange(30 * domains)
    made = Dataset(
        "own:file",
        numbers[:, None].float(),
        numbers % 3,
        3,
        domains=numbers // 30,
        test=numbers % 30 >= 24,
        domain_names=tuple("abcdefghij"[:domains]),
        keeps_test=True,
    )
    return replace(made, **changes)


def divided(data: Dataset, **changes: Any) -> dict[str, list[set[int]]]:
    """Samples by split and client, as the numbers they are."""
    table = {
        "name": "s", "version": 1, "summary": "", "dataset": "own:file", "rounds": 1, "clients": 4,
        "partition": {"name": "natural"}, "model": {"name": "mlp"}, **changes,
    }  # fmt: skip
    suite = Suite.model_validate(table)
    found = divide(suite, HookCaller((suite.name, suite), (), ()), data, 0)
    return {
        name: [{int(v) for v in pool.x[rows, 0]} for rows in lists]
        for pool in (found.visible, found.held_out)
        for name, lists in pool.splits.items()
    }


@pytest.mark.parametrize("test_set", ["own", "labels"])
@pytest.mark.parametrize("partition", ["natural", "iid"])
def test_the_test_part_is_tested_whole_and_trained_on_by_nobody(
    test_set: str, partition: str
) -> None:
    data = own_file()
    assert data.test is not None
    found = divided(data, test_set=test_set, partition={"name": partition}, server_samples=6)
    tested = set(torch.nonzero(data.test)[:, 0].tolist())
    assert set.union(*found["test"]) == tested
    seen = set.union(*found["train"], *found["validation"], *found["server"])
    assert seen == set(range(120)) - tested
    assert len(found["server"][0]) == 6
    if test_set == "own":
        assert sum(map(len, found["test"])) == len(tested), "each sample once"


@pytest.mark.parametrize("test_set", ["own", "labels"])
def test_labels_that_a_client_never_trained_on_are_tested(test_set: str) -> None:
    """In domain a label 2 is in the test part alone: samples 26 and 29."""
    data = own_file()
    y = data.y.clone()
    y[:24][y[:24] == 2] = 0
    found = divided(replace(data, y=y), test_set=test_set)
    assert found["test"][0] == {24, 25, 26, 27, 28, 29}


def test_a_data_set_that_keeps_no_test_part_mixes_it_in_as_before() -> None:
    mixed = divided(own_file(keeps_test=False))
    assert mixed == divided(own_file(keeps_test=False, test=None))
    assert mixed != divided(own_file())


def test_a_client_without_a_test_sample_is_refused() -> None:
    data = own_file()
    assert data.test is not None
    test = data.test.clone()
    test[30:60] = False
    with pytest.raises(UserError, match=mention("test", "own:file", "client 1", "'b'", "of 4")):
        divided(replace(data, test=test))


def test_no_test_sizes_where_the_test_part_is_fixed() -> None:
    with pytest.raises(UserError, match=mention("test_sizes", "own:file")):
        divided(own_file(gap=0), test_set="labels", test_sizes=(5, 5, 5, 5))


# --- sequences ----------------------------------------------------------------------------------


def test_what_comes_later_is_tested_with_a_gap() -> None:
    """Of 30: 8 to test (a quarter), 3 left out, 4 of 19 to validate, 3 left out, 12 to train."""
    found = divided(own_file(test=None, gap=3))
    first = [list(range(start, start + 30)) for start in (0, 30, 60, 90)]
    assert found["test"] == [set(rows[22:]) for rows in first]
    assert found["validation"] == [set(rows[15:19]) for rows in first]
    assert found["train"] == [set(rows[:12]) for rows in first]


@pytest.mark.parametrize("test_set", ["own", "labels", "proportional"])
def test_parts_of_a_sequence_are_the_same_whoever_gets_them(test_set: str) -> None:
    data = own_file(test=None, gap=3)
    parts = fixed_parts(data, 0.25, 0.2)
    assert parts.test is not None
    assert parts.validation is not None
    found = divided(data, test_set=test_set, partition={"name": "iid"}, server_samples=6)
    assert set.union(*found["train"], *found["server"]) == set(parts.train.tolist())
    assert set.union(*found["validation"]) == set(parts.validation.tolist())
    assert set.union(*found["test"]) <= set(parts.test.tolist())


def test_too_few_samples_in_order_are_none() -> None:
    assert by_time(np.arange(7), (0.25, 0.2), 2) is None
    some = by_time(np.arange(8), (0.25, 0.2), 2) or ()
    assert [part.tolist() for part in some] == [[0], [6, 7], [3]]
    none = by_time(np.arange(4), (0.5, 0.0), 1) or ()
    assert [part.tolist() for part in none] == [[0], [2, 3], []], "nothing validates"


def test_a_gap_is_a_whole_number() -> None:
    check("data set 'own'", own_file(gap=0))
    with pytest.raises(PluginError, match=mention("gap", -1)):
        check("data set 'own'", own_file(gap=-1))


# --- dealing ------------------------------------------------------------------------------------


def test_a_pool_is_dealt_in_proportion_and_each_sample_once() -> None:
    """Of kind 0 the clients train on 30 and 10; of 8 samples they get 6 and 2."""
    kind = np.array([0] * 30 + [0] * 10 + [1] * 5 + [0] * 8 + [1] * 4 + [2] * 3)
    domain = np.zeros_like(kind)
    clients = [np.arange(30), np.arange(30, 45)]
    found = dealt(kind, domain, np.arange(45, 60), clients, 0, "test")
    assert [np.bincount(kind[rows], minlength=3)[:2].tolist() for rows in found] == [[6, 0], [2, 4]]
    assert sorted(np.concatenate(found).tolist()) == list(range(45, 60)), "label 2 too"
    again = dealt(kind, domain, np.arange(45, 60), clients, 0, "test")
    assert [rows.tolist() for rows in found] == [rows.tolist() for rows in again]


def test_small_kinds_are_not_all_dealt_to_the_first_client() -> None:
    """Ten kinds of one test sample each; two clients hold as much of each."""
    kind = np.concatenate([np.repeat(np.arange(10), 2), np.arange(10)])
    clients = [np.arange(0, 20, 2), np.arange(1, 20, 2)]
    found = dealt(kind, np.zeros_like(kind), np.arange(20, 30), clients, 0, "test")
    assert [len(rows) for rows in found] == [5, 5]


def test_domains_that_do_not_take_part_are_not_dealt() -> None:
    kind, domain = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])
    found = dealt(kind, domain, np.array([1, 3]), [np.array([0])], 0, "test")
    assert [rows.tolist() for rows in found] == [[1]]
    every = shared_test_sets.whole(kind, domain, np.array([1, 3]), [np.array([0])])
    assert [rows.tolist() for rows in every] == [[1]]


# --- the server ---------------------------------------------------------------------------------


def test_natural_says_that_the_server_took_the_samples() -> None:
    """Each domain has 10 samples; the server takes some, and fewer than 10 are left."""
    numbers = torch.arange(100)
    data = Dataset("own:file", numbers[:, None].float(), numbers % 2, 2, domains=numbers // 10)
    natural = {"name": "natural", "least": 10}
    with pytest.raises(UserError, match=mention("server", 10, "suite.server_samples=0")):
        divided(data, clients=10, partition=natural, server_samples=10)
    assert len(divided(data, clients=10, partition=natural)["train"]) == 10
    with pytest.raises(UserError) as caught:
        divided(data, clients=11, partition=natural, server_samples=10)
    assert "server" not in str(caught.value), "it is not the server's doing"
