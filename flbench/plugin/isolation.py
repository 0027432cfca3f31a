"""Strangers: whoever's code runs, the world is afterwards what it was before.

A plugin runs in everybody's process. What would change other people's numbers, files or messages is
looked at before and after it, and put back with one line that names it. `docs/strangers.md` says
what that is, and what nobody watches. Nothing heavy is imported here.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from flbench.errors import DEBUG
from flbench.plugin.process_state import ABSENT, EVERYTHING, GlobalSetting

Say = Callable[[str], None]


Moment = list[tuple[GlobalSetting, Any]]


def to_stderr(line: str) -> None:
    """Say something before there is a run that could."""
    print(f"flbench: {line}", file=sys.stderr)


def snapshot(things: Sequence[GlobalSetting] = EVERYTHING) -> Moment:
    """The world as it is: every thing with its value, if somebody imported it."""
    return [(thing, thing.now()) for thing in things]


def restore(before: Moment) -> Iterator[tuple[str, str]]:
    """Put back whatever is not as it was; name of each such thing, and what became of it."""
    for thing, old in before:
        new = thing.now()
        if old is ABSENT and new is not ABSENT and thing.first is not None:
            old = thing.first()
        if old is not ABSENT and new is not ABSENT and not thing.same(old, new):
            thing.write(old)
            yield thing.name, thing.told(old, new)


class StdoutCapture(io.TextIOBase):
    """Stands in for standard output: every line is said, as somebody's.

    Whoever keeps it for longer writes to the real one.
    """

    encoding = "utf-8"

    def __init__(self, name: str, say: Say) -> None:
        self._name, self._say = name, say
        self._line = ""
        self._real: TextIO | None = None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Be standard output within the block."""
        real = sys.stdout
        if isinstance(real, StdoutCapture):
            yield  # of a plugin that is part of another
            return
        self._real, sys.stdout = real, self
        try:
            yield
        finally:
            self.flush()
            self._real, sys.stdout = None, real

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else the real one has
        return getattr(self._out(), name)

    def _out(self) -> TextIO:
        real = self.__dict__.get("_real") or sys.__stdout__
        assert real is not None, "a program without standard output"
        return real

    def fileno(self) -> int:
        """The real one's, for programs that it starts."""
        return self._out().fileno()

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, text: str) -> int:
        """Say what makes whole lines."""
        if self._real is None:
            return self._out().write(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._tell(line)
        return len(text)

    def flush(self) -> None:
        """Say what is left of a line."""
        line, self._line = self._line, ""
        self._tell(line)

    def _tell(self, line: str) -> None:
        if line.strip() and self._real is not None:
            mine, sys.stdout = sys.stdout, self._real  # whoever says it may print it
            try:
                self._say(f"{self._name}: {line.rstrip()}")
            finally:
                sys.stdout = mine


class IsolatedPlugin:
    """A stranger in this process: whatever it does, it leaves the world as it was.

    Args:
        name: what a person called it.
        say: told what it prints, and once of each thing that it changed.
    """

    def __init__(self, name: str, say: Say = to_stderr) -> None:
        self.name = name
        self._say = say
        self._home = os.getpid()
        self._told: set[str] = set()
        self._voice = StdoutCapture(name, say)

    @contextmanager
    def acting(self, who: str, quiet: Collection[str] = ()) -> Iterator[None]:
        """Let its code run in the block.

        Args:
            who: what of it runs, as in "x.setup".
            quiet: things it may change, which are put back without a word.
        """
        self.stay()
        if os.environ.get(DEBUG):
            yield
            return
        before = snapshot()
        try:
            with self._voice.heard():
                try:
                    yield
                finally:
                    self.stay()  # first of all: a child would say again what the parent says
        finally:
            self.undo(before, who, quiet)

    def stay(self) -> None:
        """End a child that it forked: only one process goes on with the run."""
        if os.getpid() != self._home:
            os._exit(0)

    def undo(self, before: Moment, who: str, quiet: Collection[str] = ()) -> None:
        """Put the world back, and say so where it has not been said."""
        for name, text in restore(before):
            if text and name not in quiet and name not in self._told:
                self._told.add(name)
                self._say(f"{who} {text}")
