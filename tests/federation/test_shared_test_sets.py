"""Test sets from a common pool: who is tested on what, and that nobody trains on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mention
from toy import Play, toy_dataset

from flbench.core.dataset import Dataset
from flbench.errors import UserError
from flbench.federation import shared_test_sets
from flbench.federation.build import divide
from flbench.plugin.hooks import HookCaller
from flbench.suite import Suite, load_suite

KIND = np.array([0, 0, 1, 1, 1, 2, 0, 1, 2, 2])
POOL = np.array([1, 4, 5, 6, 9])  # kinds 0, 1, 2, 0, 2


def dataset(samples: int = 400, official: bool = True, domains: bool = False) -> Dataset:
    """Sample k is the number k; its label k mod 4; the last quarter is the original's test part."""
    numbers = torch.arange(samples)
    return Dataset(
        "numbers",
        numbers[:, None].float(),
        numbers % 4,
        4,
        domains=(numbers // 4) % 2 if domains else None,
        test=numbers >= samples * 3 // 4 if official else None,
    )


def suite(**changes: Any) -> Suite:
    table = {
        "name": "s",
        "version": 1,
        "summary": "",
        "dataset": "numbers",
        "partition": {"name": "label-groups", "groups": 2, "order": "natural"},
        "model": {"name": "mlp"},
        "clients": 4,
        "rounds": 1,
        **changes,
    }
    return Suite.model_validate(table)


def divided(data: Dataset, seed: int = 0, **changes: Any) -> tuple[dict[str, list[set[int]]], Any]:
    """Samples by split and client, as the numbers they are in the data set."""
    one = suite(**changes)
    found = divide(one, HookCaller((one.name, one), (), (), print), data, seed)
    splits = {
        name: [{int(v) for v in pool.x[rows, 0]} for rows in lists]
        for pool in (found.visible, found.held_out)
        for name, lists in pool.splits.items()
    }
    return splits, found


# --- the two rules by hand ----------------------------------------------------------------------


def test_a_client_is_tested_on_all_samples_of_the_kinds_it_trains_on() -> None:
    found = shared_test_sets.by_labels(
        KIND, POOL, [np.array([0, 2]), np.array([8]), np.array([3, 7])]
    )
    assert [rows.tolist() for rows in found] == [[1, 4, 6], [5, 9], [4]]
    with pytest.raises(UserError, match=mention("1's", "sample")):
        shared_test_sets.by_labels(KIND, np.array([1]), [np.array([0]), np.array([8])])


def test_a_client_is_tested_in_its_own_proportions() -> None:
    pool = np.arange(100, 160)
    kind = np.zeros(160, dtype=np.int64)
    kind[:10] = [0, 0, 0, 0, 0, 0, 1, 1, 1, 2]
    kind[100:] = np.arange(60) % 3
    (rows,) = shared_test_sets.proportional(kind, pool, [np.arange(10)], 10, seed=0)
    assert np.bincount(kind[rows]).tolist() == [6, 3, 1]
    assert len(np.unique(rows)) == 10
    assert set(rows) <= set(pool)
    (odd,) = shared_test_sets.proportional(kind, pool, [np.array([0, 6, 9])], 11, seed=0)
    assert np.bincount(kind[odd]).tolist() == [4, 4, 3], "largest remainders, ties to the first"
    (short,) = shared_test_sets.proportional(kind, pool, [np.arange(6)], 50, seed=0)
    assert np.bincount(kind[short]).tolist() == [20], "the pool has no more of them"


def test_clients_draw_independently_and_the_same_each_time() -> None:
    kind, pool = np.zeros(200, dtype=np.int64), np.arange(100, 200)
    clients = [np.arange(5), np.arange(5, 10)]
    one, other = (shared_test_sets.proportional(kind, pool, clients, 20, seed=3) for _ in range(2))
    assert [a.tolist() for a in one] == [b.tolist() for b in other]
    assert one[0].tolist() != one[1].tolist()
    (alone,) = shared_test_sets.proportional(kind, pool, clients[:1], 20, seed=3)
    assert alone.tolist() == one[0].tolist()
    assert (
        shared_test_sets.proportional(kind, pool, clients, 20, seed=4)[0].tolist()
        != one[0].tolist()
    )


def test_a_kind_is_a_label_and_a_domain() -> None:
    data = dataset(16, domains=True)
    assert len(np.unique(shared_test_sets.kinds(data))) == 8
    assert shared_test_sets.kinds(dataset(16)).tolist() == [0, 1, 2, 3] * 4


def test_the_pool_is_the_originals_test_part_or_a_share_of_every_kind() -> None:
    assert shared_test_sets.test_pool(dataset(), 0.5, 0, ()).tolist() == list(range(300, 400))
    data = dataset(official=False, domains=True)
    drawn = shared_test_sets.test_pool(data, 0.2, 0, ())
    assert len(drawn) == 80
    assert np.bincount(shared_test_sets.kinds(data)[drawn]).tolist() == [10] * 8
    assert drawn.tolist() == shared_test_sets.test_pool(data, 0.2, 0, ()).tolist()
    assert drawn.tolist() != shared_test_sets.test_pool(data, 0.2, 1, ()).tolist()


def test_the_pool_may_have_so_many_samples_of_each_domain() -> None:
    data = dataset(official=False, domains=True)
    drawn = shared_test_sets.test_pool(data, 0.2, 0, (40, 7))
    assert np.bincount(data.domains[drawn]).tolist() == [40, 7]
    of_labels = [np.bincount(data.labels[drawn[data.domains[drawn] == d]]) for d in (0, 1)]
    assert of_labels[0].tolist() == [10] * 4
    assert sorted(of_labels[1].tolist()) == [1, 2, 2, 2]
    assert drawn.tolist() == shared_test_sets.test_pool(data, 0.2, 0, (40, 7)).tolist()
    assert drawn.tolist() != shared_test_sets.test_pool(data, 0.2, 1, (40, 7)).tolist()


@pytest.mark.parametrize(
    ("given", "sizes", "words"),
    [
        ({"official": True}, (4,), "none expected, as numbers has a test part"),
        ({"official": False}, (4, 4), "1 numbers expected, one for each domain of numbers, got 2"),
        ({"official": False}, (400,), "less than 400 expected for domain 0 of numbers, got 400"),
    ],
)
def test_sizes_that_do_not_fit_the_data_are_refused(
    given: dict[str, bool], sizes: tuple[int, ...], words: str
) -> None:
    with pytest.raises(UserError, match=f"test_sizes: {words}"):
        shared_test_sets.test_pool(dataset(**given), 0.2, 0, sizes)


def test_sizes_of_a_pool_that_is_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="as test_set is 'own'"):
        suite(test_sizes=(4,))


