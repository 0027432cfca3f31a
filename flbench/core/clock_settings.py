"""ClockSettings: how fast a suite's clients are, and which of them do not answer in time."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from flbench.core.effect import not_with
from flbench.errors import BadParameter
from flbench.results.files import LARGEST, read_bounded
from flbench.results.hashed_fields import LATER

AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
EXPECTED = (
    "a positive number, a list with one per client, or a table with a `distribution`"
    " (lognormal, uniform) or a `trace`"
)


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lognormal(_Frozen):
    """Numbers whose logarithms are normal: `median` times exp(`sigma` z)."""

    distribution: Literal["lognormal"]
    median: AboveZero
    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Uniform(_Frozen):
    """Numbers between `low` and `high`; their order does not matter."""

    distribution: Literal["uniform"]
    low: AboveZero
    high: AboveZero


def _kind(speed: object) -> str | None:
    """Which of the forms of `Speed` a value has."""
    if isinstance(speed, Mapping):
        return str(speed.get("distribution"))
    if isinstance(speed, (Lognormal, Uniform)):
        return speed.distribution
    return "list" if isinstance(speed, (list, tuple)) else "number"


Speed = Annotated[
    Annotated[AboveZero, Tag("number")]
    | Annotated[tuple[AboveZero, ...], Tag("list")]
    | Annotated[Lognormal, Tag("lognormal")]
    | Annotated[Uniform, Tag("uniform")],
    Discriminator(_kind, custom_error_type="speed", custom_error_message=f"expected {EXPECTED}"),
]
"""One number per client: the same for all, listed, or drawn from a distribution."""
SPEEDS = ("seconds_per_step", "up", "down")
"""Fields of this type; they are also the columns of a trace."""
LINKS = ("client_edge", "edge_cloud")
"""Speeds of the links of edge servers."""


class Stragglers(_Frozen):
    """A share of the clients that take `factor` times as long for a step, in the whole run."""

    share: float = Field(ge=0, le=1)
    factor: float = Field(ge=1, allow_inf_nan=False)

    def of(self, clients: int) -> int:
        """How many of so many clients they are."""
        return int(self.share * clients + 1e-9)


class ClockSettings(_Frozen):
    """The table `[clock]` of a suite. What is left out takes no time."""

    seconds_per_step: Speed | None = Field(
        default=None, description="seconds that a client takes for one optimiser step"
    )
    up: Speed | None = Field(default=None, description="bits per second that a client sends")
    down: Speed | None = Field(default=None, description="bits per second that a client receives")
    client_edge: Annotated[Speed | None, LATER] = Field(
        default=None,
        description="bits per second between a client and its edge server, both ways together",
    )
    edge_cloud: Annotated[Speed | None, LATER] = Field(
        default=None,
        description="bits per second between an edge server and the server, both ways together; a"
        " list has one number per edge",
    )
    dropout: float = Field(
        default=0,
        ge=0,
        lt=1,
        description="probability that a client fails in a round after it got its model",
    )
    absent: float = Field(
        default=0, ge=0, lt=1, description="probability that a client cannot be called in a round"
    )
    stragglers: Annotated[Stragglers | None, not_with("seconds_per_step", None)] = Field(
        default=None,
        description="a share of the clients that are slower than drawn, and by what factor:"
        " `{ share = 0.1, factor = 5 }`",
    )
    deadline: Annotated[AboveZero | None, not_with((*SPEEDS, *LINKS), None)] = Field(
        default=None, description="seconds after which the uploads of a stage are not used"
    )


def drawn(speed: Speed | None, generator: np.random.Generator, names: int) -> npt.NDArray[Any]:
    """One number for each name of a client, shape (names,), float64; infinite for None.

    Raises:
        BadParameter: a list is too short.
    """
    match speed:
        case None:
            return np.full(names, np.inf)
        case Lognormal():
            return speed.median * np.exp(speed.sigma * generator.standard_normal(names))
        case Uniform():
            low, high = sorted((speed.low, speed.high))
            return low + (high - low) * generator.random(names)
        case tuple():
            if len(speed) < names:
                raise BadParameter(f"expected {names} numbers, one per client, got {len(speed)}")
            return np.array(speed[:names])
    return np.full(names, float(speed))


def with_traces(clock: object, folder: Path) -> object:
    """The table `[clock]` with the numbers of its traces in place of their files.

    So the numbers are part of the suite's fingerprint and of every result.

    Args:
        folder: the files' names are relative to it.

    Raises:
        BadParameter: a file cannot be read.
    """
    if not isinstance(clock, Mapping):
        return clock
    table = dict(clock)
    for name in (*SPEEDS, "client_edge"):
        speed = table.get(name)
        if isinstance(speed, Mapping) and speed.keys() == {"trace"}:
            table[name] = read_trace(folder / str(speed["trace"]), name)
    return table


def read_trace(path: Path, column: str) -> list[float]:
    """A column of a CSV file that has one row per client: the column `client` has 0, 1, 2, ...

    Raises:
        BadParameter: the file is not there, or is another one.
    """
    try:
        lines = read_bounded(path, LARGEST).decode("utf-8-sig").splitlines()
        table = csv.DictReader(lines)
        pairs = [(int(row["client"]), float(row[column])) for row in table]
        names = table.fieldnames or ()
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        expected = f"expected CSV with the columns client and {column}"
        raise BadParameter(f"{path}: {expected}, one row per client ({error!r})") from None
    if len(rows := dict(pairs)) < len(pairs):
        ((client, _),) = Counter(one for one, _ in pairs).most_common(1)
        raise BadParameter(f"{path}: expected one row per client, client {client} has several")
    if again := [one for one, columns in Counter(names).items() if columns > 1]:
        raise BadParameter(f"{path}: two columns are called '{again[0]}': rename one of them")
    missing = next((client for client in range(len(rows)) if client not in rows), None)
    if missing is not None or not rows:
        raise BadParameter(f"{path}: expected one row per client, client {missing or 0} has none")
    return [rows[client] for client in range(len(rows))]
