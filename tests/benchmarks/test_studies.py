"""Studies: grids of runs, and the two measurements behind figures."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mentions import mention, mentions
from torch import nn

from flbench.cli.main import main
from flbench.core.client_module import ClientModule
from flbench.core.local_training import LocalTraining
from flbench.core.parameters import checked
from flbench.core.seeding import rng, torch_seed
from flbench.errors import (
    BadParameter,
    Diverged,
    Interrupted,
    MachineError,
    MissingData,
    UnknownName,
    UserError,
)
from flbench.federation.build import divide
from flbench.federation.loading import load_dataset
from flbench.plugin.hooks import HookCaller
from flbench.plugin.registry import entries, find, load_entry, summary_of
from flbench.results.schema import Result
from flbench.run import runner
from flbench.run.composition import compose, load_method, suite_overrides
from flbench.suite import load_suite
from flbench.sweeps import study
from flbench.sweeps.request import RunRequest
from flbench.sweeps.study import (
    Study,
    StudyTable,
    as_typed,
    correlations,
    grid_rows,
    measured,
    overlaid,
    read_grid,
    run_grid,
    run_study,
)
from flbench.sweeps.workers import run_in_workers
from flbench.terminal.console import SweepProgress
from flbench_benchmarks.studies import discrepancy, influence_vectors
from flbench_benchmarks.studies.influence_cost import QS, Trainer

STUDIES = {name: load_entry(entry) for name, entry in entries("studies").items()}
GRIDS = sorted(name for name, found in STUDIES.items() if isinstance(found, Path))

SUITE = """
version = 1
summary = "small"
dataset = "{dataset}"
partition = "iid"
model = {{ name = "mlp", hidden = 4 }}
clients = 4
participation = 1.0
rounds = 1
local = {{ epochs = 1, batch_size = 64 }}
"""
GRID = """
summary = "a small grid"
suites = {suites}
methods = {methods}
columns = ["accuracy_mean", "groups"]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a suite `small.toml`, and `lacks.toml`, whose files are not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLBENCH_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("COLUMNS", "200")
    for name, dataset in (("small", "digits"), ("lacks", "mnist")):
        (tmp_path / f"{name}.toml").write_text(SUITE.format(dataset=dataset), encoding="utf-8")
    return tmp_path


class Heard(SweepProgress):
    """A console that keeps what it is given."""

    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self.said = said

    def say(self, message: str) -> None:
        self.said.append(message)

    def tell(self, line: str) -> None:
        self.said.append(line)


Asked = tuple[RunRequest, SweepProgress]


def request(folder: Path, said: list[str] | None = None, seeds: int = 1, **changes: Any) -> Asked:
    given = {"data_root": folder / "empty", "out": folder / "out", **changes}
    return RunRequest(seeds=tuple(range(seeds)), **given), Heard([] if said is None else said)


def grid(**changes: Any) -> Study:
    table = {
        "summary": "s",
        "suites": ["small.toml"],
        "methods": ["fedavg"],
        "columns": ["accuracy_mean", "groups"],
        **changes,
    }
    return Study.model_validate(table)


