"""A process that has imported all that a run needs, and forks one for each command.

It reads requests from standard input, one line of JSON each, and answers with two lines: the
process, and how it ended. A forked process to which something happens runs the command as `flbench`
would, to the end of the interpreter.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Lock
from types import SimpleNamespace
from typing import Any

from power_cut import Disk

from flbench.engine.processes import own_process as own_process  # before all that it defers

# isort: split
from flbench.cli.main import main
from flbench.core.state import Stage
from flbench.engine import sequential
from flbench.federation.loading import load_dataset
from flbench.run import checkpoint, checkpoint_file, rounds, runner, setup
from flbench.sweeps import launchers

# isort: split
from lightning.fabric.strategies.launchers import subprocess_script

IMPORTED = runner, launchers
"""What a run needs beside; all of it is there before the first fork."""


def served() -> dict[str, Any]:
    """Fork for each request; returns in the forked process, with the request."""
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        process = os.fork()
        if not process:
            return asked
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    raise SystemExit


def prepare(asked: dict[str, Any]) -> None:
    """Become what was asked for: folder, files for output, signals, arguments, the fault."""
    os.setpgrp()
    os.chdir(asked["folder"])
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(f"{asked['notes']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["FLBENCH_FAULT"] = asked["notes"]
    sys.argv = asked["arguments"]
    checkpoint.pause = lambda writing: asked["share"] * writing
    subprocess_script.subprocess = SimpleNamespace(Popen=Forked)
    write_notes(Path(asked["notes"]))
    if asked["fault"]:
        arm(asked["fault"], Path(asked["folder"]))


class Forked:
    """Another process of a run, forked where Lightning would start an interpreter; as `Popen`."""

    def __init__(self, command: list[str], env: dict[str, str], **given: object) -> None:
        self.returncode: int | None = None
        self.asked = Lock()  # two threads ask
        self.pid = os.fork()
        if not self.pid:
            os.environ.clear()
            os.environ.update(env)
            try:
                main()
            except SystemExit as ended:
                os._exit(int(ended.code or 0))
            os._exit(1)

    def poll(self) -> int | None:
        """Its exit code; None = it has not ended."""
        with self.asked:
            if self.returncode is None:
                process, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if process else None
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        end = time.monotonic() + (timeout or 1e9)
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0)
            time.sleep(0.01)
        return code

    def terminate(self) -> None:
        """Ask it to end."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)


def write_notes(file: Path) -> None:
    """Note which rounds were finished, written and loaded, when that is done."""
    written, loaded = checkpoint.write_file, setup.load_checkpoint
    evaluated = rounds.evaluate_round

    def note(what: str, path: Path, round_: int) -> None:
        with file.open("a") as opened:
            opened.write(json.dumps([what, str(path.resolve()), round_]) + "\n")

    def write_file(path: Path, tensors: Any, content: str) -> None:
        written(path, tensors, content)
        note("written", path, json.loads(content)["round"])

    def load_checkpoint(path: Path, *given: Any, **named: Any) -> Any:
        found = loaded(path, *given, **named)
        note("loaded", path, found.state.round)
        return found

    def evaluate_round(run: Any, state: Any, losses: Any) -> Any:
        record = evaluated(run, state, losses)
        if run.checkpoint is not None:
            note("finished", run.checkpoint, state.round)
        return record

    checkpoint.write_file, setup.load_checkpoint = write_file, load_checkpoint
    rounds.evaluate_round = evaluate_round


def arm(fault: dict[str, Any], folder: Path) -> None:
    """Let the fault happen: after a time, at a file operation, or in a stage."""
    if fault["at"] == "outside":
        return  # a signal comes
    chance = Random(fault["number"])
    disk = Disk(folder)
    if fault["signal"] in ("cut", "lenient cut"):
        disk.listen()

    def strike() -> None:
        if fault["signal"] in ("cut", "lenient cut"):
            disk.cut(chance if fault["signal"] == "lenient cut" else None)
            os.kill(os.getpid(), signal.SIGKILL)
        names = {"kill": "SIGKILL", "term": "SIGTERM"}
        number = getattr(signal, names.get(fault["signal"], "SIGINT"))
        os.kill(os.getpid(), number)
        if fault["signal"] == "int twice":
            os.kill(os.getpid(), number)

    if fault["at"] == "time":
        signal.signal(signal.SIGPROF, lambda *_: strike())
        signal.setitimer(signal.ITIMER_PROF, max(1e-3, fault["when"]))
        return
    left = [int(fault["when"])]

    def counted(call: Callable[..., Any], torn: bool = False) -> Callable[..., Any]:
        def operation(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                if torn:  # half of it was written
                    call(*given, **named)
                    path = next(one for one in given if isinstance(one, (str, Path)))
                    os.truncate(path, chance.randrange(1 + os.stat(path).st_size))
                strike()
            return call(*given, **named)

        return operation

    if fault["at"] == "file":
        os.fsync, os.replace = counted(os.fsync), counted(os.replace)
        os.unlink, os.open = counted(os.unlink), counted(os.open)
        checkpoint_file.save_file = counted(checkpoint_file.save_file, torn=True)
        Path.write_bytes = counted(Path.write_bytes, torn=True)
    else:
        train = sequential.Sequential._train

        def trained(self: Any, *given: Any) -> Any:
            if any(isinstance(one, Stage) and one.kind == fault["at"] for one in given):
                left[0] -= 1
                if left[0] == 0:
                    strike()
            return train(self, *given)

        sequential.Sequential._train = trained


if __name__ == "__main__":
    load_dataset("digits", Path())
    gc.freeze()  # so that forked processes share the memory
    request = served()
    prepare(request)
    try:
        main()
    except SystemExit as ended:
        if request["fault"]:
            raise  # to the end of the interpreter, where signals come too
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(ended.code or 0))
    os._exit(0)
