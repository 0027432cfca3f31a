"""One Ctrl-C ends a command in order, two at once; one that hits a callback is not lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flbench.cli.interruption import AGAIN

pytestmark = pytest.mark.slow  # starts processes

BEGIN = """
import atexit, os, signal, time, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)
from flbench.cli.interruption import heed_interruptions
heed_interruptions()
def press(): os.kill(os.getpid(), signal.SIGINT); time.sleep(0.05)
"""


def ended(code: str) -> tuple[int, str]:
    """Exit code and messages of a program."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_the_first_is_raised_and_the_second_ends_the_process_at_once() -> None:
    code, messages = ended("""
        try:
            press()
        except KeyboardInterrupt:
            os.write(2, b"saved\\n")
        press()
        os.write(2, b"never\\n")
    """)
    assert (code, messages) == (130, "saved\n" + AGAIN.decode())


def test_a_request_to_end_is_heeded_once() -> None:
    """SIGTERM: what is being saved is not interrupted by another one."""
    code, messages = ended("""
        def ask(): os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.05)
        try:
            ask()
        except KeyboardInterrupt:
            ask()
            os.write(2, b"saved\\n")
    """)
    assert (code, messages) == (0, "saved\n")


def test_a_request_ends_the_other_processes_of_a_run_at_once() -> None:
    code, messages = ended("""
        os.environ["RANK"] = "1"
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        heed_interruptions()
        os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)
    """)
    assert (code, messages) == (-signal.SIGTERM, "")


def test_only_the_first_process_of_a_run_says_so() -> None:
    code, messages = ended("""
        os.environ["RANK"] = "1"
        try:
            press()
        except KeyboardInterrupt:
            press()
    """)
    assert (code, messages) == (130, "")


def test_also_while_the_interpreter_ends() -> None:
    code, messages = ended("""
        atexit.register(press)
        try:
            press()
        except KeyboardInterrupt:
            pass
    """)
    assert (code, messages) == (130, AGAIN.decode())


def test_one_that_hits_a_callback_comes_again() -> None:
    code, messages = ended("""
        class Row: pass
        row = Row()
        weakref.finalize(row, press)
        try:
            del row
            time.sleep(5)
        except KeyboardInterrupt:
            os.write(2, b"saved\\n")
    """)
    assert (code, messages) == (0, "saved\n")


def test_one_while_modules_are_imported_ends_the_process_at_once() -> None:
    code, messages = ended("""
        from flbench.terminal.console import Console
        with Console().importing():
            try:
                press()
            except BaseException:
                os.write(2, b"never\\n")
    """)
    assert (code, messages) == (130, "flbench: interrupted\n")


def test_after_the_imports_it_is_raised_again() -> None:
    code, messages = ended("""
        from flbench.terminal.console import Console
        with Console().importing():
            pass
        try:
            press()
        except KeyboardInterrupt:
            os.write(2, b"saved\\n")
    """)
    assert (code, messages) == (0, "saved\n")


def test_where_it_is_ignored_it_stays_ignored() -> None:
    code, messages = ended("""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        heed_interruptions()
        press(); press()
        from flbench.terminal.console import Console
        with Console().importing():
            press()
        os.write(2, b"goes on\\n")
    """)
    assert (code, messages) == (0, "goes on\n")


def test_other_errors_of_callbacks_are_printed() -> None:
    code, messages = ended("""
        class Row:
            def __del__(self): 1 / 0
        Row()
    """)
    assert code == 0
    assert "ZeroDivisionError" in messages


PROGRAM = r"""
import os, signal, subprocess, sys, time
for one in (signal.SIGINT, signal.SIGTERM):  # tests may ignore them
    signal.signal(one, signal.default_int_handler)
try:
    if sys.argv[1:] != ["child"]:
        subprocess.Popen([sys.executable, "-m", "program", "child"])
    os.write(1, b"begun\n")
    time.sleep(20)
except KeyboardInterrupt:
    time.sleep(0.6)
    os.write(1, b"child\n" if sys.argv[1:] else b"program\n")  # in one piece
    sys.exit(7)
"""
COMMAND = """
import types, typer
from flbench.cli.speed import run_program
try:
    run_program("program", types.SimpleNamespace(args=[]))
except typer.Exit as error:
    print("code", error.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_a_command_runs_ends_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The signal reaches the program and its children; its exit code is that of the command."""
    (tmp_path / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "begun\n"]
    process.send_signal(number)
    said = process.communicate(timeout=60)[0].splitlines()  # at the end of the last writer
    assert sorted(said) == ["child", "code 7", "program"]