def played(one: Study, asked: Asked) -> tuple[StudyTable, list[StudyTable]]:
    """The table, and what was kept on the way."""
    kept: list[StudyTable] = []
    rows = run_grid(one, *asked, lambda table: kept.append([dict(row) for row in table]))
    return rows, kept


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of runs from now on."""
    titles: list[str] = []
    real = runner.execute

    def execute(job: Any, load: Any) -> Any:
        if not job.path.is_file():
            titles.append(job.title)
        return real(job, load)

    monkeypatch.setattr(runner, "execute", execute)
    return titles


# --- a grid as data -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("summary = ", "cannot be read: "),
        ('summary = "s"', "'suites': Field required"),
        (GRID.format(suites="[]", methods='["fedavg"]'), "'suites': List should have at least 1"),
        (GRID.format(suites='"small"', methods="[]"), "'suites': Input should be a valid list"),
        (GRID.format(suites='["s"]', methods='["m"]') + "speed = 1", "'speed': Extra inputs"),
        (
            GRID.format(suites='["s"]', methods='["m"]') + "[grid]\nlr = 0.1",
            "'grid.lr': Input should be a valid list",
        ),
        (GRID.format(suites='["s"]', methods='["m"]') + "cells = [3]", "'cells.0': Input should"),
    ],
)
def test_a_grid_that_is_none_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadParameter) as caught:
        read_grid(path)
    line = str(caught.value)
    assert line.startswith(f"study {path}: {why}"), line
    assert "\n" not in line


def test_a_grid_s_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="cannot be read"):
        read_grid(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadParameter, match="cannot be read"):
        read_grid(tmp_path / "bytes.toml")


def test_points_are_cells_times_the_product_of_the_axes() -> None:
    assert grid().points() == [{}]
    axes = {"a": [1, 2], "b": ["x", "y"]}
    assert grid(grid=axes).points() == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"},
    ]  # fmt: skip
    cells = [{"c": 3}, {"a": 9}]
    assert grid(grid={"a": [1, 2]}, cells=cells).points() == [
        {"c": 3, "a": 1}, {"c": 3, "a": 2}, {"a": 1}, {"a": 2},
    ]  # fmt: skip
    assert grid(grid={"a": []}).points() == []


@pytest.mark.parametrize(
    ("cell", "asked", "expected"),
    [
        ({"local.epochs": 5}, {}, {"local.epochs": 5}),
        ({"local.epochs": 5}, {"local.epochs": 2}, {"local.epochs": 2}),
        ({"local.epochs": 5}, {"epochs": 2}, {"epochs": 2}),
        ({"flis-dc.beta": 0.5, "rounds": 3}, {"beta": 0.1}, {"rounds": 3, "beta": 0.1}),
        ({"rounds": 3}, {"suite.rounds": 4}, {"suite.rounds": 4}),
        ({"warmup": 3}, {"up": 4}, {"warmup": 3, "up": 4}),
        ({"band": "none", "mode": "peer"}, {}, {"band": None, "mode": "peer"}),
    ],
)
def test_what_is_asked_for_takes_the_place_of_the_cell_s(
    cell: dict[str, Any], asked: dict[str, object], expected: dict[str, Any]
) -> None:
    assert overlaid(cell, asked) == expected


# --- columns ------------------------------------------------------------------------------------


def results(*summaries: dict[str, Any], **curves: list[float | None]) -> Any:
    return [SimpleNamespace(metrics=partial(dict, one), curves=curves) for one in summaries]


def test_a_row_has_means_and_sample_deviations() -> None:
    row = measured(results({"a": 1.0, "b": 2}, {"a": 2.0, "b": 2}, {"a": 6.0, "b": 2}), ["a", "b"])
    assert row == {"seeds": 3, "a": 3.0, "a_std": 2.645751, "b": 2.0, "b_std": 0.0}
    assert row["a_std"] == pytest.approx(np.std([1, 2, 6], ddof=1))
    assert measured(results({"a": 1 / 3}), ["a"]) == {"seeds": 1, "a": 0.333333}


def test_what_was_not_measured_is_none_or_left_out_of_the_mean() -> None:
    assert measured(results({"a": None}, {"a": None}), ["a"]) == {"seeds": 2, "a": None}
    one_of_two = {"seeds": 2, "a": 1.0, "a_seeds": 1}
    assert measured(results({"a": 1.0}, {"a": None}), ["a"]) == one_of_two
    found = measured(results({"a": 1.0}, {"a": None}, {"a": 3.0}), ["a"])
    assert found == {"seeds": 3, "a": 2.0, "a_std": 1.414214, "a_seeds": 2}
    assert measured(results({"a": 1.0}, {}), ["a"]) == one_of_two


def test_a_column_may_be_the_end_of_a_curve() -> None:
    """The summary wins, as it may be of another round."""
    found = results({"b": 1.0}, {"b": 3.0}, a=[0.1, 0.5], b=[9.0], c=[])
    assert measured(found, ["a", "b"]) == {
        "seeds": 2, "a": 0.5, "a_std": 0.0, "b": 2.0, "b_std": 1.414214
    }  # fmt: skip
    assert measured(results({}, a=[0.1, None]), ["a"]) == {"seeds": 1, "a": None}


def test_a_row_tells_lists_as_a_person_types_them() -> None:
    """Lists of a row are not printed, and these say what was set."""
    assert as_typed([{"name": "krum", "chosen": 2}]) == '[{"name" = "krum", "chosen" = 2}]'
    assert as_typed({"share": 0.3}) == {"share": 0.3}


def test_a_column_nobody_has_is_one_line() -> None:
    with pytest.raises(UserError, match=mention("c", "summary")):
        measured(results({"b": 1.0, "a": 2.0}), ["a", "c"])


def test_correlations_by_hand() -> None:
    one = np.array([1.0, 2.0, 3.0, 4.0])
    assert correlations(one, 2 * one + 1) == {"pearson": 1.0, "spearman": 1.0}
    assert correlations(one, np.exp(-3 * one))["spearman"] == -1.0
    assert correlations(one, np.array([1.0, 3.0, 2.0, 4.0])) == {"pearson": 0.8, "spearman": 0.8}
    for flat in (np.ones(4), one[:1]):
        assert correlations(one[: len(flat)], flat) == {"pearson": None, "spearman": None}


# --- grids that are played ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_grid_is_played_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = grid(methods=["fedavg", "local-only"], grid={"lr": [0.1, 0.2]})
    rows, kept = played(one, request(here, seeds=2))
    assert [(row["suite"], row["method"], row["lr"], row["seeds"]) for row in rows] == [
        ("small.toml", "fedavg", 0.1, 2), ("small.toml", "fedavg", 0.2, 2),
        ("small.toml", "local-only", 0.1, 2), ("small.toml", "local-only", 0.2, 2),
    ]  # fmt: skip
    assert [len(table) for table in kept] == [1, 2, 3, 4], "kept after every cell"
    assert {"accuracy_mean", "accuracy_mean_std", "groups", "groups_std"} <= set(rows[0])
    files = {path: path.stat().st_mtime_ns for path in (here / "out").rglob("seed-*.json")}
    assert len(files) == 8
    titles = counted(monkeypatch)
    assert played(one, request(here, seeds=2))[0] == rows
    assert titles == []
    assert {path: path.stat().st_mtime_ns for path in files} == files
    played(one, request(here, seeds=3))
    assert len(titles) == 4, "only the third seed"


def test_a_row_names_only_settings_that_its_method_has(here: Path) -> None:
    one = grid(methods=["fedavg", "fedprox"], grid={"fedprox.mu": [0.1, 0.2], "lr": [0.3]})
    rows = grid_rows(one, *request(here))
    assert [row.point for row in rows] == [
        {"lr": 0.3}, {"fedprox.mu": 0.1, "lr": 0.3}, {"fedprox.mu": 0.2, "lr": 0.3},
    ]  # fmt: skip


@pytest.mark.slow
def test_what_a_cell_sets_of_another_method_is_not_played_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = counted(monkeypatch)
    one = grid(methods=["fedavg", "fedprox"], grid={"fedprox.mu": [0.1, 0.2, 0.3]})
    rows, _ = played(one, request(here, seeds=2))
    assert [row["method"] for row in rows] == ["fedavg"] + ["fedprox"] * 3
    assert len(titles) == len(set(titles)) + 4 == 8, "fedprox is played with each"


@pytest.mark.slow
def test_an_asked_setting_counts_for_all_cells_and_rows_say_so(here: Path) -> None:
    axes = grid(grid={"local.epochs": [1, 2], "lr": [0.1, 0.2]})
    rows, _ = played(axes, request(here, settings={"local.epochs": 3}))
    assert [(row["local.epochs"], row["lr"]) for row in rows] == [(3, 0.1), (3, 0.2)]
    rows, _ = played(axes, request(here, settings={"epochs": 3}))
    assert [row["lr"] for row in rows] == [0.1, 0.2]
    assert not any("local.epochs" in row for row in rows), "nor do they say what was not set"
    mu = grid(methods=["fedprox"], grid={"fedprox.mu": [0.1, 0.2]})
    rows, _ = played(mu, request(here, settings={"mu": 0.5}))
    assert len(rows) == 1
    (path,) = (here / "out").rglob("fedprox/*/seed-0.json")
    assert json.loads(path.read_text())["method"]["params"]["mu"] == 0.5


@pytest.mark.slow
def test_what_cannot_be_run_is_said_and_the_others_go_on(here: Path) -> None:
    said: list[str] = []
    one = grid(suites=["lacks.toml", "small.toml"], methods=["oracle", "flis-dc", "fedavg"])
    rows, _ = played(one, request(here, said))
    assert [(row["suite"], row["method"]) for row in rows] == [
        ("small.toml", "oracle"), ("small.toml", "fedavg"),
    ]  # fmt: skip
    text = "\n".join(said)
    assert mentions(text, "fedavg", "lacks", "mnist", "seed 0", "skipped")
    assert mentions(text, "flis-dc", "small", "digits", "seed 0", "skipped")
    with pytest.raises(UserError, match=mention("cell", "study")):
        played(grid(suites=["lacks.toml"]), request(here))


def test_a_cell_that_diverges_stops_no_other(here: Path) -> None:
    said: list[str] = []
    rows, _ = played(grid(grid={"lr": [1e30, 0.1]}), request(here, said))
    assert [row["lr"] for row in rows] == [0.1]
    failed = "cell 1/2  fedavg on small (digits), seed 0, lr=1e+30: failed, round 1: parameters of"
    assert any(line.startswith(failed) for line in said)


@pytest.mark.slow
def test_a_cell_that_breaks_stops_no_other_and_is_told(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runner.execute

    def execute(job: Any, load: Any) -> Any:
        return {}["no"] if job.method.described.name == "fedavg" else real(job, load)

    monkeypatch.setattr(runner, "execute", execute)
    said: list[str] = []
    with pytest.raises(
        UserError, match=mention("1 of 2 cells", "failed", "fedavg", "KeyError", "no")
    ):
        played(grid(methods=["fedavg", "local-only"]), request(here, said))
    assert len(list((here / "out").rglob("local-only/*/seed-0.json"))) == 1


@pytest.mark.slow
def test_a_row_ends_before_the_first_seed_without_a_result(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runner.execute

    def execute(job: Any, load: Any) -> Any:
        if job.seed == 1:
            raise Diverged("far")
        return real(job, load)

    monkeypatch.setattr(runner, "execute", execute)
    (row,), _ = played(grid(), request(here, seeds=3))
    assert row["seeds"] == 1


@pytest.mark.slow
@pytest.mark.long
def test_workers_give_the_table_of_one_process(here: Path) -> None:
    one = grid(methods=["fedavg", "local-only"], grid={"lr": [0.1, 0.2, 1e30]})
    alone, _ = played(one, request(here, seeds=2))
    asked, progress = request(here, seeds=2, out=here / "there")
    launch = partial(run_in_workers, progress=progress, workers=2)
    kept: list[int] = []
    assert run_grid(one, asked, progress, lambda table: kept.append(len(table)), launch) == alone
    assert kept == [1, 2, 3, 4]


def test_unknown_names_and_values_are_refused_before_a_round(here: Path) -> None:
    for changes in (
        {"methods": ["fedagv"]},
        {"suites": ["smal"]},
        {"settings": {"speed": 1}},
        {"grid": {"lr": [-1.0]}},
    ):
        with pytest.raises((UnknownName, BadParameter)):
            played(grid(**changes), request(here))
    assert not (here / "out").exists()


@pytest.mark.slow
def test_a_study_s_table_is_kept_after_every_cell(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GRID.format(suites='["small.toml"]', methods='["fedavg", "local-only"]')
    (here / "mine.toml").write_text(text, encoding="utf-8")
    table = here / "out" / "studies" / "mine.json"
    real = runner.execute
    seen: list[int] = []

    def execute(job: Any, load: Any) -> Any:
        seen.append(len(json.loads(table.read_text())["rows"]) if table.is_file() else 0)
        if job.method.described.name == "local-only":
            raise KeyboardInterrupt
        return real(job, load)

    monkeypatch.setattr(runner, "execute", execute)
    with pytest.raises(Interrupted, match=mention("1 of 2 cells", "complete")):
        run_study("mine.toml", *request(here))
    assert seen == [0, 1]
    assert [row["method"] for row in json.loads(table.read_text())["rows"]] == ["fedavg"]
    monkeypatch.setattr(runner, "execute", real)
    said: list[str] = []
    rows = run_study("mine.toml", *request(here, said))
    assert json.loads(table.read_text()) == {
        "study": "mine", "dataset": None, "settings": {}, "seeds": 1, "rows": rows,
    }  # fmt: skip
    assert [row["method"] for row in rows] == ["fedavg", "local-only"]
    assert said[-1] == f"wrote {table}"
    assert "2 cells: 1 were complete; 1 to run" in said


# --- those that are installed -------------------------------------------------------------------


def test_every_study_s_file_is_an_entry_point() -> None:
    folder = Path(discrepancy.__file__).parent
    files = {path.stem for path in folder.glob("*.toml")}
    assert set(GRIDS) == files
    assert {found.stem for found in STUDIES.values() if isinstance(found, Path)} == files
    assert set(STUDIES) - files == {
        "discrepancy", "influence-cost", "influence-vectors",
    }  # fmt: skip
    assert all(summary_of(entry) for entry in entries("studies").values())


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What a result's summary may hold: with a target, newcomers, groups, a clock, own models."""
    folder = tmp_path_factory.mktemp("columns")
    text = SUITE.format(dataset="digits").replace("clients = 4", "clients = 5")
    extra = "server_samples = 20\ntarget = 0.5\nunseen = 0.2\nown_models = true\n"
    clock = "\n[clock]\nseconds_per_step = 1.0\n"
    (folder / "full.toml").write_text(extra + text + clock, encoding="utf-8")
    keys: list[set[str]] = []

    def load(results: Any, columns: Any) -> dict[str, int]:
        keys.extend(set(result.summary) for result in results)
        return {}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(study, "measured", load)
        played(grid(suites=[str(folder / "full.toml")], methods=["flis-dc"]), request(folder))
    return keys[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", GRIDS)
def test_every_grid_names_what_exists(name: str, columns: set[str], tmp_path: Path) -> None:
    one = read_grid(STUDIES[name])
    assert one.summary
    assert one.paper
    assert one.points()
    assert set(one.columns) - {"accuracy_backdoor"} <= columns
    if {"rounds_to_target", "megabits_to_target"} & set(one.columns):
        assert all(load_suite(suite).target is not None for suite in one.suites)
    if "unseen_accuracy" in one.columns:
        assert one.settings["unseen"] > 0
    paths = set()
    for point in one.points():
        settings = overlaid({**one.settings, **point}, {})
        overrides = suite_overrides(settings, [load_method(name) for name in one.methods])
        for suite in one.suites:
            dataset = one.settings.get("dataset") or load_suite(suite).offline_dataset
            found = load_suite(suite, dataset or None, overrides)
            target = load_entry(find("partitions", found.partition.name))
            checked("partition", target, found.partition.params, skip=4)
            for method in one.methods:
                paths.add((found.hash(), str(compose(method, settings).described)))
    assert len(paths) >= len(one.points()) * len(one.suites), "every cell is another"


@pytest.mark.slow
@pytest.mark.parametrize("name", GRIDS)
def test_every_grid_s_data_can_be_divided_among_its_clients(name: str, tmp_path: Path) -> None:
    one = read_grid(STUDIES[name])
    if "dataset" in one.settings:
        pytest.skip("its data set needs files, which no installation has")
    for point in (one.points()[0], one.points()[-1]):
        overrides = suite_overrides(
            overlaid({**one.settings, **point}, {}), [load_method(name) for name in one.methods]
        )
        for suite in one.suites:
            found = load_suite(suite, load_suite(suite).offline_dataset or None, overrides)
            data = load_dataset(found.dataset, tmp_path)
            divided = divide(found, HookCaller((found.name, found), []), data, seed=0)
            assert divided.clients == found.training_clients


# --- influence: lazy and exact ------------------------------------------------------------------


def trainer(most: int = 40, lr: float = 0.5, classes: int = 2) -> Trainer:
    """A linear softmax on the line; the test samples are -1 (label 0) and 1 (label 1)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Linear(1, classes)
    module = ClientModule(net, LocalTraining(epochs=1, batch_size=4, lr=lr))
    return Trainer(module, torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]), most)


X, Y = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]]), torch.tensor([0, 0, 1, 1])


def zeros(one: Trainer) -> list[torch.Tensor]:
    return [torch.zeros_like(value) for value in one.weights()]


def test_a_step_of_training_by_hand() -> None:
    """One batch of all samples from zero: every gradient is half of what labels pull."""
    one = trainer(lr=0.5)
    losses = one.epochs(zeros(one), X, Y, seed=0)
    assert next(losses) == pytest.approx(np.log(2))
    weight, bias = one.module.net.weight, one.module.net.bias
    pull = 0.5 * (2 + 1 + 1 + 2) / 4 * 0.5  # lr, mean over samples of |x|, 1 - p
    torch.testing.assert_close(weight.detach(), torch.tensor([[-pull], [pull]]))
    torch.testing.assert_close(bias.detach(), torch.zeros(2))
    assert one.loss() == pytest.approx(np.log1p(np.exp(-2 * pull)))
    x, y = X.repeat(2, 1)[:6], Y.repeat(2)[:6]
    assert next(one.epochs(zeros(one), x, y, 0)) < np.log(2), "batches of four and two"


def test_some_epochs_are_the_same_each_time_and_start_where_they_are_told() -> None:
    one, other = trainer(), trainer()
    start = one.weights()
    kept = [value.clone() for value in start]
    first, seconds = one.some_epochs(start, X, Y, 3, seed=1)
    one.some_epochs(start, X, 1 - Y, 2, seed=1)
    assert one.some_epochs(start, X, Y, 3, seed=1)[0] == first
    assert other.some_epochs(start, X, Y, 3, seed=1)[0] == first
    assert one.some_epochs(start, X, Y, 4, seed=1)[0] < first
    assert seconds > 0
    assert all(torch.equal(a, b) for a, b in zip(start, kept, strict=True))
    by_hand = one.epochs(start, X, Y, 1)
    for _ in range(3):
        next(by_hand)
    assert one.loss() == first, "three epochs, no more"


def test_training_until_it_converges_is_the_same_each_time() -> None:
    one = trainer()
    found = [one.until_converged(zeros(one), X, Y, seed=0) for _ in range(2)]
    for q in QS:
        assert found[0][q].loss == found[1][q].loss
        assert found[0][q].epochs == found[1][q].epochs
        pairs = zip(found[0][q].weights, found[1][q].weights, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    epochs = [found[0][q].epochs for q in QS]
    assert epochs == sorted(epochs), "a smaller q takes longer"
    assert all(found[0][q].seconds > 0 for q in QS)


def watching(one: Trainer, losses: list[float]) -> Trainer:
    """The trainer, whose training losses are given and whose weights count the epochs."""

    def epochs(start: Any, *_: Any) -> Any:
        for number, loss in enumerate(losses, start=1):
            for value in one.module.state_dict().values():
                value.fill_(number)
            yield loss

    one.epochs = epochs  # type: ignore[method-assign]
    return one


def test_converged_is_three_epochs_running_of_too_little() -> None:
    # decrease: -, 50 %, 0.5 %, 0.5 %, 50 %, 0.5 % x 3, then 0 forever
    losses = [8.0, 4.0, 3.98, 3.96, 1.98, 1.97, 1.96, 1.95, *[1.95] * 30]
    found = watching(trainer(), losses).until_converged([], X, Y, 0)
    assert [found[q].epochs for q in QS] == [8, 11, 11]
    assert [float(found[q].weights[0].flatten()[0]) for q in QS] == [8, 11, 11]
    rising = watching(trainer(), [1.0, 2.0, 3.0, 4.0, 5.0]).until_converged([], X, Y, 0)
    assert [rising[q].epochs for q in QS] == [4] * 3, "what grows has not fallen"


def test_a_training_that_never_calms_down_ends_at_most() -> None:
    losses = [0.5**n for n in range(50)]
    found = watching(trainer(most=7), losses).until_converged([], X, Y, 0)
    assert [found[q].epochs for q in QS] == [7] * 3
    assert set(trainer(most=1).until_converged(zeros(trainer()), X, Y, 0)) == set(QS)


def test_nothing_more_has_no_influence_and_a_good_batch_helps() -> None:
    """Exact: trained anew with the batch. Lazy: trained on with the batch alone."""
    one = trainer(most=30)
    start = zeros(one)
    first = one.until_converged(start, X, Y, seed=0)
    same = one.until_converged(start, torch.cat([X, X[:0]]), torch.cat([Y, Y[:0]]), seed=0)
    turned = one.until_converged(start, torch.cat([X, X]), torch.cat([Y, 1 - Y]), seed=0)
    for q in QS:
        assert first[q].loss - same[q].loss == 0
        assert first[q].loss - turned[q].loss < 0, "wrong labels harm"
        lazy_good = first[q].loss - one.some_epochs(first[q].weights, X, Y, 5, 0)[0]
        lazy_bad = first[q].loss - one.some_epochs(first[q].weights, X, 1 - Y, 5, 0)[0]
        assert lazy_good > 0 > lazy_bad


def test_a_loss_that_is_no_number_is_said() -> None:
    one = trainer()
    with pytest.raises(Diverged, match="lower lr"):
        one.some_epochs([torch.full((2, 1), torch.inf), torch.zeros(2)], X, Y, 1, 0)


TINY = {"samples": 60, "batch": 5, "test": 20, "batches": 4, "most": 4, "epochs": 2}


@pytest.mark.slow
def test_influence_cost_gives_a_row_per_seed_and_q(tmp_path: Path) -> None:
    said: list[str] = []
    rows = run_study("influence-cost", *request(tmp_path, said, seeds=2, settings=TINY))
    assert [(row["seed"], row["q"]) for row in rows] == [(s, q) for s in (0, 1) for q in QS]
    for row in rows:
        assert row["dataset"] == "digits"
        assert 0 <= row["sign_agreement"] <= 1
        assert len(row["exact"]) == len(row["lazy"]) == 4
        assert 1 <= row["exact_epochs"] <= 4
        agree = np.mean(np.sign(row["exact"]) == np.sign(row["lazy"]))
        assert row["sign_agreement"] == pytest.approx(agree)
        assert row["speedup"] > 0
        assert row["exact_seconds"] > 0
        assert row["pearson"] is None or -1 <= row["pearson"] <= 1
    (table,) = (tmp_path / "out" / "studies").iterdir()
    assert re.fullmatch(r"influence-cost-[0-9a-f]{8}\.json", table.name), "its settings are others"
    kept = json.loads(table.read_text())
    assert kept["rows"] == rows
    assert kept["settings"] == TINY
    assert sum("batch 4/4" in line for line in said) == 2
    again = run_study("influence-cost", *request(tmp_path, settings=TINY))
    assert [row["exact"] for row in again] == [row["exact"] for row in rows[:3]]
    assert [row["lazy"] for row in again] == [row["lazy"] for row in rows[:3]]


def test_a_measurement_says_that_it_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(asked: RunRequest, say: Any) -> StudyTable:
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "load_entry", lambda entry: stopped)
    with pytest.raises(Interrupted, match=mention("measurement", "kept")):
        run_study("influence-cost", *request(tmp_path))
    for unused in ({"force": True}, {"metrics": ("f1",)}):
        with pytest.raises(UserError, match=mention("--metric", "--force")):
            run_study("influence-cost", *request(tmp_path, **unused))


def test_influence_by_hand(tmp_path: Path) -> None:
    """Lazy: the trained model's loss less that after epochs on the batch alone, in plain torch."""
    settings = {**TINY, "batches": 2, "lr": 0.1}
    row = run_study("influence-cost", *request(tmp_path, settings=settings))[0]
    data = load_dataset("digits", tmp_path)
    order = torch.as_tensor(rng(0, "influence-cost").permutation(len(data.y)))
    base, tested, batches = order[:60], order[60:80], order[80:90].reshape(2, 5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(0, "init"))
        net = load_entry(find("models", "mlp"))(tuple(data.x.shape[1:]), 10)
    module = ClientModule(net, LocalTraining(batch_size=32, lr=0.1))
    one = Trainer(module, data.x[tested], data.y[tested], most=4)
    start = one.weights()
    first = one.until_converged(start, data.x[base], data.y[base], 0)[QS[0]]

    def lazy(x: torch.Tensor, y: torch.Tensor) -> float:
        for value, kept in zip(net.parameters(), first.weights, strict=True):
            value.data.copy_(kept)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        return first.loss - F.cross_entropy(net(one.x), one.y).item()

    def exact(x: torch.Tensor, y: torch.Tensor) -> float:
        both = torch.cat([data.x[base], x]), torch.cat([data.y[base], y])
        return first.loss - one.until_converged(start, *both, 0)[QS[0]].loss

    for number, rows in enumerate(batches):
        x, y = data.x[rows], data.y[rows]
        lazily, trained_anew = row["lazy"][number], row["exact"][number]
        assert (lazily == pytest.approx(lazy(x, y), abs=2e-5)) == (number == 0), "labels of every"
        assert (trained_anew == pytest.approx(exact(x, y), abs=2e-6)) == (number == 0), "other one"


def test_one_batch_correlates_with_nothing(tmp_path: Path) -> None:
    rows = run_study("influence-cost", *request(tmp_path, settings={**TINY, "batches": 1}))
    assert [(row["pearson"], row["spearman"]) for row in rows] == [(None, None)] * 3


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"samples": 1700}, r"expects at most 1797 samples, all of digits; .* are 2300$"),
        ({"batches": 0}, "'batches' expects int"),
        ({"speed": 1}, "unknown parameter of study 'influence-cost' 'speed'"),
    ],
)
def test_a_measurement_s_settings_are_checked(
    tmp_path: Path, settings: dict[str, object], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        run_study("influence-cost", *request(tmp_path, settings=settings))
    assert not (tmp_path / "out").exists()


def test_a_table_that_cannot_be_written_is_refused_before_it_is_measured(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    asked, progress = request(tmp_path, dataset="mnist")  # its data are not there either
    with pytest.raises(MachineError, match=mention("Not a directory")):
        run_study("influence-cost", asked, progress)


def test_influence_cost_refuses_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=mention("got bigrams", "choose")):
        run_study("influence-cost", *request(tmp_path, dataset="bigrams"))


def test_a_measurement_without_its_data_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MissingData):
        run_study("influence-cost", *request(tmp_path, dataset="mnist"))


