"""Result files: where they lie, how they are written whole, and read, older versions too.

Reading results imports no torch.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from flbench.errors import UserError
from flbench.results.schema import SCHEMA, Result, Skip, first_problem, problem_text

LONGEST = 60
"""Bytes of a name in a file's name; a file system takes 255 of all together."""


def skip_path(result: Path) -> Path:
    """Where the reason is kept why there is no result."""
    return result.with_name("skipped.json")


def read_skips(folder: Path) -> Iterator[Skip]:
    """All reasons below a folder, in path order."""
    for path in sorted(folder.rglob("skipped.json")):
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
    return out / suite / slug(dataset) / method / fingerprint / f"seed-{seed}.json"


def checkpoint_path(result: Path) -> Path:
    """Where the checkpoint of a result file lies."""
    return result.with_suffix(".checkpoint.safetensors")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then move it into place."""
    atomic_write(path, lambda temporary: temporary.write_bytes(data))


def atomic_write(path: Path, write: Callable[[Path], object], former: Path | None = None) -> None:
    """Let a file be written under a temporary name, then move it into place.

    After a power cut the file is there too: it and the names in its folder are on the disk before
    this returns.

    Args:
        former: where the file that is there is moved to; None = it is replaced.
    """
    make_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(Path(temporary))
        os.chmod(temporary, 0o644)
        _sync(Path(temporary))
        if former is not None and path.is_file():
            os.replace(path, former)
        os.replace(temporary, path)
        _sync(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


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
        UserError: it is no result file of a version this flbench knows.
    """
    return _read(Result, path, "result")


Kind = TypeVar("Kind", Result, Skip)


def _read(kind: type[Kind], path: Path, name: str) -> Kind:
    try:
        table = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
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
        table["schema_version"] = SCHEMA
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise UserError(
            f"{path}: no {name} file: {problem_text(*first_problem(error, table))}"
        ) from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def result_files(paths: Iterable[Path]) -> list[Path]:
    """The given files, and the result files below given folders in path order, each path once.

    A folder without result files is named itself.
    """
    found: dict[Path, None] = {}
    for path in paths:
        below = sorted(path.rglob("seed-*.json")) if path.is_dir() else []
        found |= dict.fromkeys(below or [path])
    return list(found)


def read_results(folder: Path) -> Iterator[tuple[Path, Result]]:
    """All result files below a folder, in path order."""
    for path in sorted(folder.rglob("seed-*.json")):
        yield path, read_result(path)
