"""Result files: where they lie, how they are written whole, and read, older versions too.

A file is written to a temporary name and then moved into place, so it is never half there.
Reading results imports no torch.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flbench.errors import UserError
from flbench.results import SCHEMA, Result, Skip


def skip_path(result: Path) -> Path:
    """Where the reason is kept why there is no result."""
    return result.with_name("skipped.json")


def read_skips(folder: Path) -> Iterator[Skip]:
    """All reasons below a folder, in path order."""
    for path in sorted(folder.rglob("skipped.json")):
        try:
            yield Skip.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValidationError, ValueError) as error:
            raise UserError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None


def result_path(
    out: Path, suite: str, dataset: str, method: str, fingerprint: str, seed: int
) -> Path:
    """`<out>/<suite>/<dataset>/<method>/<fingerprint8>/seed-<n>.json`; the data set as a folder."""
    folder = re.sub(r"[^\w.,+-]+", "-", dataset).strip("-.")
    return out / suite / folder / method / fingerprint / f"seed-{seed}.json"


def checkpoint_path(result: Path) -> Path:
    """Where the checkpoint of a result file lies."""
    return result.with_suffix(".checkpoint.safetensors")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then move it into place."""
    in_place(path, lambda temporary: temporary.write_bytes(data))


def in_place(path: Path, write: Callable[[Path], object]) -> None:
    """Let a file be written under a temporary name, then move it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(Path(temporary))
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_result(path: Path) -> Result:
    """Read and validate a result file.

    Raises:
        UserError: it is no result file of a version this flbench knows.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a result file: {error}") from None
    version = table.get("schema_version") if isinstance(table, dict) else None
    if isinstance(version, int) and version > SCHEMA:
        raise UserError(
            f"{path}: schema version {version}, expected at most {SCHEMA}; upgrade flbench"
        )
    try:
        return Result.model_validate(upgraded(table) if version == 1 else table)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        raise UserError(f"{path}: no result file: '{field}': {problem['msg'].lower()}") from None


def upgraded(table: dict[str, Any]) -> dict[str, Any]:
    """A table of version 1 as one of version 2, which only adds to it."""
    return {**table, "schema_version": SCHEMA}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def read_results(folder: Path) -> Iterator[tuple[Path, Result]]:
    """All result files below a folder, in path order."""
    for path in sorted(folder.rglob("seed-*.json")):
        yield path, read_result(path)
