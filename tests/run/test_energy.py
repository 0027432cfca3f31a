"""Energy: a stand-in meter, and codecarbon itself where it is installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from mentions import mention, mentioning
from toy import Typed, toy_dataset, toy_suite

from flbench.engine.options import EngineOptions
from flbench.errors import UserError
from flbench.results.files import read_result
from flbench.results.schema import VOLATILE, Energy, Result
from flbench.run import energy
from flbench.run.composition import compose
from flbench.run.energy import metered, refuse_without_meter
from flbench.run.runner import execute
from flbench.run.spec import RunSpec

ASKED = EngineOptions(accelerator="cpu", energy=True)


class Tracker:
    """Stands in for codecarbon's offline tracker: 1, 2 and 3 kilowatt-hours."""

    made: ClassVar[list[Tracker]] = []
    data: Any = SimpleNamespace(cpu_energy=1.0, gpu_energy=2.0, ram_energy=3.0)

    def __init__(self, **options: object) -> None:
        self.options, self.calls = options, []
        self.made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")
        self.final_emissions_data = self.data


@pytest.fixture
def trackers(monkeypatch: pytest.MonkeyPatch) -> list[Tracker]:
    """The trackers that were made, of a codecarbon that is none."""
    module = ModuleType("codecarbon")
    module.OfflineEmissionsTracker = Tracker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "codecarbon", module)
    monkeypatch.setattr(energy, "find_spec", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(energy, "version", lambda name: "9.9")
    monkeypatch.setattr(Tracker, "made", [])
    return Tracker.made


def job_of(folder: Path, said: Callable[[str], None] = print, **engine: Any) -> RunSpec:
    """A run of fedavg on the toy suite."""
    return RunSpec(
        suite=toy_suite(partition="iid", rounds=2),
        method=compose("fedavg"),
        seed=0,
        data_root=folder,
        out=folder / "out",
        engine=EngineOptions(accelerator="cpu", **engine),
        say=said,
    )


def played(job: RunSpec) -> Result:
    execute(job, lambda *_: toy_dataset())
    return read_result(job.path)


def lasting(result: Result) -> dict[str, Any]:
    """What is the same whenever the run is done."""
    table = json.loads(result.canonical())
    return {key: value for key, value in table.items() if key not in VOLATILE}


def test_a_kilowatt_hour_is_a_thousand_watt_hours(trackers: list[Tracker]) -> None:
    with metered(ASKED, resumed=False, say=print) as meter:
        assert meter.energy is None, "not before the end"
        assert trackers[0].calls == ["start"]
    assert meter.energy == Energy(meter="codecarbon 9.9", cpu=1000, gpu=2000, memory=3000)
    assert meter.energy.total == 6000
    assert trackers[0].calls == ["start", "stop"]


def test_the_meter_is_offline_and_leaves_nothing(trackers: list[Tracker]) -> None:
    with metered(ASKED, resumed=False, say=print):
        pass
    told = trackers[0].options
    assert told["output_methods"] == []
    assert told["electricitymaps_api_token"] is None
    assert (told["tracking_mode"], told["log_level"]) == ("process", "critical")


def test_the_meter_stops_whatever_happens(trackers: list[Tracker]) -> None:
    with pytest.raises(KeyError), metered(ASKED, resumed=False, say=print):
        raise KeyError
    assert trackers[0].calls == ["start", "stop"]


def test_nothing_is_measured_unless_asked_for(trackers: list[Tracker]) -> None:
    with metered(EngineOptions(), resumed=False, say=print) as meter:
        pass
    assert (meter.energy, trackers) == (None, [])


def test_a_part_of_a_run_is_not_measured(trackers: list[Tracker]) -> None:
    said: list[str] = []
    with metered(ASKED, resumed=True, say=said.append) as meter:
        pass
    assert (meter.energy, trackers) == (None, [])
    assert said == [mentioning("measured", "resumed")]


def test_a_meter_that_finds_nothing_gives_no_number(
    trackers: list[Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracker, "data", None)
    said: list[str] = []
    with metered(ASKED, resumed=False, say=said.append) as meter:
        pass
    assert meter.energy is None
    assert said == [mentioning("codecarbon", "found nothing to measure")]


def test_what_cannot_be_measured_is_refused(trackers: list[Tracker]) -> None:
    refuse_without_meter(ASKED)
    refuse_without_meter(EngineOptions(devices=2))
    with pytest.raises(UserError, match=mention("--devices", "--nodes")):
        refuse_without_meter(dataclasses.replace(ASKED, devices=2))


def test_without_codecarbon_nothing_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: Typed
) -> None:
    monkeypatch.setattr(energy, "find_spec", lambda name: None)
    code, _, told = typed(
        "run", "-p", "fedavg", "-s", "iid", "--energy", "--out", str(tmp_path / "out")
    )
    assert code == 1
    assert told == mentioning("--energy", "codecarbon", "pip install 'flbench[energy]'")
    assert not (tmp_path / "out").exists()


def test_the_energy_changes_no_other_number_and_no_fingerprint(
    trackers: list[Tracker], tmp_path: Path
) -> None:
    plain, asked = job_of(tmp_path / "a"), job_of(tmp_path / "b", energy=True)
    assert plain.fingerprint == asked.fingerprint
    without, result = played(plain), played(asked)
    assert (without.energy, result.energy and result.energy.total) == (None, 6000)
    assert lasting(without) == lasting(result)
    assert "energy" in VOLATILE
    assert '"energy"' not in without.canonical(), "files without it are as before"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("codecarbon") is None, reason="an extra")
@pytest.mark.filterwarnings("ignore")
def test_codecarbon_measures_a_run_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("CODECARBON_SAVE_TO_FILE", "true")  # what a person has set counts nothing

    def refuse(*address: object) -> None:
        raise AssertionError(f"asked the network: {address}")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    before = threading.active_count()
    result = played(job_of(tmp_path, said=lambda message: None, energy=True))
    assert result.energy is not None
    assert result.energy.meter.startswith("codecarbon ")
    assert 0 < result.energy.total < 100, "watt-hours of a few seconds"
    assert list(here.iterdir()) == []
    assert threading.active_count() == before
    assert "codecarbon" not in "".join(capfd.readouterr())
    assert lasting(result) == lasting(played(job_of(tmp_path / "again")))
