"""Cells of this process: what becomes of one, and that it does not depend on those before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from mentions import mentions
from toy import composition, toy_dataset, toy_suite

from flbench import ClientModule, hookimpl
from flbench.core.dataset import Dataset
from flbench.engine.options import EngineOptions
from flbench.federation import loading
from flbench.results.schema import VOLATILE
from flbench.run.composition import MethodStack, compose
from flbench.run.spec import RunSpec
from flbench.sweeps.launchers import DONE, FAILED, CellInterrupted, Outcome, attempt, run_cells
from flbench.sweeps.request import Cell

LOCAL = {"epochs": 2, "batch_size": 5, "lr": 0.1}


@pytest.fixture(autouse=True)
def toy_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_dataset", load)


def load(name: str, root: Path) -> Dataset:
    return toy_dataset()


def in_lanes(method: MethodStack, seed: int, folder: Path) -> RunSpec:
    suite = toy_suite(rounds=6, local=LOCAL, partition="iid", participation=1.0)
    engine = EngineOptions("vectorised", "cpu")
    return RunSpec(suite, method, seed, folder, folder, engine)


def outcomes(method: MethodStack, folder: Path, *seeds: int) -> dict[int, Outcome]:
    request: Any = None
    cells = [Cell(request, in_lanes(method, seed, folder)) for seed in seeds]
    return {cell.spec.seed: outcome for cell, outcome in run_cells(cells)}


@pytest.mark.slow
def test_a_seed_in_lanes_does_not_depend_on_those_before_it(tmp_path: Path) -> None:
    """Its steps are recorded anew, and last batches have several sizes."""
    method = compose("fedavg")
    several = outcomes(method, tmp_path / "several", 0, 1, 2)
    for seed in (2, 0):
        (one,) = outcomes(method, tmp_path / f"alone-{seed}", seed).values()
        ours, other = several[seed].result, one.result
        assert ours is not None
        assert other is not None
        assert ours.environment["executor"] == "vectorised"
        assert ours.model_dump(exclude=set(VOLATILE)) == other.model_dump(exclude=set(VOLATILE))


@dataclass(frozen=True)
class Broken:
    """The training of one seed fails."""

    @hookimpl
    def local_term(self, ctx: Any) -> Any:
        def term(module: ClientModule) -> Any:
            if ctx.seed == 1:
                raise ValueError("no\nterm")
            return module.flat().sum() * 0

        return term


def test_a_seed_that_fails_stops_no_other(tmp_path: Path) -> None:
    found = outcomes(composition(("broken", Broken())), tmp_path, 0, 1, 2)
    assert [found[seed].what for seed in range(3)] == [DONE, FAILED, DONE]
    assert "ValueError: no" in found[1].why


@dataclass(frozen=True)
class Stopped:
    """Ctrl-C is pressed in C code, which makes another error of it."""

    @hookimpl
    def score(self) -> None:
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()


def test_an_interruption_of_c_code_stops_a_cell(tmp_path: Path) -> None:
    with pytest.raises(CellInterrupted):
        attempt(in_lanes(composition(("odd", Stopped())), 0, tmp_path), load)


def test_what_is_in_a_persons_files_is_said_once_before_the_runs(tmp_path: Path) -> None:
    said: list[str] = []
    spec = replace(in_lanes(compose("fedavg"), 0, tmp_path), say=said.append)
    suite = spec.suite.model_copy(update={"dataset": "csv:mine.csv", "rounds": 1})
    request: Any = None
    cells = [Cell(request, replace(spec, suite=suite, seed=seed)) for seed in (0, 1)]
    assert [outcome.what for _, outcome in run_cells(cells)] == [DONE, DONE]
    assert sum(mentions(line, "72 samples of 3") for line in said) == 1
    assert mentions(said[1], "labels", "0 18", "1 18")
    clients = [line for line in said if mentions(line, "6 clients", "least 12", "most 12")]
    assert len(clients) == 2
    assert mentions(clients, "18 to test on")


def test_nothing_is_said_of_built_in_data(tmp_path: Path) -> None:
    said: list[str] = []
    spec = replace(in_lanes(compose("fedavg"), 0, tmp_path), say=said.append)
    request: Any = None
    assert [found.what for _, found in run_cells([Cell(request, spec)])] == [DONE]
    assert said == []