@pytest.mark.parametrize("name", ["office-10", "office-10-surf"])
def test_office_has_the_test_images_that_the_paper_s_numbers_fit(name: str) -> None:
    sizes = 958, 1123, 157, 295
    domains = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    numbers = torch.arange(len(domains))
    data = Dataset("numbers", numbers[:, None].float(), numbers % 10, 10, domains=domains)
    one = load_suite(name)
    found = divide(one, HookCaller((one.name, one), (), (), print), data, 0)
    visible, held_out = found.visible.splits, found.held_out.splits
    trained = [visible["train"][k].numel() + visible["validation"][k].numel() for k in range(4)]
    assert trained == [200, 200, 125, 197]
    assert [len(rows) for rows in held_out["test"]] == [192, 225, 32, 59]


# --- in a federation ----------------------------------------------------------------------------


@pytest.mark.parametrize("official", [True, False])
@pytest.mark.parametrize("rule", ["labels", "proportional"])
def test_nobody_trains_or_validates_on_what_anybody_is_tested_on(rule: str, official: bool) -> None:
    splits, _ = divided(
        dataset(official=official), test_set=rule, test_samples=10, server_samples=20
    )
    tested = set().union(*splits["test"])
    seen = set().union(*splits["train"], *splits["validation"], *splits["server"])
    assert tested
    assert not tested & seen
    if official:
        assert min(tested | splits["server"][0]) >= 300, "the server's come from the pool as well"
        assert len(set().union(*splits["train"], *splits["validation"])) == 300


