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
from toy import Typed

from flbench.results.audits import Audit, read_audits
from flbench.results.files import read_result, write_atomically
from flbench.submission import many_files
from flbench.submission.auditing import Checked, Task
from flbench.submission.many_files import play_apart
from flbench.terminal.console import Console

LOG = "flbench-verified.jsonl"


def answers(log: Path) -> list[tuple[object, ...]]:
    """What a log says, but for times."""
    found = [one.model_dump(exclude={"seconds", "date"}) for one in read_audits(log)]
    return sorted(tuple(sorted(one.items(), key=str)) for one in found)


@pytest.mark.slow
def test_several_at_once_are_answered_like_one_by_one(typed: Typed, tmp_path: Path) -> None:
    assert typed("sweep", *GRID)[0] == 0
    first, second, other, _ = results(tmp_path)
    fedavg, alone = read_result(first), read_result(other)
    marks = {"method": fedavg.method, "fingerprint": fedavg.fingerprint}
    write_atomically(first, alone.model_copy(update=marks).canonical().encode())
    second.write_text("{}")
    code, out, err = typed("verify", "flbench-results", "--workers", "2")
    assert (code, err.splitlines()[-1]) == (
        1, "flbench: 2 of 4 files did not come out the same",
    )  # fmt: skip
    lines = out.splitlines()
    assert [line.partition("]")[0] for line in lines[:4]] == ["[1/4", "[2/4", "[3/4", "[4/4"]
    assert lines[4] == "2 agree, 2 of them to the last byte; 1 differ; 1 cannot be run; 0 are left"
    assert f"  differs: {first.relative_to(tmp_path)}" in lines
    assert typed("verify", "flbench-results", "--workers", "1", "--log", "other.jsonl")[0] == 1
    assert answers(Path(LOG)) == answers(Path("other.jsonl")) != []
    again = typed("verify", "flbench-results", "--workers", "2")[1]
    assert again.count("(known from the log)") == 3


def test_one_whose_process_dies_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Console, "tell", lambda self, line: said.append(line))

    def process(function: object, pipe: Any, folder: str, task: Task, **_: object) -> Any:
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
    tasks = [Task(Path(name), name, 1, 0.01, Path()) for name in ("bad", "good", "better")]
    known = Checked(Path("known"), "agrees", "", None)
    found = dict(play_apart(iter([*tasks, known]), 2, Console(), measured=True))
    assert found[known] == known
    assert {task.name: answer.outcome for task, answer in found.items() if task != known} == {
        "bad": None, "good": "agrees", "better": "agrees",
    }  # fmt: skip
    bad = found[tasks[0]]
    assert not isinstance(bad, Audit)
    assert bad.how == "its process died (exit code 3)"
    assert [line for line in said if "begun" in line] == [
        f"  note: begun {name}" for name in ("bad", "good", "better")
    ]
    (line,) = [line for line in said if line.startswith("workers: ")]
    assert line.startswith("workers: 2 of at most 2 (one takes 1.0 GB, ")


@pytest.mark.slow
def test_an_interrupted_command_leaves_no_process(typed: Typed, tmp_path: Path) -> None:
    long = ("-p", "fedavg", "-s", "noisy-noniid", "--seeds", "3", "--rounds", "40")
    assert typed("sweep", *long)[0] == 0
    mark = uuid.uuid4().hex
    words = ["verify", "flbench-results", "--workers", "2"]
    command = forked.Command(words, tmp_path, FLBENCH_MARK=mark)
    try:
        forked.waited(lambda: (tmp_path / LOG).is_file(), 120)
        os.kill(command.pid, signal.SIGINT)
        code, out, err = command.finish(60)
    finally:
        command.kill()
    assert code == 130, err
    assert f"what was played is in {LOG}: type the same again to go on" in err
    assert out.splitlines()[-1].startswith("  left: ")
    forked.waited(lambda: not alive(mark), 30)
    assert typed("verify", "flbench-results")[0] == 0
