"""Result files: where they lie, how they are written whole, and read, older versions too.

Reading results imports no torch.
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from flbench.errors import MachineError, UserError, naming
from flbench.locks import locked_folder
from flbench.results.schema import (
    DIGESTED,
    SCHEMA,
    Result,
    Skip,
    digest_of,
    first_problem,
    problem_text,
)

LONGEST = 60
"""Bytes of a name in a file's name; a file system takes 255 of all together."""
LARGEST = 16 * 2**20
"""Bytes of a file that is read; 1,000 clients that move in each of 5,000 rounds need less."""
RETRIES = 3
"""How often the writing of a result is begun again."""
WAIT = 0.5
"""Seconds before it is begun again."""
PARTIAL = re.compile(r"\..+\.[a-z0-9_]{8}\.partial")
"""Names of folders of files that are not whole yet; of files, in earlier versions."""
DIGEST = re.compile(r'(?<=\n"digest": ")[0-9a-f]{64}(?=",\n)')


def skip_path(result: Path) -> Path:
    """Where the reason is kept why there is no result."""
    return result.with_name("skipped.json")


def read_skips(folder: Path) -> Iterator[Skip]:
    """All reasons below a folder, in path order."""
    for path in files_below(folder, "skipped.json"):
        yield _read(Skip, path, "reason")


def slug(text: str) -> str:
    """A name as part of a file's name; what is too long for one ends in a hash.

    Example:
        >>> slug("rotated:digits"), slug("x" * 99)[-12:]
        ('rotated-digits', 'xxx-d0621fdd')
    """
    name = re.sub(r"[^\w.,+-]+", "-", text).strip("-.")
    if len(name.encode()) <= LONGEST:
        return name
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name.encode()[: LONGEST - 9].decode(errors='ignore')}-{mark}"


def result_path(
    out: Path, suite: str, dataset: str, method: str, fingerprint: str, seed: int
) -> Path:
    """`<out>/<suite>/<dataset>/<method>/<fingerprint8>/seed-<n>.json`; the data set as a folder."""
    return plain_path(out) / suite / slug(dataset) / method / fingerprint / f"seed-{seed}.json"


def misplaced(path: Path, result: Result) -> str:
    """Which run a file holds, where its name and two folders are those of another; "" = its own."""
    place = Path(result.method.name, result.fingerprint.config, f"seed-{result.seed}.json")
    return "" if path.parts[-3:] == place.parts else place.as_posix()


def refuse_misplaced(path: Path, result: Result) -> None:
    """Refuse a file that lies in the place of another run: copied, renamed or merged by hand.

    Raises:
        UserError: it holds another method, configuration or seed than its place says.
    """
    if held := misplaced(path, result):
        raise UserError(f"{path} holds another run, {held}: move it there; --force writes over it")


def read_in_place(path: Path) -> Result:
    """Read a result file that lies where runs write it.

    Raises:
        UserError: it is none, or holds another run than its place says.
    """
    result = read_result(path)
    refuse_misplaced(path, result)
    return result


def checkpoint_path(result: Path) -> Path:
    """Where the checkpoint of a result file lies."""
    return result.with_suffix(".checkpoint.safetensors")


def user_path(text: str | Path) -> Path:
    """A path that a person wrote, with `~` and `~NAME` as the home folders that they name.

    Raises:
        UserError: there is no such user, or nothing says where the home folder is.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        name = Path(text).parts[0]
        whose = "HOME is not set" if name == "~" else f"there is no user '{name[1:]}'"
        raise UserError(
            f"{text}: nothing says which folder {name} is ({whose}): write the whole path"
        ) from None


def real_path(path: Path) -> Path:
    """The whole path without links; one that leads back to itself is left, and cannot be opened."""
    return Path(os.path.realpath(path))


def plain_path(path: Path) -> Path:
    """The path without `NAME/..`, for which the folder NAME need not be there; links stay.

    Example:
        >>> str(plain_path(Path("a/../b"))), str(plain_path(Path("../b")))
        ('b', '../b')
    """
    kept = Path()
    for part in path.parts:
        leads_up = part == ".." and kept.name not in ("", "..") and not kept.is_symlink()
        kept = kept.parent if leads_up else kept / part
    return kept


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then move it into place."""
    atomic_write(path, lambda temporary: temporary.write_bytes(data))


def atomic_write(path: Path, write: Callable[[Path], object], former: Path | None = None) -> None:
    """Let a file be written under a temporary name, then move it into place.

    After a power cut the file is there too: it and the names in its folder are on the disk before
    this returns.

    Args:
        former: where the file that is there is moved to; None = it is replaced.

    Raises:
        MachineError: it cannot be written; names the path and what can be done.
    """
    with naming(path):
        make_folder(path.parent)
        remove_partial_files(str(path.parent.absolute()))
        with locked_folder(path.parent, f".{path.name}.", ".partial") as folder:
            temporary = folder / "new"  # no name by which anything looks for files
            write(temporary)
            os.chmod(temporary, 0o666 & ~umask())
            _sync(temporary)
            if former is not None and path.is_file():
                os.replace(path, former)
            os.replace(temporary, path)
            _sync(path.parent)


@lru_cache(maxsize=4096)
def remove_partial_files(folder: str) -> None:
    """Remove what killed processes left in a folder, once in each process; what is locked stays."""
    for name in filter(PARTIAL.fullmatch, os.listdir(folder)):
        left = os.path.join(folder, name)
        with suppress(OSError):  # it is locked, somebody else's, or gone
            handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left) if os.path.isdir(left) else os.unlink(left)
            finally:
                os.close(handle)


