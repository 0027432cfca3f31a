"""Fields with a mark are in no hash where they change nothing, at every depth."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from suite_hashes import suite_hashes

import flbench
from flbench import suite as suite_module
from flbench.core.local_training import LocalTraining
from flbench.core.parameters import checked, declared
from flbench.results.files import read_result
from flbench.results.hashed_fields import DESCRIBES, LATER, described, hashed
from flbench.run import composition
from flbench.submission.consistency import job_of
from flbench.suite import ClockSettings, Suite, build_suite

COMMITTED = Path(__file__).parents[1] / "suite_hashes.json"
RESULTS = Path(__file__).parents[2] / "leaderboard" / "results"


class Inner(BaseModel):
    """A part of settings."""

    model_config = ConfigDict(extra="allow")
    old: int = 1
    new: Annotated[int, Field(ge=0), LATER] = 2


@dataclass(frozen=True)
class Part:
    """A part of settings, a dataclass."""

    old: int = 1
    new: Annotated[tuple[int, ...], LATER] = ()
    made: Annotated[list[int], LATER] = field(default_factory=lambda: [7])


class Outer(BaseModel):
    """Settings."""

    title: Annotated[str, DESCRIBES] = "a"
    needed: Annotated[int, LATER]
    inner: Inner = Inner()
    part: Part = Part()
    several: tuple[Inner, ...] = ()
    named: dict[str, Part] = {}


def plain(**given: Any) -> Any:
    """The hashed data of settings."""
    outer = Outer(needed=0, **given)
    return hashed(outer, outer.model_dump(mode="json"))


def test_at_their_defaults_they_are_left_out() -> None:
    """Others stay, also at theirs; so does one that has no default."""
    bare = {"needed": 0, "inner": {"old": 1}, "part": {"old": 1}, "several": [], "named": {}}
    assert plain() == plain(title="b") == bare


def test_another_value_is_there_at_every_depth() -> None:
    found = plain(
        inner={"new": 3, "extra": 5},
        part={"new": (1,), "made": []},
        several=({"new": 2}, {"new": 4}),
        named={"x": {}, "y": {"made": [8]}},
    )
    assert found["inner"] == {"old": 1, "new": 3, "extra": 5}
    assert found["part"] == {"old": 1, "new": [1], "made": []}
    assert found["several"] == [{"old": 1}, {"old": 1, "new": 4}]
    assert found["named"] == {"x": {"old": 1}, "y": {"old": 1, "made": [8]}}


def test_fields_that_only_describe_are_known() -> None:
    assert described(Outer) == {"title"}
    assert described(Inner) == frozenset()


def test_parameters_of_a_method_have_the_same_mark() -> None:
    entry: Any = None

    @dataclass(frozen=True)
    class Method:
        strength: float = 1.0
        since: Annotated[int, flbench.LATER, "what it is"] = 0

    for since, params in ((0, {"strength": 1.0}), (3, {"strength": 1.0, "since": 3})):
        method: Any = Method(since=since)
        assert hashed(method, asdict(method)) == params
        assert composition._params(entry, method) == params, "what a result and its hash have"
    assert declared(Method)["since"].doc == "what it is"
    assert checked("it", Method, {"since": 3}) == {"since": 3}


def test_the_hashes_of_all_committed_suites_are_what_they_were() -> None:
    """A new field of settings needs the mark; see `suite_hashes.py` for a suite's new version."""
    assert suite_hashes() == json.loads(COMMITTED.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.long
def test_the_fingerprints_of_committed_results_are_what_they_were() -> None:
    """Of one file of each row: a folder has the fingerprint in its name, and the seeds share it."""
    files = {path.parent: path for path in RESULTS.rglob("seed-*.json")}
    assert len(files) > 400
    for folder, path in files.items():
        result = read_result(path)
        job = job_of(result, Path())
        found = result.fingerprint.suite, result.fingerprint.config, folder.name
        assert found == (job.suite.hash(), job.fingerprint, job.fingerprint), path


def whole(value: object) -> object:
    """A whole number stays one, so that 5 and 5.0 are one setting."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True)
class NextTraining(LocalTraining):
    """Local training as it may be next: clipping, fractional epochs."""

    epochs: Annotated[int | float, BeforeValidator(whole), Field(gt=0)] = 5  # type: ignore[assignment]
    clip: Annotated[float | None, LATER] = None


class NextClock(ClockSettings):
    """A clock as it may be next: clients that are there at some times of the day."""

    period: Annotated[float | None, LATER] = None


class NextSuite(Suite):
    """A suite as it may be next: another task."""

    task: Annotated[str, LATER] = "classification"
    local: NextTraining = Field(default=NextTraining())
    clock: Annotated[NextClock | None, LATER] = None  # type: ignore[assignment]


def test_fields_that_come_next_move_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_module, "Suite", NextSuite)
    assert suite_hashes() == json.loads(COMMITTED.read_text(encoding="utf-8"))
    smallest = {
        "version": 1, "summary": "", "dataset": "digits", "partition": "iid", "model": "mlp",
        "clients": 4, "rounds": 1, "clock": {"up": 8.0},
    }  # fmt: skip
    hashes = {
        build_suite("next", {**smallest, "name": "next", **more}).hash()
        for more in (
            {}, {"task": "classification"}, {"local": {"epochs": 5.0}}, {"clock": {"up": 8.0}},
            {"task": "regression"}, {"local": {"clip": 1.0}}, {"local": {"epochs": 0.5}},
            {"clock": {"up": 8.0, "period": 24.0}},
        )
    }  # fmt: skip
    assert len(hashes) == 5
