"""Many result files are run again side by side: the same answers, and no process is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import forked
import pytest
from grids import GRID, alive, results
from mentions import mentioning, mentions
from toy import Typed

from flbench.results.audits import Audit, read_audits
from flbench.results.events import RoundRecord, RunInfo
from flbench.results.files import read_result, write_atomically
from flbench.submission import many_files
from flbench.submission.auditing import AuditTask, Checked
from flbench.submission.many_files import play_apart
from flbench.submission.replay_folder import own_log
from flbench.terminal.console import Console


def answers(log: Path) -> list[tuple[object, ...]]:
    """What a log says, but for times."""
    found = [one.model_dump(exclude={"seconds", "date"}) for one in read_audits(log)]
    return sorted(tuple(sorted(one.items(), key=str)) for one in found)


@pytest.mark.slow
@pytest.mark.long
def test_several_at_once_are_answered_like_one_by_one(typed: Typed, tmp_path: Path) -> None:
    assert typed("sweep", *GRID)[0] == 0
    first, second, other, _ = results(tmp_path)
    fedavg, alone = read_result(first), read_result(other)
    marks = {"method": fedavg.method, "fingerprint": fedavg.fingerprint}
    write_atomically(first, alone.model_copy(update=marks).canonical().encode())
    second.write_text("{}")
    code, out, err = typed("verify", "flbench-results", "--workers", "2")
    assert (code, err.splitlines()[-1]) == (
        1, mentioning("2 of 4 files", "come"),
    )  # fmt: skip
    lines = out.splitlines()
    assert [line.partition("]")[0] for line in lines[:4]] == ["[1/4", "[2/4", "[3/4", "[4/4"]
    assert lines[4] == mentioning("2 agree", "2 of them", "1 differ", "1 cannot", "0 are left")
    assert f"  differs: {first.relative_to(tmp_path)}" in lines
    assert typed("verify", "flbench-results", "--workers", "1", "--log", "other.jsonl")[0] == 1
    assert answers(own_log()) == answers(Path("other.jsonl")) != []
    again = typed("verify", "flbench-results", "--workers", "2")[1]
    assert again.count("(known from the log)") == 3


def test_a_log_that_cannot_be_written_is_refused_before_a_run(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_files, "verify_many", lambda *_, **__: pytest.fail("it runs"))
    (tmp_path / "afile").touch()
    code, _, err = typed("verify", "one.json", "--log", "afile/log")
    assert (code, err.partition(";")[0]) == (1, mentioning("afile/log", "Not a directory"))


def test_one_whose_process_dies_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Console, "tell", lambda self, line: said.append(line))

    def process(function: object, pipe: Any, folder: str, task: AuditTask, **_: object) -> Any:
        def run() -> None:
            pipe.send(("say", f"begun {task.path}"))
            pipe.send(("peak", 2**30))
            if task.path.name == "bad":
                os._exit(3)
            pipe.send(("answer", Checked(task.path, "agrees", "", 1.0)))

        found = multiprocessing.get_context("fork").Process(target=run)
        found.start()
        return found

    monkeypatch.setattr(many_files, "fork", process)
    names = ("first", "bad", "good")
    first, bad, good = (AuditTask(Path(name), name, 1, 0.01, Path()) for name in names)
    known = Checked(Path("known"), "agrees", "", None)
    found = dict(play_apart(iter([first, bad, good, known]), 2, Console(), measured=True))
    assert found.pop(Path("known")) == known
    outcomes = {path.name: answer.outcome for path, answer in found.items()}
    assert outcomes == {"first": "agrees", "bad": None, "good": "agrees"}
    one = found[bad.path]
    assert not isinstance(one, Audit)
    assert one.how == "its process died (exit code 3)"
    begun = [line for line in said if "begun" in line]
    assert begun[0] == "  note: begun first"
    assert sorted(begun[1:]) == ["  note: begun bad", "  note: begun good"], "side by side"
    (line,) = [line for line in said if line.startswith("workers: ")]
    assert mentions(line, "workers", "2 of at most 2", "1.0 GB")


@pytest.mark.parametrize(("most", "shown"), [(1, 1), (2, 0)])
def test_the_rounds_of_a_process_of_its_own_are_shown(
    most: int, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is computed portably needs one, and can take long; of several the rounds would mix."""
    said: list[str] = []
    monkeypatch.setattr(Console, "tell", lambda self, line: said.append(line))
    info = RunInfo("fedavg", {}, "iid", "digits", 3, 20, 1, {}, "0" * 8)

    def process(function: object, pipe: Any, folder: str, task: AuditTask, **_: object) -> Any:
        def run() -> None:
            pipe.send(("run_started", info))
            for number in (1, 2):
                pipe.send(("round_finished", RoundRecord(number, 20, {"accuracy": 0.5})))
            pipe.send(("answer", Checked(task.path, "agrees", "", 1.0)))

        found = multiprocessing.get_context("fork").Process(target=run)
        found.start()
        return found

    monkeypatch.setattr(many_files, "fork", process)
    task = AuditTask(Path("one"), "one", 1, 0.01, Path())
    assert len(list(play_apart(iter([task]), most, Console(), measured=False))) == 1
    assert (
        sum(mentions(one, "fedavg", "iid", "digits", "seed 3", "20 rounds") for one in said)
        == shown
    )
    assert sum(line.startswith("  round 2/20  accuracy 0.500") for line in said) == shown


@pytest.mark.slow
@pytest.mark.long
def test_an_interrupted_command_leaves_no_process(typed: Typed, tmp_path: Path) -> None:
    long = ("-p", "fedavg", "-s", "noisy-noniid", "--seeds", "4", "--rounds", "12")
    assert typed("sweep", *long)[0] == 0
    mark = uuid.uuid4().hex
    words = ["verify", "flbench-results", "--workers", "2"]
    cache = tmp_path / "cache"
    log = cache / "flbench" / "verified.jsonl"
    command = forked.Command(words, tmp_path, FLBENCH_MARK=mark, XDG_CACHE_HOME=str(cache))
    try:
        forked.waited(log.is_file, 120)
        os.kill(command.pid, signal.SIGINT)
        code, out, err = command.finish(60)
    finally:
        command.kill()
    assert code == 130, err
    assert mentions(err, log, "played")
    assert out.splitlines()[-1].startswith("  left: ")
    forked.waited(lambda: not alive(mark), 30)
    assert typed("verify", "flbench-results")[0] == 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", "2"])
def test_seeds_in_lanes_come_out_the_same(typed: Typed, tmp_path: Path, workers: str) -> None:
    """One of them has another content; another one is of one round less."""
    words = ("-p", "fedavg,local-only", "-s", "iid", "--rounds", "3", "--seeds", "3")
    words += ("--executor", "sequential")
    assert typed("sweep", *words)[0] == 0
    files = results(tmp_path)
    assert len(files) == 6
    two, three = (read_result(path) for path in files[1:3])
    marks = {"seed": two.seed, "fingerprint": two.fingerprint}
    write_atomically(files[1], three.model_copy(update=marks).canonical().encode())
    code, out, _ = typed(
        "verify", "flbench-results", "--executor", "vectorised", "--workers", workers
    )
    assert code == 1
    assert mentions(out, "5 agree", "0 of them", "1 differ", "0 cannot", "0 are left")
    log = read_audits(own_log())
    assert {one.file: one.outcome for one in log} == {
        path.relative_to(tmp_path).as_posix(): "differs" if path == files[1] else "agrees"
        for path in files
    }
    assert {one.executor for one in log} == {"vectorised"}