def refuse_unwritable(path: Path) -> None:
    """Refuse a file that cannot be written, before work is done for it; nothing is changed.

    Raises:
        MachineError: names the path and what can be done.
    """
    with naming(path):
        if path.exists():
            path.open("ab").close()
        else:
            there = next(one for one in path.absolute().parents if one.exists())
            tempfile.TemporaryFile(dir=there).close()


def umask() -> int:
    """The permissions that new files do not get."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def save_result(path: Path, result: Result) -> None:
    """Write a result; if that fails several times, write it elsewhere, or else print it.

    Raises:
        MachineError: it is not at its place; names where it is instead.
    """
    text = result.canonical()
    for last in (*[False] * RETRIES, True):
        try:
            write_atomically(path, text.encode())
        except MachineError as error:
            if last:
                raise MachineError(f"{error}; {_rescued(path, text)}") from error
            time.sleep(WAIT)
        else:
            break
    if len(text) > LARGEST:
        raise UserError(
            f"{path} is written, but has {len(text):,} bytes, and flbench reads at most"
            f" {LARGEST:,}: let the method note less (ctx.note)"
        )


def _rescued(path: Path, text: str) -> str:
    """Write a result where it can be saved, or print it; where it is, in words."""
    name = f"flbench-{slug('-'.join(path.parts[-5:-1]))}-{path.name}"
    for find in (os.getcwd, tempfile.gettempdir):
        with suppress(MachineError, OSError):  # the folder may not be there either
            path = Path(find(), name)
            write_atomically(path, text.encode())
            return f"the result is saved as {path}: move it there"
    sys.stdout.write(text)
    return "the result is on standard output: keep it as that file"


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and those above it; returns those that were not there, the deepest first."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        _sync(one.parent)
    return missing


def _sync(path: Path) -> None:
    """Have a file, or the names in a folder, written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some file systems cannot sync folders
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def read_result(path: Path) -> Result:
    """Read and validate a result file.

    Raises:
        UserError: it is no result file of a version this flbench knows, or was damaged or edited.
    """
    return _read(Result, path, "result")


Stored = TypeVar("Stored", Result, Skip)


def _read(kind: type[Stored], path: Path, name: str) -> Stored:
    try:
        text = read_bounded(path, LARGEST).decode()
        table = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise UserError(f"{path}: cannot be read as a {name} file: too deep") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a {name} file: {error}") from None
    version = table.get("schema_version") if isinstance(table, dict) else None
    if isinstance(version, int) and version > SCHEMA:
        raise UserError(
            f"{path}: schema version {version}, expected at most {SCHEMA}; upgrade flbench"
        )
    if version == 1:  # version 2 only adds to it
        table["schema_version"] = 2
    try:
        found = kind.model_validate(table)
    except ValidationError as error:
        raise UserError(
            f"{path}: no {name} file: {problem_text(*first_problem(error, table))}"
        ) from None
    if isinstance(found, Result) and (found.is_digested or "digest" in table):
        _refuse_changed(path, text)
    return found


def read_bounded(path: Path, most: int) -> bytes:
    """The bytes of a regular file.

    Raises:
        UserError: it is none, but a folder or a pipe, which may never end; or it is too large.
        OSError: it cannot be read.
    """
    if not path.is_file() and path.exists():
        raise UserError(f"{path}: expected a file, got a {'folder' if path.is_dir() else 'pipe'}")
    with path.open("rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise UserError(f"{path}: expected at most {most:,} bytes")
    return found


def _refuse_changed(path: Path, text: str) -> None:
    """Refuse a text that is not what its digest was made of."""
    found = DIGEST.search(text)
    if found is None:
        what = f"'digest': expected in a line of its own, as version {DIGESTED} writes it"
    elif digest_of(text[: found.start()] + text[found.end() :]) != found[0]:
        what = "'digest': it is not that of the text"
    else:
        return
    raise UserError(f"{path}: {what}: the file was damaged or edited; take the one the run wrote")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def files_below(folder: Path, pattern: str) -> list[Path]:
    """The paths below a folder whose names fit a pattern, sorted; links are not followed.

    Raises:
        MachineError: a folder cannot be read, so that files would be missing.
    """
    found = []
    with naming():
        for where, folders, files in os.walk(folder, onerror=_raise):
            found += [Path(where, name) for name in fnmatch.filter([*folders, *files], pattern)]
    return sorted(found)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # no folder has no files
        raise error


def result_files(paths: Iterable[Path]) -> list[Path]:
    """The given files, and the result files below given folders in path order, each path once.

    A folder without result files is named itself.
    """
    found: dict[Path, None] = {}
    for path in paths:
        below = files_below(path, "seed-*.json") if path.is_dir() else []
        found |= dict.fromkeys(below or [path])
    return list(found)


def some_result_files(paths: Iterable[Path]) -> list[Path]:
    """The same, of folders that have some.

    Raises:
        UserError: a folder has none.
    """
    found = result_files(paths)
    if empty := [path for path in found if path.is_dir()]:
        raise UserError(f"{empty[0]}: expected a result file or a folder of them, found none")
    return found


def read_results(folder: Path) -> Iterator[tuple[Path, Result]]:
    """All result files below a folder, in path order."""
    for path in files_below(folder, "seed-*.json"):
        yield path, read_result(path)
