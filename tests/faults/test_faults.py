"""A small part of what `python tests/faults` does; and that it finds what it looks for."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import damaged_checkpoints
import killed_runs
import pytest
import random_answers
import random_commands
import random_runs
from damage import DAMAGES
from fault_record import Fault, injected, recorded, report
from power_cut import Disk

from flbench.core.state import Upload
from flbench.engine import batches
from flbench.engine.distributed import DistributedExecutor
from flbench.plugin import validation
from flbench.results import files
from flbench.results.files import atomic_write, write_atomically
from flbench.run import checkpoint, checkpoint_file, setup
from flbench.run.checkpoint_file import previous, safe_open

# --- checkpoints --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "pfedlia-peer"])
def test_damaged_checkpoints_give_no_wrong_result(method: str) -> None:
    chosen = [name for name in damaged_checkpoints.names(3) if name.startswith(f"{method}/")]
    assert len(chosen) == 3 * len(DAMAGES) + len(damaged_checkpoints.SWAPS)
    found = [damaged_checkpoints.inject(name) for name in chosen[:: 2 if method == "fedavg" else 5]]
    assert [(one.name, one.wrong, one.message) for one in found if one.wrong] == []
    assert {one.outcome for one in found} >= {"refused", "previous used"}


@pytest.mark.slow
def test_without_a_digest_damage_is_found_to_go_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness can fail."""

    def unchecked(path: Path) -> str:
        with safe_open(path, framework="pt") as file:
            content: str = file.metadata()[checkpoint_file.CONTENT]
        return content

    monkeypatch.setattr(checkpoint, "read_content", unchecked)
    kinds = ("zeroed tail", "altered content", "bit in header", "bit anywhere")
    names = [f"scaffold/{kind}/absent/{number}" for kind in kinds for number in range(3)]
    wrong = {damaged_checkpoints.inject(name).wrong for name in names}
    assert wrong >= {"a wrong result", "cause not named"} or "traceback" in wrong


# --- kills and power cuts -----------------------------------------------------------------------


@pytest.fixture
def forks() -> Iterator[None]:
    """The server of the killed runs, ended after the test."""
    yield
    atexit.unregister(killed_runs.server().close)
    killed_runs.server().close()
    killed_runs.server.cache_clear()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    "names",
    [
        ("run/pfedlia/kill/file/20",),
        (
            "run/pfedlia/cut/probe/3",
            "run/pfedlia/int twice/file/9",
            "run/pfedlia/lenient cut/file/31",
        ),
        ("four/pfedlia/other kill/begun/0",),
    ],
)
def test_killed_runs_end_in_the_same_bytes(names: tuple[str, ...]) -> None:
    found = [killed_runs.inject(name) for name in names]
    assert [(one.name, one.wrong, one.message) for one in found if one.wrong] == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_a_killed_worker_of_ray_is_replaced() -> None:
    pytest.importorskip("ray")
    found = killed_runs.inject("ray/pfedlia/other kill/begun/0")
    assert (found.wrong, found.message) == ("", "")


class Cut(BaseException):
    """The power is gone."""


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Functions of the file system may be replaced in a test."""
    for name in ("fsync", "replace", "mkdir", "open"):
        monkeypatch.setattr(os, name, getattr(os, name))
    return iter(())


def cut_at(operation: int, disk: Disk, chance: Random | None) -> None:
    """Cut the power before the file operation of a number."""
    disk.listen()
    left = [operation]

    def counted(call: Any) -> Any:
        def one(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                disk.cut(chance)
                raise Cut
            return call(*given, **named)

        return one

    os.fsync, os.replace, os.open = counted(os.fsync), counted(os.replace), counted(os.open)


def after_a_cut(folder: Path, operation: int, chance: Random | None) -> tuple[set[bytes], bool]:
    """What is in place after a power cut in the second write, and whether that was complete."""
    path = folder / "a" / "b" / "seed-0.json"
    write_atomically(path, b"old")
    cut_at(operation, Disk(folder), chance)
    try:
        atomic_write(path, lambda temporary: temporary.write_bytes(b"new"), former=previous(path))
    except Cut:
        return {one.read_bytes() for one in (path, previous(path)) if one.is_file()}, False
    return {path.read_bytes()}, True


@pytest.mark.parametrize("operation", range(1, 10))
@pytest.mark.parametrize("seed", [None, *range(5)])
@pytest.mark.usefixtures("operations")
def test_a_power_cut_leaves_the_old_file_or_the_new(
    operation: int, seed: int | None, tmp_path: Path
) -> None:
    there, complete = after_a_cut(tmp_path, operation, None if seed is None else Random(seed))
    assert there <= {b"old", b"new"}
    assert there
    assert complete == (operation > 7), "three opens, two syncs, two names"


@pytest.mark.usefixtures("operations")
def test_a_file_that_is_not_synced_is_found_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulation can fail: without syncing, names come without their content."""
    monkeypatch.setattr(files, "_sync", lambda path: None)
    folders = [tmp_path / str(seed) for seed in range(12)]
    found = set[bytes]()
    for seed, folder in enumerate(folders):
        path = folder / "seed-0.json"
        write_atomically(path, b"old")
        disk = Disk(folder)
        disk.listen()
        write_atomically(path, b"new")
        disk.cut(Random(seed))
        found |= {path.read_bytes()}
    assert found - {b"old", b"new"}