def test_clients_of_one_group_share_their_test_set() -> None:
    splits, found = divided(dataset(), test_set="labels")
    assert [len(one) for one in splits["test"]] == [50] * 4
    assert splits["test"][0] == splits["test"][1]
    assert not splits["test"][0] & splits["test"][2]
    assert len(found.held_out.y) == 100, "every sample of the pool is held once"


def test_the_server_owns_at_most_a_quarter_of_the_pool() -> None:
    splits, _ = divided(dataset(), test_set="labels", server_samples=1000)
    assert len(splits["server"][0]) == 24  # 25, of which four labels have 6 each
    own, _ = divided(dataset(), server_samples=1000)
    assert len(own["server"][0]) == 40, "a tenth where clients are tested on their own"


def test_newcomers_have_test_sets_of_the_pool_too() -> None:
    splits, found = divided(dataset(), test_set="labels", unseen=0.5)
    assert len(splits["test"]) == 2
    guests = found.newcomers
    assert guests is not None
    numbers = {
        int(v) for rows in guests.held_out.splits["test"] for v in guests.held_out.x[rows, 0]
    }
    assert min(numbers) >= 300


def test_a_client_needs_two_samples_where_it_is_not_tested_on_its_own() -> None:
    tiny = dataset(16)
    divided(tiny, test_set="labels", clients=4, partition="iid")
    with pytest.raises(UserError, match=mention("at least 2", "validation")):
        divided(tiny, test_set="labels", clients=12, partition="iid")


def test_sharing_changes_no_clients_numbers(play_toy: Play) -> None:
    """Each sample of a shared test set is judged once; the sums are those of judging it always."""
    from flbench.engine.model_evaluation import evaluate_model
    from flbench.federation.pooled import Pooled

    played = play_toy("fedavg", rounds=1)
    space, pool = played.run.executor.workspace, played.run.held_out
    row = played.state.models[0]
    lists = pool.splits["test"]
    both = torch.cat([lists[0], lists[1], lists[0][:1]])
    shared = type(pool)(pool.x, pool.y, {"test": (both, lists[1], both)})

    def evaluated(*clients: int) -> torch.Tensor:
        pooled = Pooled.of(shared, "test", torch.tensor(clients))
        return evaluate_model(space, row, pooled).sums

    found = evaluated(0, 1, 2)
    alone = [evaluated(i)[0] for i in range(3)]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-6, atol=1e-6)
    assert found[0, 2] == len(both)


# --- suites -------------------------------------------------------------------------------------


def test_the_new_fields_leave_old_suites_as_they_are() -> None:
    plain = suite().settings()
    assert not {"test_set", "test_samples", "target"} & set(plain)
    changed = suite(test_set="labels", target=0.8).settings()
    assert changed["test_set"] == "labels"
    assert "target" not in changed, "what is reported changes no number"
    assert suite(test_set="labels").hash() != suite().hash()
    assert suite(target=0.5).hash() == suite().hash()


def test_a_rule_nobody_knows_is_one_line() -> None:
    with pytest.raises(UserError, match=mention("test_set", "own", "labels")):
        load_suite("noisy-noniid", overrides={"test_set": "all"})


def test_a_run_with_shared_tests_ends_with_the_right_counts(play_toy: Play, tmp_path: Path) -> None:
    data = toy_dataset(samples=240)
    played = play_toy("fedavg", rounds=1, dataset=data, test_set="labels", test_fraction=0.5)
    sizes = [len(rows) for rows in played.run.held_out.splits["test"]]
    assert played.result.clients.test == sizes
    assert sum(sizes) > len(played.run.held_out.y), "test sets overlap"


def test_clients_that_share_samples_cannot_be_tested_on_their_own() -> None:
    shared = {"partition": {"name": "primary-secondary"}, "clients": 8}
    with pytest.raises(UserError, match=mention("test_set", "proportional")):
        divided(dataset(), **shared)
    splits, _ = divided(dataset(), test_set="proportional", test_samples=20, **shared)
    assert not set().union(*splits["test"]) & set().union(*splits["train"])
