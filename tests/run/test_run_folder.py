"""What killed runs leave behind is removed by the next one; what live runs write is not."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from flbench.errors import InProgress, UserError
from flbench.results.files import checkpoint_path
from flbench.run.checkpoint_file import previous
from flbench.run.run_folder import begun_again, held, in_progress, lock_path, tidy

STALE = (
    ".seed-0.json.ab12_x9z",
    ".seed-13.checkpoint.safetensors.abcdefgh",
    ".skipped.json.01234567",
    ".bank-abcdefgh",
    ".flbench-abcdefgh",
    ".seed-7.lock",
)
KEPT = (
    ".nfs0001",
    ".seed-x.lock",
    ".seed-0.json",
    "seed-1.checkpoint.safetensors",
    "notes.txt",
    ".bank-",
)


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A folder in which a run was killed between its result and the end."""
    folder = tmp_path / "out" / "suite"
    folder.mkdir(parents=True)
    result = folder / "seed-0.json"
    for file in (
        *STALE,
        *KEPT,
        checkpoint_path(result).name,
        previous(checkpoint_path(result)).name,
    ):
        (folder / file).touch()
    result.touch()
    return result


def names(result: Path) -> set[str]:
    return {file.name for file in result.parent.iterdir()}


def test_the_next_run_removes_what_killed_runs_left(result: Path) -> None:
    with held(result):
        assert names(result) == {"seed-0.json", ".seed-0.lock", *KEPT}
    assert names(result) == {"seed-0.json", *KEPT}


def test_so_does_whoever_finds_it_complete(result: Path) -> None:
    tidy(result.parent)
    assert names(result) == {"seed-0.json", *KEPT}
    tidy(result.parent / "nowhere")


def test_nothing_is_removed_while_another_run_is_alive(result: Path) -> None:
    before = names(result)
    with held(result.with_name("seed-1.json")):
        (result.parent / STALE[0]).touch()
        checkpoint_path(result).touch()
        os.utime(checkpoint_path(result), ns=(0, 0))
        between = names(result)
        tidy(result.parent)
        with held(result):
            assert names(result) == between | {".seed-0.lock"}
        assert names(result) == between
        assert between - {".seed-1.lock"} < before
    tidy(result.parent)
    assert names(result) == {"seed-0.json", *KEPT}


def test_where_folders_cannot_be_locked_nothing_is_removed(
    result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError("no locks here")

    before = names(result)
    monkeypatch.setattr(fcntl, "flock", none)
    with held(result):
        assert names(result) == before | {".seed-0.lock"}
        with held(result):
            assert not in_progress(result), "nobody can tell"
    assert names(result) == before


def test_a_run_is_computed_by_one_process(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "seed-0.json", tmp_path / "a" / "seed-1.json"
    line = rf"seed-0.json: process {os.getpid()} on \S+ computes this run: wait for it, or"
    with held(first), held(second):
        assert in_progress(first)
        with pytest.raises(InProgress, match=line), held(first):
            pytest.fail("nothing is begun")
        assert in_progress(first), "the other one still holds it"
    assert not in_progress(first)
    with held(first):
        assert lock_path(first).is_file()
        assert not in_progress(second)
    assert not list(tmp_path.iterdir())


def test_a_process_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "seed-0.json"
    begun, begin = os.pipe()
    other = os.fork()
    if not other:
        with held(path):
            os.write(begin, b"1")
            time.sleep(60)
        os._exit(1)
    assert os.read(begun, 1) == b"1"
    with pytest.raises(InProgress, match=f"process {other} on"), held(path):
        pytest.fail("nothing is begun")
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    assert lock_path(path).is_file()
    assert not in_progress(path)
    with held(path):
        assert lock_path(path).read_text().startswith(f"process {os.getpid()} on ")


def test_a_lock_on_a_file_that_was_removed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ended between the opening of its file and the lock on it."""
    path, lock = tmp_path / "seed-0.json", fcntl.flock
    kinds: list[int] = []

    def removed_before(descriptor: int, kind: int) -> None:
        lock(descriptor, kind)
        if lock_path(path).is_file():
            kinds.append(kind)
            if len(kinds) == 1:
                lock_path(path).unlink()

    monkeypatch.setattr(fcntl, "flock", removed_before)
    with held(path):
        assert len(kinds) == 2
        assert in_progress(path)


def test_a_checkpoint_younger_than_its_result_is_of_a_run_that_was_begun_again(
    result: Path,
) -> None:
    os.utime(result, ns=(0, 0))
    assert begun_again(result)
    with held(result):
        assert checkpoint_path(result).is_file()
    os.utime(result)
    assert not begun_again(result)


def test_folders_that_stay_empty_are_removed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), held(tmp_path / "a" / "b" / "seed-0.json"):
        _ = 1 / (len(list((tmp_path / "a" / "b").iterdir())) - 1)
    assert not list(tmp_path.iterdir())
    with held(tmp_path / "a" / "b" / "seed-0.json"):
        (tmp_path / "a" / "c").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "c"]


def test_two_runs_that_make_and_remove_a_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    make, made = os.mkdir, list[str]()

    def removed_at_once(path: str, *mode: int) -> None:
        make(path, *mode)
        made.append(path)
        if len(made) < 3:
            os.rmdir(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkdir", removed_at_once)
        with held(tmp_path / "a" / "seed-0.json"):
            assert len(made) == 3


def test_a_folder_that_is_always_removed_is_given_up(tmp_path: Path) -> None:
    make, made = os.mkdir, list[str]()

    def removed_at_once(path: str, *mode: int) -> None:
        make(path, *mode)
        made.append(path)
        os.rmdir(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkdir", removed_at_once)
        with pytest.raises(UserError, match="No such file"), held(tmp_path / "a" / "seed-0.json"):
            pytest.fail("nothing is begun")
    assert 1 < len(made) < 100


@pytest.mark.parametrize("name", ["file/a", "readonly/a", "x" * 250])
def test_a_folder_that_cannot_be_written_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "readonly").mkdir(mode=0o500)
    if name == "readonly/a" and os.access(tmp_path / "readonly", os.W_OK):
        pytest.skip("root may write anywhere")
    place = tmp_path / name / "seed-0.json" if "/" in name else tmp_path / f"seed-{name}.json"
    with pytest.raises(UserError) as caught, held(place):
        pytest.fail("nothing is begun")
    line = str(caught.value)
    assert line.startswith(str(tmp_path))
    assert "choose another folder with --out" in line
    assert "\n" not in line
