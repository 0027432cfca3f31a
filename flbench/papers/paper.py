"""Paper cards: what a paper prints, and how its tables are run here. One TOML file is one paper.

The numbers themselves stand in the suites (`[printed.*]`); a card says which of them make a table,
at which scales it can be run, what counts as reproduced, and what is odd in the paper.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flbench.errors import BadParameter, UnknownName
from flbench.plugin.registry import find, load_entry
from flbench.suite import load_suite

SCALES = ("small", "paper")


class Scale(BaseModel):
    """How the cells of a table are run.

    Attributes:
        seeds: seeds 0..seeds-1.
        preset: the methods' preset, where they have it.
        settings: `--set` values of all cells.
        on: data set -> further `--set` values. Data sets that are not named here are not run.
        needs: a setting that only the person can give -> what it is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    seeds: int = Field(default=3, ge=1)
    preset: str | None = None
    settings: dict[str, Any] = {}
    on: dict[str, dict[str, Any]]
    needs: dict[str, str] = {}


class PaperTable(BaseModel):
    """A table of a paper: every suite with every data set and method that has a printed number.

    Attributes:
        column: name in a result's summary.
        tolerance: how far from the printed number still counts as reproduced, unless the paper's
            own deviation is larger; of numbers above 1 a share, of others a difference.
        scale: name -> how it is run; see SCALES.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    caption: str
    suites: list[str] = Field(min_length=1)
    datasets: list[str] = Field(min_length=1)
    methods: list[str] = Field(min_length=1)
    column: str = "accuracy_mean"
    tolerance: float = Field(default=0.03, gt=0)
    scale: dict[str, Scale] = {}


class Claim(BaseModel):
    """A figure or sentence of the paper that a study answers to."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    where: str
    says: str
    study: str = ""
    suite: str = ""


class Paper(BaseModel):
    """A paper."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    summary: str = Field(description="one line")
    title: str
    authors: str
    venue: str
    link: str
    tables: dict[str, PaperTable] = {}
    claims: list[Claim] = []
    anomalies: list[str] = []

    def table(self, name: str) -> PaperTable:
        """A table by its number.

        Raises:
            UnknownName: the card has no such table.
        """
        if name not in self.tables:
            raise UnknownName(f"table of '{self.name}'", name, self.tables, listed="there are")
        return self.tables[name]


@dataclass(frozen=True)
class PublishedValue:
    """A number of a paper's table.

    Attributes:
        method: as the paper's row, "fedc2i (gamma=2)"; see `plugin_of`.
        std: its deviation, None where none is printed.
    """

    suite: str
    dataset: str
    method: str
    value: float
    std: float | None


def load_card(name: str) -> Paper:
    """A card by the name of its paper, or by the path of a TOML file.

    Raises:
        UnknownName: nobody offers such a card.
        BadParameter: it cannot be read.
    """
    path = Path(name) if name.endswith(".toml") else Path(load_entry(find("papers", name)))
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return Paper.model_validate({"name": path.stem, **table})
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise BadParameter(f"paper '{name}': '{place}': {problem['msg'].lower()}") from None
    except (OSError, ValueError) as error:
        raise BadParameter(f"paper '{name}': cannot read {path}: {error}") from None


def numbers(grid: PaperTable) -> Iterator[PublishedValue]:
    """What the paper prints, suite by suite, data set by data set, in the card's order."""
    for suite, dataset in product(grid.suites, grid.datasets):
        printed: Mapping[str, Mapping[str, float]] = load_suite(suite, dataset).printed.get(
            dataset, {}
        )
        for method in grid.methods:
            known = printed.get(method, {})
            if grid.column in known:
                std = known.get("accuracy_std") if grid.column == "accuracy_mean" else None
                yield PublishedValue(suite, dataset, method, known[grid.column], std)


def plugin_of(method: str) -> tuple[str, dict[str, str]]:
    """The plugin of a printed row and the settings that tell it apart.

    Example:
        >>> plugin_of("fedavg"), plugin_of("fedc2i (gamma=2)")
        (('fedavg', {}), ('fedc2i', {'gamma': '2'}))
    """
    name, _, rest = method.partition(" (")
    pairs = re.findall(r"([\w.]+)=([^,)]+)", rest)
    return name, dict(pairs)
