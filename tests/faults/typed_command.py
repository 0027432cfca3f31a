"""Type a command in this process, and see what a person would: exit code, output, a traceback."""

from __future__ import annotations

import atexit
import io
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from fault_record import Fault

LONG = 20
"""Seconds that a command may take."""
MARK = "<x-evil>"
"""Markup in hostile texts: no page may hold it as it is."""


class TooLong(BaseException):
    """A command takes longer than it may."""


@dataclass(frozen=True)
class Done:
    """What came of a command.

    Attributes:
        code: exit code; None = it ended with a traceback, or took too long.
        wrong: what should not have happened; "" = nothing.
    """

    code: int | None
    output: str
    errors: str
    wrong: str = ""

    def fault(self, name: str, kind: str) -> Fault:
        """As an entry of the ledger."""
        lines = [line for line in self.errors.strip().splitlines() if line.strip()]
        outcome = "accepted" if self.code == 0 else "refused"
        message = lines[-1][:300] if lines else ""
        return Fault(name, kind, outcome, self.wrong, message=message)


@cache
def _command() -> Any:
    import typer.main

    from flbench.cli.main import app

    return typer.main.get_command(app)


def typed(*words: str, seconds: int = LONG) -> Done:
    """Type `flbench` and words, as `flbench.cli.main.main` would hear them."""
    from flbench.cli.main import exit_code

    output, errors = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(seconds)
    code, wrong = None, ""
    try:
        kept = patch("flbench.submission.replay_folder.cache", lambda: _folder() / "verify")
        with redirect_stdout(output), redirect_stderr(errors), kept:
            code = exit_code(lambda: _command().main(list(words), prog_name="flbench"))
    except TooLong:
        wrong = "too long"
        errors.write(f"\n{_place(sys.exc_info()[1])}")
    except Exception as error:
        wrong = "traceback"
        errors.write(f"\n{type(error).__name__}: {error} {_place(error)}".replace("\n", " "))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if not wrong and code and not re.search(r"(?m)^(flbench|Error|Usage): ", errors.getvalue()):
        wrong = "no reason"
    return Done(code, output.getvalue(), errors.getvalue(), wrong)


@cache
def _folder() -> Path:
    """In place of the user's cache, in which `verify` keeps what it played."""
    made = tempfile.TemporaryDirectory(prefix="flbench-tests-")
    atexit.register(made.cleanup)
    return Path(made.name)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong


def _place(error: BaseException | None) -> str:
    """Where in flbench an error comes from."""
    frames = traceback.extract_tb(error.__traceback__ if error else None)
    own = [frame for frame in frames if "/flbench/" in frame.filename]
    return " < ".join(f"{Path(one.filename).name}:{one.lineno}" for one in reversed(own[-4:]))


def files_below(folder: Path) -> set[Path]:
    """Every path below a folder."""
    return set(folder.rglob("*"))


def markup_in(pages: Sequence[Path]) -> bool:
    """Whether a page holds the markup of a hostile text as it is."""
    return any(MARK in page.read_text(encoding="utf-8", errors="replace") for page in pages)
