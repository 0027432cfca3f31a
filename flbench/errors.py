"""The errors of flbench; `exit_code` is what the command returns."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FlbenchError(Exception):
    """Base class of all errors that flbench raises on purpose."""

    exit_code = 1


class UserError(FlbenchError):
    """An error that the user can correct; one line: what was expected, what came, what to type."""


class UnknownName(UserError):
    """A name that no installed package provides, or that is not declared."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], listed: str = "installed"
    ) -> None:
        known = sorted(known)
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        names = ", ".join(known) or "none"
        super().__init__(f"unknown {kind} '{name}'{hint} ({listed}: {names})")


class BadParameter(UserError):
    """A value that does not fit its field."""


class MissingData(UserError):
    """A data set's files are not under the data root."""


class PluginError(UserError):
    """A plugin raised an error, or returned a wrong result from a hook."""


class Undefined(UserError):
    """A method is not defined for this setting: FLIS without server data, SCAFFOLD with Adam.

    A method raises it in `setup`, or as soon as it knows. Other runs of the same command go on, and
    a file in place of the result holds the reason.
    """


class Diverged(FlbenchError):
    """Local training produced parameters that are not finite."""

    exit_code = 3


class ProcessDied(FlbenchError):
    """Another process of the run died; a checkpoint of the last complete round is on disk."""

    exit_code = 4


class Interrupted(FlbenchError):
    """The user stopped the run; its checkpoint is on disk."""

    exit_code = 130


DEBUG = "FLBENCH_DEBUG"
"""Environment variable: where it is set, errors are shown with their traceback."""
LONGEST = 500
"""Largest number of characters of an error's text."""


def text_of(error: BaseException) -> str:
    r"""Return an error's text as one line of at most LONGEST characters.

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
    """Return an error's type and text as one line.

    Example:
        >>> in_one_line(KeyError("gone")), in_one_line(AssertionError())
        ("KeyError: 'gone'", 'AssertionError')
    """
    return ": ".join(filter(None, (type(error).__name__, text_of(error))))
