"""Suites: each runs on its offline data set; what a suite reports beside the main figure."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import Play

import flbench_benchmarks
from flbench.datasets.digits import digits
from flbench.federation.loading import load_dataset
from flbench.plugin.registry import entries
from flbench.run.composition import compose
from flbench.run.runner import execute
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.suite import load_suite

SUITES = sorted(entries("suites"))
GROUPED = {
    *("pathological-noniid", "noisy-noniid", "fig3b", "rotated", "label-swap", "nordic-text"),
    *("drift-groups", "come-and-go", "sensors", "digit-attributes"),
}
TEXTS = ("lora-text", "nordic-text", "shakespeare-roles")
OTHER_TASKS = ("sensors", "digit-attributes")
NATURAL_NUMBERS = ("births-states-number", "schools-star-score")


@pytest.mark.slow
def test_every_section_of_a_suite_fits_its_dataset() -> None:
    for name in SUITES:
        path = Path(flbench_benchmarks.__file__).with_name(f"{name}.toml")
        for dataset in tomllib.loads(path.read_text(encoding="utf-8")).get("on", {}):
            assert dataset.partition(":")[0] in entries("datasets")
            assert load_suite(name, dataset).dataset == dataset


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_every_suite_runs_without_files(name: str, tmp_path: Path) -> None:
    suite = load_suite(name)
    suite = load_suite(name, suite.offline_dataset or None, {"rounds": 2})
    assert str(suite.version) in suite.changes, "every version has a line in the changelog"
    assert suite.summary
    assert suite.paper
    job = RunSpec(suite, compose("fedavg"), 0, tmp_path, tmp_path)
    result = execute(job, load_dataset)
    assert job.path.is_file()
    clients, named = result.clients, result.headline.named
    assert len(clients.correct or clients.values or ()) == suite.training_clients
    tested = [n for i, n in enumerate(result.clients.test) if i not in suite.not_judged]
    if name == "come-and-go":
        assert tested.count(0) == 25, "a quarter is not there before round 40"
        tested = [n for n in tested if n]
    assert min(*result.clients.train, *result.clients.validation, *tested) >= 1
    assert result.summary[named("accuracy_mean")] > 0
    assert (result.task is not None) == (name in (*OTHER_TASKS, *NATURAL_NUMBERS))
    if result.task is None:
        assert result.summary["kld"] >= 0
        assert 0 <= result.summary["ece"] <= 1
    assert ("perplexity" in result.summary) == (name in TEXTS)
    if name in GROUPED:
        assert result.clients.group is not None
        assert len(set(result.clients.group)) >= 3


@pytest.mark.parametrize("name", ["byzantine-label-flip", "byzantine-sign-flip"])
def test_attackers_of_a_suite_are_those_who_are_not_judged(name: str) -> None:
    suite = load_suite(name)
    (attack,) = suite.plugins
    assert tuple(attack.params["attackers"]) == suite.not_judged == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("name", "absent"),
    [("drift-groups", {1: 0, 50: 0}), ("come-and-go", {1: 25, 40: 0, 70: 25, 90: 0})],
)
def test_whose_data_change_when(name: str, absent: dict[int, int], tmp_path: Path) -> None:
    suite = load_suite(name)
    run, _ = prepare(RunSpec(suite, compose("fedavg"), 0, tmp_path, tmp_path), digits(tmp_path))
    assert run.periods is not None
    table = run.periods.table
    assert {one.first: int((~one.present).sum()) for one in table} == absent
    moved = (table[-1].origin != table[0].origin).sum()
    assert moved == (50 if name == "drift-groups" else 0)
    assert all(
        one.groups.bincount().tolist() == [20] * 5 for one in table if one.groups is not None
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["rotated", "label-swap", "fig3b", *OTHER_TASKS])
def test_known_groups_are_worth_knowing(name: str, tmp_path: Path) -> None:
    suite = load_suite(name, None, {"rounds": 12, "eval_every": 12})
    oracle, fedavg = (
        execute(RunSpec(suite, compose(method, settings), 0, tmp_path, tmp_path))
        for method, settings in (("oracle", {"warmup": 3}), ("fedavg", {}))
    )
    means = (one.summary[oracle.headline.named("accuracy_mean")] for one in (oracle, fedavg))
    assert oracle.headline.gain(*means) > 0.02


@pytest.mark.slow
def test_fine_tuning_is_judged_once_and_changes_nothing_else(play_toy: Play) -> None:
    plain, tuned = (play_toy("fedavg", rounds=3, ft_epochs=epochs) for epochs in (0, 2))
    assert torch.equal(plain.state.models, tuned.state.models)
    curves = tuned.run.history.curves
    assert curves["accuracy"] == plain.run.history.curves["accuracy"]
    assert curves["accuracy_fine_tuned"][:2] == [None, None]
    assert curves["accuracy_fine_tuned"][2] is not None
    assert "accuracy_fine_tuned" not in plain.result.summary
    assert tuned.result.summary["accuracy_fine_tuned"] == pytest.approx(
        curves["accuracy_fine_tuned"][2], abs=1e-6
    )
    assert plain.run.ledger.totals == tuned.run.ledger.totals, "nothing crosses"


@pytest.mark.slow
def test_fine_tuning_is_the_same_each_time_and_another_model(play_toy: Play) -> None:
    one, other = (play_toy("fedavg", rounds=2, ft_epochs=2).result.summary for _ in range(2))
    assert one["accuracy_fine_tuned"] == other["accuracy_fine_tuned"]
    assert one["accuracy_fine_tuned"] != one["accuracy_mean"]


@pytest.mark.slow
def test_what_a_target_costs_is_reported_where_there_is_one(play_toy: Play) -> None:
    reached: dict[str, Any] = play_toy("fedavg", rounds=3, target=0.01).result.summary
    assert reached["rounds_to_target"] == 1
    assert reached["megabits_to_target"] > 0
    assert reached["megabits_to_target_flis"] == reached["megabits_to_target"], "no LeNet-5"
    never: dict[str, Any] = play_toy("fedavg", rounds=1, target=1.0).result.summary
    assert never["rounds_to_target"] is None or never["accuracy_mean"] == 1
    assert "target" not in play_toy("fedavg", rounds=1).result.summary


def test_the_server_of_natural_writers_leaves_enough_to_each_client() -> None:
    """Whoever is chosen: the samples of the server are drawn anew for every seed."""
    suite = load_suite("natural-writers")
    domains = load_dataset(suite.dataset, Path()).domains
    assert domains is not None
    sizes = sorted(domains.bincount().tolist(), reverse=True)
    assert suite.server_samples < len(domains) / 10
    assert sizes[suite.clients - 1] >= 2 * 8, "twice what the partition asks for"