# --- discrepancy --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_discrepancy_gives_both_scales_and_all_pairs(tmp_path: Path) -> None:
    settings = {"clients": 6, "rounds": 2, "suite": "label-swap"}
    rows = run_study("discrepancy", *request(tmp_path, seeds=2, settings=settings))
    assert [(row["seed"], row["scale"]) for row in rows] == [
        (0, "model"), (0, "tensor"), (1, "model"), (1, "tensor"),
    ]  # fmt: skip
    for row in rows:
        assert len(row["kld"]) == len(row["discrepancy"]) == 15
        assert min(row["kld"]) >= 0
        assert min(row["discrepancy"]) > 0
    assert rows[0]["kld"] == rows[1]["kld"], "labels do not depend on the scale"
    assert rows[0]["discrepancy"] != rows[1]["discrepancy"]
    assert rows[0]["kld"] != rows[2]["kld"]
    assert not list((tmp_path / "out").rglob("seed-*")), "runs leave nothing behind"


@pytest.mark.slow
@pytest.mark.long
def test_models_differ_as_labels_do(tmp_path: Path) -> None:
    settings = {"clients": 30, "rounds": 2}
    rows = run_study("discrepancy", *request(tmp_path, settings=settings))
    assert [len(row["kld"]) for row in rows] == [435] * 2
    for row in rows:
        by_hand = np.corrcoef(row["kld"], row["discrepancy"])[0, 1]
        assert row["pearson"] == pytest.approx(by_hand, abs=1e-3)
        assert row["pearson"] > 0.2


