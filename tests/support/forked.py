"""`flbench` typed in a process of its own, forked from one that has imported the libraries.

A fresh interpreter takes four seconds of CPU time until `flbench run` begins.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import flbench
from flbench.cli.main import main
from flbench.engine.processes.fork_server import BLOCKED, fork
from flbench.testing.subprocesses import PRELOADED

SCRIPT = str(Path(flbench.__file__).with_name("__main__.py"))
"""What the processes are told that they are: those that they start themselves begin with it."""


class Command:
    """The process of a command; it leads a session of its own, as one that a shell starts."""

    def __init__(self, words: Sequence[str], cwd: Path, **environ: str) -> None:
        folder = Path(tempfile.mkdtemp(dir=cwd.parent))
        self.output, self.errors = folder / "output", folder / "errors"
        given = (list(words), cwd, environ, self.output, self.errors)
        self.process = fork(type_words, *given, preloaded=PRELOADED)
        assert self.process.pid is not None
        self.pid = self.process.pid

    def ended(self) -> bool:
        return self.process.exitcode is not None

    def finish(self, seconds: float) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        self.process.join(seconds)
        code = self.process.exitcode
        assert code is not None, f"the command did not end in {seconds} s"
        return code, self.output.read_text("utf-8"), self.errors.read_text("utf-8")

    def kill(self) -> None:
        """Kill it and what it started."""
        if not self.ended():
            os.killpg(self.pid, signal.SIGKILL)
        self.process.join()


def waited(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def typed(words: Sequence[str], cwd: Path, **environ: str) -> tuple[int, str, str]:
    """Type a command and wait: exit code, standard output and standard error."""
    command = Command(words, cwd, **environ)
    try:
        return command.finish(300)
    finally:
        command.kill()


def type_words(
    words: list[str], cwd: Path, environ: Mapping[str, str], output: Path, errors: Path
) -> None:
    """Run in the new process: become the command."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored behind an &
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
    os.environ.update(environ)
    os.chdir(cwd)
    for stream, file in ((sys.stdout, output), (sys.stderr, errors)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream.fileno())
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [SCRIPT, *words]
    main()
