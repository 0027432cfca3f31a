"""The folder of a run's files: held while a run is alive, freed of what killed runs left there.

A live run holds a shared lock on the folder (`flock`), which ends with its process, however that
ends. An exclusive lock therefore shows that no live run writes there. A second lock, on a file of
the run, keeps other processes from the same run. Where a file system has no such locks, nothing is
removed, and nobody is kept from anything.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flbench.errors import InProgress, UserError, naming
from flbench.results.files import checkpoint_path, make_folder
from flbench.run.checkpoint_file import discard, generations

TEMPORARY = re.compile(
    r"\.((seed-\d+|skipped)\.[\w.]+\.|bank-|flbench-)[a-z0-9_]{8}(\.partial)?|\.seed-\d+\.lock"
)
"""Names of files that a run writes before they are whole, and of the file that it locks."""


@contextmanager
def held(result: Path) -> Iterator[None]:
    """Hold a run and the folder of its result; the folder is made, tried and freed first.

    A folder that is empty in the end is removed, and those above it that were made for it.

    Raises:
        InProgress: another process computes the run.
        UserError: nothing can be written there.
    """
    try:
        descriptor, made = _opened(result)
    except OSError as error:
        raise UserError(
            f"{error.filename or result.parent}: nothing can be written here ({error.strerror});"
            " choose another folder with --out"
        ) from None
    try:
        if _alone(descriptor):
            _free(result.parent)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits while another one frees it
        with _claimed(result):
            yield
    finally:
        os.close(descriptor)
        for folder in made:
            with suppress(OSError):  # not empty
                folder.rmdir()


@contextmanager
def _claimed(result: Path) -> Iterator[None]:
    """Keep other processes from a run; the locked file says which process it is.

    Raises:
        InProgress: another one does so.
    """
    path = lock_path(result)
    with naming(path):
        descriptor = _locked(path)
    if descriptor is None:
        raise InProgress(
            f"{result}: {_whose(path)} computes this run: wait for it, or choose another folder"
            " with --out"
        )
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is locked: who opens it sees that it is gone
        os.close(descriptor)


def _locked(path: Path) -> int | None:
    """A file, locked if the file system has locks; None = another process has it locked."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # another run has failed, and removed the empty folder
            make_folder(path.parent)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:  # there are no locks
            return descriptor
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)  # of a file that was removed before it was locked


def _whose(path: Path) -> str:
    """Which process has a file locked."""
    with suppress(OSError):  # it has just ended
        return path.read_text(encoding="utf-8") or "another process"
    return "another process"


def lock_path(result: Path) -> Path:
    """The file that whoever computes a run holds locked.

    Example:
        >>> lock_path(Path("seed-0.json")).name
        '.seed-0.lock'
    """
    return result.with_name(f".{result.stem}.lock")


def in_progress(result: Path) -> bool:
    """Whether another process computes a run, as far as the file system tells."""
    try:
        descriptor = os.open(lock_path(result), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _opened(result: Path, tries: int = 5) -> tuple[int, list[Path]]:
    """The folder of a result, open, and the folders that were made for it."""
    made = make_folder(result.parent)
    try:
        _try_to_write(result)
        return os.open(result.parent, os.O_RDONLY), made
    except FileNotFoundError:  # another run has failed, and removed the empty folder
        if not tries:
            raise
    return _opened(result, tries - 1)


def tidy(folder: Path) -> None:
    """Remove what killed runs left in a folder, unless a run is alive there."""
    with suppress(OSError):  # it cannot be read, or is not there
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            if _alone(descriptor):
                _free(folder)
        finally:
            os.close(descriptor)


def begun_again(result: Path) -> bool:
    """Whether a checkpoint is younger than the result: of a run that computes it again."""
    files = [file.stat().st_mtime_ns for file in generations(checkpoint_path(result))]
    return bool(files) and max(files) > result.stat().st_mtime_ns


def _try_to_write(result: Path) -> None:
    """Write and remove a file whose name is as long as the longest of a run."""
    trial = result.with_name(f".{checkpoint_path(result).stem}.previous.safetensors.trial")
    try:
        trial.write_bytes(b"flbench")
    finally:
        trial.unlink(missing_ok=True)


def _alone(descriptor: int) -> bool:
    """Whether no live run holds the folder; if so, this process does."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _free(folder: Path) -> None:
    """Remove temporary files, and the checkpoints of results that are complete."""
    for file in sorted(folder.iterdir()):
        with suppress(OSError):  # it is somebody else's, and stays
            if TEMPORARY.fullmatch(file.name):
                shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
            elif re.fullmatch(r"seed-\d+\.json", file.name) and not begun_again(file):
                discard(checkpoint_path(file))