def test_two_clients_are_too_few_to_correlate(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="'clients' expects int, default 30; got 2"):
        run_study("discrepancy", *request(tmp_path, settings={"clients": 2}))


# --- influence vectors --------------------------------------------------------------------------


def test_influences_are_the_papers_equation_5() -> None:
    """l^2 / sum l^2 of (1, 2) is (1/5, 4/5)."""
    found = influence_vectors.influences(torch.tensor([[1.0, 2.0], [3.0, 3.0]]), 2.0)
    assert found.tolist() == [pytest.approx([0.2, 0.8]), pytest.approx([0.5, 0.5])]
    row = influence_vectors.described(found)
    assert (row["own"], row["strongest_other"]) == (0.35, 0.65)
    assert row["influence"] == [[0.2, 0.8], [0.5, 0.5]]


@pytest.mark.slow
def test_influence_vectors_of_every_client_are_recorded(tmp_path: Path) -> None:
    """The first row of each round is what the method notes of client 0."""
    settings = {"suites": ["feature-shift"]}
    rows = run_study("influence-vectors", *request(tmp_path, settings=settings))
    assert [row["round"] for row in rows] == [1, 2, 10, 20]
    assert all(np.shape(row["influence"]) == (5, 5) for row in rows)
    assert rows[0]["own"] == pytest.approx(0.2, abs=1e-3), "all start from one model"
    assert rows[-1]["own"] > rows[-1]["strongest_other"]
    for row in rows:
        assert np.sum(row["influence"], axis=1) == pytest.approx(1.0, abs=1e-3)