@pytest.mark.usefixtures("operations")
def test_what_is_complete_is_there_after_a_power_cut(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.listen()
    path = tmp_path / "a" / "b" / "seed-0.json"
    write_atomically(path, b"whole")
    disk.cut(None)
    assert path.read_bytes() == b"whole"
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [path]


# --- laws under random suites -------------------------------------------------------------------


@pytest.mark.slow
def test_laws_hold_under_random_suites() -> None:
    found = [random_runs.inject(name) for name in random_runs.names(16)]
    assert [(one.name, one.wrong, one.message) for one in found if one.wrong] == []
    assert {one.outcome for one in found} == {"as it should be", "refused"}


def wrong_of(law: str, count: int) -> set[str]:
    """What the harness says of the first cases of a law."""
    names = [name for name in random_runs.names(1000) if name.startswith(law)]
    return {random_runs.inject(name).wrong for name in names[:count]}


@pytest.mark.slow
def test_a_run_that_goes_on_from_another_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness can fail."""
    real = setup.load_checkpoint

    def load(*args: Any, **named: Any) -> Any:
        found = real(*args, **named)
        found.state.models[0] = found.state.models[0] + 1
        return found

    monkeypatch.setattr(setup, "load_checkpoint", load)
    assert "another state" in wrong_of("resumed", 8)


@pytest.mark.slow
def test_what_changes_a_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_runs, "JUDGED", {"participation": [0.3, 1.0], "rounds": [1]})
    assert "another state" in wrong_of("judged", 4)
    monkeypatch.setattr(random_runs, "CLOCKS", ({}, {"dropout": 0.9}))
    assert "other models" in wrong_of("clocked", 4)
    monkeypatch.setattr(random_runs, "NEUTRAL", {"norm-bound": {"bound": 1e-9}})
    assert "other models with norm-bound" in wrong_of("neutral", 12)
    monkeypatch.setattr(random_runs, "APART", -1.0)
    assert any(one.endswith(" apart") for one in wrong_of("executors", 4))


@pytest.mark.slow
def test_processes_that_mix_up_their_clients_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = DistributedExecutor.fit

    def fit(self: DistributedExecutor, *given: Any) -> Upload:
        upload = real(self, *given)
        return replace(upload, params=upload.params.flip(0))

    monkeypatch.setattr(DistributedExecutor, "fit", fit)
    assert any("another state" in one for one in wrong_of("processes", 4))


# --- random answers -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_wrong_answer_is_one_line_or_does_no_harm() -> None:
    found = [random_answers.inject(name) for name in random_answers.names(40)]
    assert [(one.name, one.wrong, one.message) for one in found if one.wrong] == []
    assert {one.outcome for one in found} == {"refused", "accepted"}


@pytest.mark.slow
@pytest.mark.long
def test_answers_whose_fields_nobody_looks_at_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "misfit", lambda answer: "")
    wrong = {random_answers.inject(name).wrong for name in random_answers.names(60)}
    assert "a traceback" in wrong


# --- random commands ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_what_random_commands_write_is_read_by_all() -> None:
    found = [random_commands.inject(name) for name in random_commands.names(6)]
    assert [(one.name, one.wrong, one.message) for one in found if one.wrong] == []
    assert "read by all" in {one.outcome for one in found}


@pytest.mark.slow
@pytest.mark.long
def test_a_run_that_is_another_when_it_is_played_again_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, drawn = batches.rng, iter(range(10**9))
    monkeypatch.setattr(batches, "rng", lambda seed, *address: real(next(drawn), *address))
    wrong = {random_commands.inject(name).wrong for name in random_commands.names(6)}
    assert wrong & {"verify: refused", "verify: other bytes"}


# --- the report ---------------------------------------------------------------------------------


def test_a_harness_that_was_stopped_goes_on(tmp_path: Path) -> None:
    asked: list[str] = []

    def inject(name: str) -> Fault:
        asked.append(name)
        return Fault(name, "kind", "refused", "traceback" if name == "b" else "", lost=len(asked))

    file = tmp_path / "a" / "faults.jsonl"
    assert [one.name for one in injected(["a", "b"], inject, file)] == ["a", "b"]
    found = list(injected(["a", "b", "c"], inject, file))
    assert asked == ["a", "b", "b", "c"], "what went wrong is injected again"
    text = report("title", found)
    assert "| kind | 3 | 2 | 3 | 8 |" in text
    assert "| all | 3 | 2 | 3 | 8 |" in text
    assert "- b: traceback" in text
    assert recorded(file) == {one.name: one for one in found}
