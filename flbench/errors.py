"""The errors of flbench; `exit_code` is what the command returns. And warnings of files."""

from __future__ import annotations

import difflib
import errno
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path


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


class InProgress(UserError):
    """Another process computes the same run."""


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


INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that Python calls printable, and that nobody sees."""


def escaped(text: str) -> str:
    r"""A text as one line for a person: what moves the cursor or is not seen is written out.

    These are control characters (line feeds and escape sequences of terminals), characters that
    change the direction of text or take no place, and bytes of a path that are no text.

    Example:
        >>> print(escaped("a\nb \x1b[31mred \u202egnp.exe caf\u00e9"))
        a\nb \x1b[31mred \u202egnp.exe café
    """
    if text.isprintable() and not INVISIBLE.search(text):
        return text
    return "".join(
        one
        if one.isprintable() and not INVISIBLE.match(one)
        else one.encode("unicode_escape").decode()
        for one in text
    )


def in_one_line(error: BaseException) -> str:
    """Return an error's type and text as one line.

    Example:
        >>> in_one_line(KeyError("gone")), in_one_line(AssertionError())
        ("KeyError: 'gone'", 'AssertionError')

    Of a device whose memory is full, torch says more than LONGEST characters, and not what helps.
    """
    text = text_of(error)
    if DEVICE in text:
        text = DEVICE_IS_FULL
    return ": ".join(filter(None, (type(error).__name__, text)))


class MachineError(UserError):
    """What the machine refuses: a file that cannot be read or written, memory that is not there."""


REMEDIES = {
    errno.ENOSPC: "free some space, or choose another folder",
    errno.EDQUOT: "free some space, or choose another folder",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "choose a folder that can be written to",
    errno.EACCES: "choose a path for which you have the permission",
    errno.EPERM: "choose a path for which you have the permission",
    errno.ENOTDIR: "a part of the path is a file: choose another path",
    errno.EEXIST: "a file is in the place of a folder: move it away, or choose another path",
    errno.EISDIR: "a folder is in the place of a file: move it away, or choose another path",
    errno.ENOTEMPTY: "a folder is in the place of a file: move it away, or choose another path",
    errno.ENOENT: "check the path",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ELOOP: "choose a path without links that lead back",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the limit on open files (ulimit -n)",
    errno.ENOMEM: "close other programs, or choose a smaller network, data set or --bank-budget",
}
"""What a person can do, by the number of a system error."""
MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "std::bad_alloc")
"""How torch says that memory is not there."""
NO_TEMPORARY = "No usable temporary directory"
"""How Python says that there is no folder for temporary files."""
DEVICE = "CUDA out of memory"
"""How torch says it of a device's memory."""
DEVICE_IS_FULL = (
    "the device's memory is full; close other programs that use it, or choose fewer seeds at once,"
    " --executor sequential, or a smaller network or --bank-budget"
)


def number_of(error: BaseException) -> int | None:
    """The number of the system error behind an error, None where there is none.

    safetensors and torch keep its words alone.

    Example:
        >>> number_of(OSError(28, "No space left on device"))
        28
        >>> number_of(RuntimeError("I/O error: No space left on device (os error 28)"))
        28
    """
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError):
        return error.errno
    if not isinstance(error, RuntimeError) and type(error).__name__ != "SafetensorError":
        return None
    text = text_of(error)
    if any(words in text for words in MEMORY):
        return errno.ENOMEM
    return next((number for number in REMEDIES if os.strerror(number) in text), None)


def machine_error(error: BaseException, path: Path | None = None) -> MachineError | None:
    """What the machine refuses as one line with path and remedy; None where it is another error.

    Args:
        path: the file that is read or written; None = the one that the error names.
    """
    number = number_of(error)
    if number is None and not isinstance(error, OSError):
        return None
    if NO_TEMPORARY in text_of(error):
        return MachineError(
            "no folder for temporary files can be written to: set TMPDIR to one that can"
        )
    if number == errno.ENOMEM and DEVICE in text_of(error):
        return MachineError(DEVICE_IS_FULL)
    name = str(path or getattr(error, "filename", None) or "")
    said = os.strerror(number) if number else text_of(error)
    remedy = REMEDIES.get(number or 0, "")
    return MachineError(f"{f'{name}: ' if name else ''}{said}{f'; {remedy}' if remedy else ''}")


def is_interruption(error: BaseException) -> bool:
    """Whether Ctrl-C was pressed in C code that made another error of it."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:  # an error may be its own cause
        chain.append(cause)
        cause = cause.__cause__
    return any(isinstance(one, KeyboardInterrupt) for one in chain)


@contextmanager
def naming(path: Path | None = None) -> Iterator[None]:
    """A block that reads or writes a file: what the machine refuses there is a MachineError."""
    try:
        yield
    except FlbenchError:
        raise
    except Exception as error:
        if (found := machine_error(error, path)) is None:
            raise
        raise found from error


def field_of(place: Sequence[int | str], table: object) -> str:
    """The dotted name of a field of a table or list, without the types that pydantic puts in.

    Example:
        >>> field_of(("up", "list", 1), {"up": [1, -3]}), field_of(("up", "number"), {"up": 0})
        ('up.1', 'up')
    """
    parts: list[str] = []
    for at, part in enumerate(place, 1):
        if isinstance(table, dict):
            is_type = part in table.values() or any(one in table for one in place[at : at + 1])
            if part not in table and is_type:
                continue
            table = table.get(part)
        elif isinstance(table, list | tuple):
            if not isinstance(part, int):
                continue
            table = table[part] if part < len(table) else None
        else:
            break
        parts.append(str(part))
    return ".".join(parts)


@cache
def warn_once(text: str) -> None:
    """Warn of files that are read, once in a process: a run may read them several times."""
    logging.getLogger("flbench").warning("%s", text)
