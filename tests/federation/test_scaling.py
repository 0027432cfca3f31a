"""Columns are scaled by what clients train on; clients that are domains may have true groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mention
from toy import Play, toy_dataset

from flbench.core.dataset import Dataset
from flbench.errors import PluginError, UserError
from flbench.federation.build import divide
from flbench.federation.feature_scale import scaled
from flbench.federation.federation import Federation
from flbench.federation.loading import check, load_dataset
from flbench.plugin.hooks import HookCaller
from flbench.suite import Suite


def table(**changes: Any) -> Dataset:
    """Four domains of ten rows; column 0 is not scaled, 1 grows, 2 has a gap, 3 is constant."""
    rows = torch.arange(40.0)
    gaps = torch.where(rows % 10 == 3, torch.nan, rows)
    made = Dataset(
        "made",
        torch.stack([rows, rows, gaps, torch.full_like(rows, 0.3)], dim=1),
        (rows % 2).long(),
        2,
        domains=(rows // 10).long(),
        scaled=(1, 2, 3),
        domain_groups=torch.tensor([1, 0, 1, 0]),
    )
    return replace(made, **changes)


def divided(data: Dataset, seed: int = 0, **changes: Any) -> Federation:
    fields = {
        "name": "s", "version": 1, "summary": "", "dataset": "made", "rounds": 1, "clients": 4,
        "partition": {"name": "natural"}, "model": {"name": "mlp"}, **changes,
    }  # fmt: skip
    suite = Suite.model_validate(fields)
    return divide(suite, HookCaller((suite.name, suite), (), ()), data, seed)


def test_scaling_by_hand() -> None:
    """Rows 0 and 2 are trained on: column 1 has mean 1 and deviation 1; column 2 knows row 2."""
    x = torch.tensor([[7.0, 0, torch.nan], [7, 5, 1], [7, 2, 4]])
    data = Dataset("made", x, torch.tensor([0, 1, 0]), 2, scaled=(1, 2))
    found = scaled(data, np.array([0, 2]))
    assert found.tolist() == [[7.0, -1, 0], [7, 4, -3], [7, 1, 0]]
    assert torch.equal(data.x.nan_to_num(), x.nan_to_num()), "the data set stays as it is"


@pytest.mark.parametrize("unseen", [0, 0.25])
def test_only_training_samples_of_training_clients_say_how(unseen: float) -> None:
    found = divided(table(), unseen=unseen)
    rows = found.visible.splits["train"].rows
    train = found.visible.x[rows]
    assert train[:, 1].mean().item() == pytest.approx(0, abs=1e-6)
    assert train[:, 1].std(correction=0).item() == pytest.approx(1, abs=1e-6)
    numbers = train[:, 0]
    mean, deviation = numbers.mean(), numbers.std(correction=0)
    pools = [found.visible, found.held_out]
    if found.newcomers is not None:
        pools += [found.newcomers.visible, found.newcomers.held_out]
    assert len(pools) == (4 if unseen else 2)
    for pool in pools:
        torch.testing.assert_close(pool.x[:, 1], (pool.x[:, 0] - mean) / deviation)
        assert bool((pool.x[pool.x[:, 0] % 10 == 3, 2] == 0).all()), "a gap is the mean"
        assert pool.x[:, 3].abs().max() < 1e-6


def test_another_test_sample_changes_no_training_sample() -> None:
    data, other = table(), table()
    tested = divided(data).held_out.x[:, 0].long()
    other.x[tested, 1] = 1e6
    one, two = (divided(each).visible.x for each in (data, other))
    assert torch.equal(one, two)


def test_nothing_is_scaled_that_is_not_named() -> None:
    data = table(scaled=())
    found = divided(data)
    assert torch.equal(found.visible.x[:, 1], found.visible.x[:, 0])
    assert found.scaled == {}


def test_clients_have_the_groups_of_their_domains() -> None:
    found = divided(table())
    assert found.groups is not None
    first = [int(found.visible.x[rows[0], 0]) // 10 for rows in found.visible.splits["train"]]
    assert found.groups.tolist() == [[1, 0, 1, 0][domain] for domain in first]
    assert divided(table(domain_groups=None)).groups is None


def test_of_more_domains_than_clients_each_keeps_its_group() -> None:
    """The groups are the domains: which two are drawn depends on the seed."""
    data, drawn = table(domain_groups=torch.arange(4)), set()
    for seed in range(4):
        found = divided(data, seed, clients=2)
        assert found.groups is not None
        first = [int(found.visible.x[rows[0], 0]) // 10 for rows in found.visible.splits["train"]]
        assert found.groups.tolist() == first
        drawn.add(tuple(first))
    assert len(drawn) > 1


def test_clients_of_several_domains_have_none() -> None:
    found = divided(table(), partition={"name": "dirichlet", "min_samples": 5})
    assert found.groups is None


def test_newcomers_have_groups_too() -> None:
    found = divided(table(), unseen=0.25)
    assert found.newcomers is not None
    assert found.newcomers.groups is not None
    domain = int(found.newcomers.held_out.x[0, 0]) // 10
    assert found.newcomers.groups.tolist() == [[1, 0, 1, 0][domain]]


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"scaled": (4,)}, ("scaled", "columns")),
        ({"scaled": (0,), "x": torch.zeros(40, 4).long()}, ("scaled", "float32")),
        ({"domain_groups": torch.tensor([0, 1])}, ("domain_groups", "4 domains")),
        ({"domain_groups": torch.zeros(4)}, ("domain_groups", "int64")),
    ],
)
def test_what_a_data_set_may_not_say(changes: dict[str, Any], facts: tuple[str, ...]) -> None:
    check("it", table())
    with pytest.raises(PluginError, match=mention(*facts)):
        check("it", table(**changes))


def test_what_the_server_learns_of_the_scale_is_counted(play_toy: Play) -> None:
    """Six clients, three columns: count, sum and squares go up, mean and deviation come down."""
    plain = play_toy("local-only", rounds=1).run.ledger.totals
    assert plain["up"] == {"model": 0}
    data = replace(toy_dataset(), scaled=(0, 1, 2))
    found = play_toy("local-only", rounds=1, dataset=data).run.ledger.totals
    assert found["up"] == {"model": 0, "feature sums": 6 * 3 * 3 * 4}
    assert found["down"] == {"model": 0, "feature scale": 6 * 3 * 2 * 4}


def test_what_is_filled_only_is_counted(play_toy: Play) -> None:
    """Count and sum go up, the mean comes down."""
    data = replace(toy_dataset(), scaled=(0,), filled=(1, 2))
    found = play_toy("local-only", rounds=1, dataset=data).run.ledger.totals
    assert found["up"] == {"model": 0, "feature sums": 6 * (3 + 2 * 2) * 4}
    assert found["down"] == {"model": 0, "feature scale": 6 * (2 + 2) * 4}


def test_filling_by_hand() -> None:
    """Rows 0 and 1 are trained on: the gap becomes .5, and nothing is scaled."""
    x = torch.tensor([[1.0, 0], [0, 7], [torch.nan, 9]])
    data = Dataset("made", x, torch.tensor([0, 1, 0]), 2, filled=(0,))
    assert scaled(data, np.array([0, 1])).tolist() == [[1, 0], [0, 7], [0.5, 9]]


@pytest.mark.parametrize("missing", ["mean", "indicator"])
def test_no_tested_row_of_a_table_moves_what_is_trained_on(tmp_path: Path, missing: str) -> None:
    """A file without a test part, of which suites draw one: its rows may say what they like."""
    path = tmp_path / "mine.csv"

    def of(rows: Sequence[str]) -> Federation:
        path.write_text("\n".join(["label,client,n,word", *rows]), encoding="utf-8")
        return divided(load_dataset(f"csv:{path}?missing={missing}&use=n,word", tmp_path))

    rows = [f"{i % 2},c{i // 10},{i},{'?' if i % 7 == 3 else 'ab'[i % 2]}" for i in range(40)]
    first = of(rows)
    assert first.held_out.places is not None
    for row in first.held_out.places.tolist():
        rows[row] = f"{row % 2},c{row // 10},{10_000 + row},{'b' if row % 7 else '?'}"
    other = of(rows)
    assert not torch.equal(first.held_out.x, other.held_out.x)
    assert torch.equal(first.visible.x, other.visible.x)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_inputs_are_finite_but_where_values_may_be_missing(wrong: float) -> None:
    x = torch.arange(12.0).reshape(4, 3)
    check("mine", Dataset("mine", x, torch.tensor([0, 1, 0, 1]), 2))
    x[2, 1] = wrong
    with pytest.raises(UserError, match=mention("mine", "sample 2", "finite")):
        check("mine", Dataset("mine", x, torch.tensor([0, 1, 0, 1]), 2))
    filled = Dataset("mine", x, torch.tensor([0, 1, 0, 1]), 2, filled=(1,))
    if wrong == wrong:
        with pytest.raises(UserError, match=mention("sample 2", "filled")):
            check("mine", filled)
    else:
        check("mine", filled)
