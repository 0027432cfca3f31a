"""The errors flbench raises, and the one way to say "unknown name".

FlbenchError
├── UserError          the person can mend it: one line, exit code 1
│   ├── UnknownName    no such method, suite, data set, ...
│   ├── BadParameter   a `--set` value, a suite field, a method parameter
│   ├── MissingData    a data set's files are not where they should be
│   ├── PluginError    a plugin raised, or answered a hook with the wrong thing
│   └── Undefined      a method asked to run where it has no meaning: skipped, with the reason
├── Diverged           a client's parameters left the finite numbers: exit code 3
├── ProcessDied        one of several processes is gone; a checkpoint is on disk: exit code 4
└── Interrupted        the person stopped the run; a checkpoint is on disk: exit code 130
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FlbenchError(Exception):
    """Root of everything flbench raises on purpose."""

    exit_code = 1


class UserError(FlbenchError):
    """Something the person can mend; its text is one line: expected, came, what to type."""


class UnknownName(UserError):
    """A name that no installed package offers, or that is declared nowhere."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], listed: str = "installed"
    ) -> None:
        known = sorted(known)
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        names = ", ".join(known) or "none"
        super().__init__(f"unknown {kind} '{name}'{hint} ({listed}: {names})")


class BadParameter(UserError):
    """A value that does not fit the field it was given for."""


class MissingData(UserError):
    """A data set's files are not under the data root."""


class PluginError(UserError):
    """A plugin raised, or answered a hook with something the hook cannot mean."""


class Undefined(UserError):
    """A method is not defined here: FLIS without server data, SCAFFOLD with Adam.

    Raised by a method in `setup`, or as soon as it can know. Of several runs the others go on, and
    the reason is kept where the result would lie.
    """


class Diverged(FlbenchError):
    """Local training produced parameters that are not finite."""

    exit_code = 3


class ProcessDied(FlbenchError):
    """Another process of the run is gone; what the last whole round left lies on disk."""

    exit_code = 4


class Interrupted(FlbenchError):
    """The run was stopped by the person; its checkpoint lies on disk."""

    exit_code = 130


DEBUG = "FLBENCH_DEBUG"
"""Environment variable: where it is set, errors are shown with their traceback."""


LONGEST = 500
"""Characters of an error that are told."""


def text_of(error: BaseException) -> str:
    r"""An error's text as one line, cut where nobody would read on.

    Example:
        >>> text_of(ValueError("expected\n  a number"))
        'expected a number'
    """
    try:
        text = " ".join(str(error).split())
    except Exception:  # its own __str__ is broken
        return ""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def in_one_line(error: BaseException) -> str:
    """An error's type and text, whatever it says.

    Example:
        >>> in_one_line(KeyError("gone")), in_one_line(AssertionError())
        ("KeyError: 'gone'", 'AssertionError')
    """
    return ": ".join(filter(None, (type(error).__name__, text_of(error))))