# --- the command line ---------------------------------------------------------------------------

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Run the command in this process: exit code, what it printed, and what it said."""

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr("joblib.cpu_count", lambda: 1)
        monkeypatch.setattr(sys, "argv", ["flbench", *args])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_studies_are_listed(typed: Typed) -> None:
    code, printed, _ = typed("list", "studies")
    assert code == 0
    for name, entry in entries("studies").items():
        assert f"{name} " in printed
        assert summary_of(entry).split(",")[0][:40] in printed


def test_an_unknown_study_is_one_line(typed: Typed, here: Path) -> None:
    code, printed, errors = typed("study", "flis-betta")
    assert (code, printed) == (1, "")
    assert mentions(errors, "flis-betta", "flis-beta")
    assert errors.count("\n") == 1
    code, _, errors = typed("study", "none.toml")
    assert (code, errors.count("\n")) == (1, 1)


@pytest.mark.slow
def test_a_grid_is_typed(typed: Typed, here: Path) -> None:
    quick = ("--set", "rounds=2", "--set", "clients=10", "--set", "local.epochs=1")
    code, printed, errors = typed("study", "flis-beta", *quick, "--seeds", "2")
    assert code == 0, errors
    (file,) = (here / "flbench-results" / "studies").glob("flis-beta-*.json")
    table = json.loads(file.read_text())
    assert len(table["rows"]) == 11, "one number of epochs was asked for"
    assert {row["local.epochs"] for row in table["rows"]} == {1}
    assert all(row["seeds"] == 2 for row in table["rows"])
    assert "flis-beta" in printed
    assert "±" in printed
    assert "selection_error" in printed
    code, _, errors = typed("study", "flis-beta", *quick, "--seeds", "2")
    assert "22 cells: 22 were complete; 0 to run" in errors


@pytest.mark.slow
@pytest.mark.long
def test_measurements_are_typed(typed: Typed) -> None:
    pairs = [text for key, value in TINY.items() for text in ("--set", f"{key}={value}")]
    code, printed, errors = typed("study", "influence-cost", *pairs)
    assert code == 0, errors
    assert "sign_agreement" in printed
    assert "exact_epochs" in printed
    code, printed, errors = typed(
        "study", "discrepancy", "--set", "clients=20", "--set", "rounds=2"
    )
    assert code == 0, errors
    assert "pearson" in printed


@pytest.mark.slow
def test_an_interrupted_study_says_how_to_go_on(
    typed: Typed, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine.toml").write_text(GRID.format(suites='["small.toml"]', methods='["fedavg"]'))

    def execute(*_: Any) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "execute", execute)
    code, _, errors = typed("study", "mine.toml")
    assert code == 130
    assert mentions(errors.splitlines()[-1], "0 of 1 cells", "interrupted")


@pytest.mark.slow
def test_a_study_runs_on_the_data_it_is_told(here: Path) -> None:
    rows, _ = played(grid(suites=["lacks.toml"]), request(here, dataset="digits"))
    assert [row["suite"] for row in rows] == ["lacks.toml"]
    forced = request(here, force=True)
    assert played(grid(), forced)[0][0]["seeds"] == 1
