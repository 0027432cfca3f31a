"""Results: one canonical JSON per (suite, data set, method, parameters, seed).

Canonical means: sorted keys, one line per top-level key, no NaN, and the same bytes for the same
run but for the keys in VOLATILE. A file is written to a temporary name and then moved into place,
so it is never half there. Reading results imports no torch.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flbench.errors import UserError

SCHEMA = 1
VOLATILE = ("seconds", "environment")
"""Keys that differ between two runs of the same thing."""


@dataclass(frozen=True)
class RunInfo:
    """What a run is, told to the sinks before it begins.

    Attributes:
        method: "pfedlia" or "pfedlia+fedavgm".
        params: the method's parameters.
        suite: name of the suite.
        dataset: name of the data set.
        seed: the run's seed.
        rounds: rounds to play; `first` is the one it begins with (more than 1 after a resume).
        settings: the suite's settings.
        fingerprint: 8 hex digits of suite, method and parameters.
        groups: true group per client, or None.
    """

    method: str
    params: Mapping[str, Any]
    suite: str
    dataset: str
    seed: int
    rounds: int
    first: int
    settings: Mapping[str, Any]
    fingerprint: str
    groups: list[int] | None = None


@dataclass(frozen=True)
class RoundRecord:
    """One round in plain data, told to the sinks.

    Attributes:
        round: 1-based.
        rounds: R.
        metrics: numbers of this round; None = not measured in this round.
        labels: group label per client, if evaluated.
        notes: what methods noted, "<method>.<name>" -> value.
        warnings: what the person should know, new in this round.
    """

    round: int
    rounds: int
    metrics: Mapping[str, float | None]
    labels: list[int] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class Plugin(BaseModel):
    """One plugin of a method: where it came from, what it openly uses, what it is beside others.

    A baseline is what a personalised method must beat to be worth anything.
    """

    model_config = ConfigDict(frozen=True)
    name: str
    distribution: str
    version: str
    uses_true_groups: bool = False
    paper_leak: bool = False
    pools_data: bool = False
    baseline: bool = False


class Method(BaseModel):
    """The method of a row."""

    model_config = ConfigDict(frozen=True)
    name: str
    params: dict[str, Any]
    plugins: list[Plugin]


class Fingerprint(BaseModel):
    """What makes two rows comparable, in clear; hashes are hex.

    `config` covers suite, method and parameters (it names the folder); `suite` the suite's
    settings alone: rows of one table share it. The others belong to the seed.
    """

    model_config = ConfigDict(frozen=True)
    config: str
    suite: str
    data: str
    partition: str
    initial_weights: str
    cohorts: str


class Clients(BaseModel):
    """Per-client arrays, index = client id, at the round the summary reports."""

    model_config = ConfigDict(frozen=True)
    train: list[int]
    validation: list[int]
    test: list[int]
    correct: list[int]
    loss: list[float]
    group: list[int] | None
    bytes: list[int]


class Unseen(BaseModel):
    """Clients that joined after the last round, index = newcomer.

    `correct` is of the model they got, `correct_tuned` of the same after `epochs` local epochs.
    """

    model_config = ConfigDict(frozen=True)
    epochs: int
    train: list[int]
    test: list[int]
    correct: list[int]
    correct_tuned: list[int]
    group: list[int] | None


class Result(BaseModel):
    """Everything a run leaves behind."""

    model_config = ConfigDict(frozen=True)
    schema_version: int = Field(default=SCHEMA, ge=1)
    status: Literal["self-reported", "reproduced"] = "self-reported"
    suite: dict[str, Any]
    dataset: str
    method: Method
    seed: int
    fingerprint: Fingerprint
    summary: dict[str, float | int | None]
    curves: dict[str, list[float | None]]
    clients: Clients
    unseen: Unseen | None = None
    membership: list[dict[str, Any]]
    bytes: dict[str, dict[str, int]]
    notes: list[dict[str, Any]]
    warnings: list[str]
    seconds: dict[str, float]
    environment: dict[str, str]

    def canonical(self) -> str:
        """The file's text."""
        table = self.model_dump()  # not mode="json", which would turn NaN into null unseen
        lines = (
            f"{json.dumps(key)}: "
            + json.dumps(table[key], sort_keys=True, allow_nan=False, separators=(",", ":"))
            for key in sorted(table)
        )
        return "{\n" + ",\n".join(lines) + "\n}\n"


class Skip(BaseModel):
    """Why a method was not run on a suite: it is not defined there. Lies where results would."""

    model_config = ConfigDict(frozen=True)
    suite: dict[str, Any]
    suite_hash: str
    dataset: str
    method: Method
    reason: str

    def canonical(self) -> str:
        """The file's text."""
        return json.dumps(self.model_dump(), sort_keys=True, indent=1) + "\n"


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
        return Result.model_validate(table)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        raise UserError(f"{path}: no result file: '{field}': {problem['msg'].lower()}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def read_results(folder: Path) -> Iterator[tuple[Path, Result]]:
    """All result files below a folder, in path order."""
    for path in sorted(folder.rglob("seed-*.json")):
        yield path, read_result(path)
