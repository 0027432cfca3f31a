"""Papers: one TOML file says which published numbers make a table, and how it is run here.

The numbers are in the suites (`[printed.*]`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flbench.errors import BadParameter, UnknownName
from flbench.plugin.registry import find, load_entry
from flbench.results.files import read_bounded
from flbench.results.schema import first_problem, problem_text
from flbench.suite import LARGEST, load_suite

SCALES = ("small", "large", "paper")
"""`paper`: as the paper did it; `large`: its data, less of the rest; `small`: less of all."""


class Scale(BaseModel):
    """How the cells of a table are run.

    Attributes:
        seeds: seeds 0..seeds-1.
        preset: the methods' preset, where they have it.
        settings: `--set` values of all cells.
        on: data set -> further `--set` values. Other data sets are not run.
        needs: a setting that only the user can give -> what it is.
        differs: how it differs from what the paper did, in words.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    seeds: int = Field(default=3, ge=1)
    preset: str | None = None
    settings: dict[str, Any] = {}
    on: dict[str, dict[str, Any]]
    needs: dict[str, str] = {}
    differs: str = ""


class PaperTable(BaseModel):
    """A table of a paper: every suite, data set and method with a published number.

    Attributes:
        column: name in a result's summary.
        tolerance: largest difference from the published number that counts as reproduced, unless
            the paper's own deviation is larger; relative for numbers above 1, else absolute.
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
    """A figure or sentence of the paper that a study or suites test."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    where: str
    says: str
    study: str = ""
    suites: list[str] = []


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
            UnknownName: the paper has no such table.
        """
        if name not in self.tables:
            raise UnknownName(f"table of '{self.name}'", name, self.tables, listed="there are")
        return self.tables[name]


@dataclass(frozen=True)
class PublishedValue:
    """A number of a paper's table, and its standard deviation if one is published.

    `method` is the name of the row, such as "fedc2i (gamma=2)"; see `plugin_of`.
    """

    suite: str
    dataset: str
    method: str
    value: float
    std: float | None


def load_paper(name: str) -> Paper:
    """Load a paper by its name or by the path of a TOML file.

    Raises:
        UserError: no such paper is installed, or the file cannot be read or is not valid.
    """
    path = Path(name) if name.endswith(".toml") else Path(load_entry(find("papers", name)))
    try:
        table = tomllib.loads(read_bounded(path, LARGEST).decode("utf-8-sig"))
        return Paper.model_validate({"name": path.stem, **table})
    except ValidationError as error:
        problem = problem_text(*first_problem(error, table))
        raise BadParameter(f"paper '{name}': {problem}") from None
    except (OSError, ValueError) as error:
        raise BadParameter(f"paper '{name}': cannot read {path}: {error}") from None


def numbers(table: PaperTable) -> Iterator[PublishedValue]:
    """The published values of a table, by suite and data set, in the order of the file."""
    for suite, dataset in product(table.suites, table.datasets):
        published = load_suite(suite, dataset).printed.get(dataset, {})
        for method in table.methods:
            known = published.get(method, {})
            if table.column in known:
                std = known.get("accuracy_std") if table.column == "accuracy_mean" else None
                yield PublishedValue(suite, dataset, method, known[table.column], std)


def plugin_of(method: str) -> tuple[str, dict[str, str]]:
    """The plugin and the settings of a published row.

    Example:
        >>> plugin_of("fedavg"), plugin_of("fedc2i (gamma=2)")
        (('fedavg', {}), ('fedc2i', {'gamma': '2'}))
    """
    name, _, rest = method.partition(" (")
    pairs = re.findall(r"([\w.]+)=([^,)]+)", rest)
    return name, dict(pairs)
