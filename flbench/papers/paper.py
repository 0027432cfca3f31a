"""Papers: one TOML file says which published numbers make a table, and how it is run here.

The numbers are in the suites (`[printed.*]`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from flbench.errors import BadParameter, UnknownName
from flbench.metrics import HEADLINE, JUDGED, Rule, Value
from flbench.plugin.registry import find, load_entry
from flbench.results.files import read_bounded
from flbench.results.schema import first_problem, problem_text
from flbench.suite import LARGEST, load_suite
from flbench.tasks import TASKS, Task

SCALES = ("small", "large", "paper")
"""`paper`: as the paper did it; `large`: its data, less of the rest; `small`: less of all."""


Source = Literal["paper", "supplement", "script", "inferred"]
"""Where a number stands: in the paper, its supplement, the script that its authors released; or it
is inferred from what they say."""


class Stated(BaseModel):
    """One setting of the paper's protocol, and where it is stated.

    Attributes:
        what: a setting as `--set` takes it, or one of `protocol.DERIVED`.
        value: None = it is not given.
        source: None = it is not given.
        where: section, table or file; or what is said in place of a value.
        suites: those that it is about; empty = all. `datasets` likewise.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    what: str
    value: bool | int | float | str | None = None
    source: Source | None = None
    where: str = ""
    suites: list[str] = []
    datasets: list[str] = []

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if (self.value is None) != (self.source is None):
            raise PydanticCustomError("source", "both or neither expected of 'value' and 'source'")
        return self

    def about(self, suite: str, dataset: str) -> bool:
        """Whether it holds for a suite on a data set."""
        return suite in (self.suites or [suite]) and dataset in (self.datasets or [dataset])


class Scale(BaseModel):
    """How the cells of a table are run.

    Attributes:
        seeds: seeds 0..seeds-1.
        preset: the methods' preset, where they have it.
        presets: data set -> the preset that goes before it, where they have it.
        settings: `--set` values of all cells.
        on: data set -> further `--set` values. Other data sets are not run.
        needs: a setting that only the user can give -> what it is.
        left: why cells that were not run are left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    seeds: int = Field(default=3, ge=1)
    preset: str | None = None
    presets: dict[str, str] = {}
    settings: dict[str, Any] = {}
    on: dict[str, dict[str, Any]]
    needs: dict[str, str] = {}
    left: str = ""

    def preferred(self, dataset: str) -> tuple[str, ...]:
        """The presets of methods on a data set: the first that a method has is its own."""
        return tuple(name for name in (self.presets.get(dataset), self.preset) if name)


class Doubt(BaseModel):
    """Cells of a table whose published numbers are doubtful; an empty list stands for all."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    suites: list[str] = []
    datasets: list[str] = []
    methods: list[str] = []
    why: str = Field(min_length=1)

    def about(self, suite: str, dataset: str, method: str) -> bool:
        """Whether a cell is one of these."""
        pairs = (suite, self.suites), (dataset, self.datasets), (method, self.methods)
        return all(name in names for name, names in pairs if names)


class PaperTable(BaseModel):
    """A table of a paper: every suite, data set and method with a published number.

    Attributes:
        column: name of the published number in `[printed.*]`, or "one - other": of two numbers,
            what the second leaves of the first.
        ours: name of our number in a result's summary, if it is not `column`; or of two likewise.
        domains: names of the data set's domains, in its order, if the paper prints each
            (`accuracy_<domain>`).
        tolerance: largest difference from the published number that counts as reproduced, unless
            the paper's own deviation is smaller; relative for numbers above 1, else absolute.
        source: where its numbers stand.
        remark: what a reader of its numbers should know, in sentences.
        protocol: what the paper did for this table alone, beside `Paper.protocol`.
        judged: with which model the paper judges a client (`flbench.metrics.Rule`).
        scale: name -> how it is run; see SCALES.
        doubtful: cells that get no verdict.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    caption: str
    suites: list[str] = Field(min_length=1)
    datasets: list[str] = Field(min_length=1)
    methods: list[str] = Field(min_length=1)
    column: str = "accuracy_mean"
    ours: str = ""
    domains: list[str] = []
    tolerance: float = Field(default=0.03, gt=0)
    source: Source = "paper"
    remark: str = ""
    protocol: list[Stated] = []
    judged: Rule = "served"
    scale: dict[str, Scale] = {}
    doubtful: list[Doubt] = []

    def doubt(self, suite: str, dataset: str, method: str) -> str:
        """Why the number of a cell is doubtful; empty = it is not."""
        found = (one.why for one in self.doubtful if one.about(suite, dataset, method))
        return next(found, "")

    @property
    def task(self) -> Task | None:
        """The task whose headline its column is one of; None of costs and groups."""
        words = self.column.split("_")
        return next((task for task in TASKS.values() if task.headline in words), None)

    def measured(self, judged: Rule) -> str:
        """Name of our number in a summary; newcomers are judged as their column says."""
        if self.task is None or self.column != self.task.named(HEADLINE):
            return self.ours or self.column
        return self.task.named(JUDGED[judged])

    def of_domain(self, domain: str) -> PaperTable:
        """The same table of the accuracies of one domain."""
        return self.model_copy(update={"column": f"accuracy_{domain}"})


class Lead(BaseModel):
    """One method is ahead of others, in every suite and data set of a table or of a study.

    Attributes:
        table: number of the table; "" = the results are those of the claim's study.
        scale: at which the table was run.
        method: the one that is ahead.
        over: the others.
        column: what is compared, a name in a result's summary; "" = what the table compares.
        smaller: whether the smaller number is ahead.
        common: what is compared is the first round that reaches one accuracy, the highest final one
            of the others; the sooner is ahead. A method that learns little is final soon.
        suites: some of the table; empty = all. `datasets` likewise.
        by: suite -> by how much, if the paper says so.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    table: str = ""
    scale: str = "small"
    method: str
    over: list[str] = Field(min_length=1)
    column: str = ""
    smaller: bool = False
    common: bool = False
    suites: list[str] = []
    datasets: list[str] = []
    by: dict[str, float] = {}


class Drawn(BaseModel):
    """A figure of the paper, drawn from our results.

    Attributes:
        kind: accuracy against rounds; the score matrix of the last round, with a dendrogram; what a
            method noted; or, of a study's rows, two lists against each other, lists as a matrix,
            numbers as bars, or a number against another as lines.
        table: whose results are drawn, at a `scale`; "" = those of the claim's study.
        suite, dataset: some of these results; "" = all.
        methods: some of them, in this order; empty = all.
        names: of the note; or of the columns of the study's rows.
        only: column -> value of the rows that are drawn.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["curves", "scores", "note", "pairs", "matrices", "bars", "lines"]
    table: str = ""
    scale: str = "small"
    suite: str = ""
    dataset: str = ""
    methods: list[str] = []
    names: list[str] = []
    only: dict[str, str | int | float] = {}
    title: str = Field(min_length=1)


class Claim(BaseModel):
    """A figure or sentence of the paper that a study, suites or a table test."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    where: str
    says: str
    source: Source = "paper"
    study: str = ""
    suites: list[str] = []
    leads: list[Lead] = []
    drawn: list[Drawn] = []


class Paper(BaseModel):
    """A paper."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    summary: str = Field(description="one line")
    title: str
    authors: str
    venue: str
    link: str
    in_short: list[str] = Field(default=[], description="what its reader should know, in sentences")
    protocol: list[Stated] = Field(default=[], description="how the paper ran its experiments")
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

    `method` is the name of the row, such as "fedc2i (gamma=2)"; see `plugin_of`. `doubt` is why
    the number is doubtful; empty = it is not.
    """

    suite: str
    dataset: str
    method: str
    value: float
    std: float | None
    doubt: str = ""


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
            value = number_named(table.column, known)
            if value is not None:
                task = table.task
                is_mean = task is not None and table.column == task.named(HEADLINE)
                deviation = task.named("accuracy_std") if task and is_mean else ""
                std = known.get(deviation or f"{table.column}_std")
                doubt = table.doubt(suite, dataset, method)
                yield PublishedValue(suite, dataset, method, value, std, doubt)


def number_named(name: str, numbers: Mapping[str, Value]) -> Value:
    """A number by its name, or what a second one leaves of it; None = one is not known.

    Example:
        >>> number_named("seconds - link_seconds", {"seconds": 9, "link_seconds": 2})
        7
        >>> number_named("seconds - link_seconds", {"seconds": 9})
    """
    first, _, second = name.partition(" - ")
    one, other = numbers.get(first), numbers.get(second) if second else 0
    return None if one is None or other is None else one - other


def plugin_of(method: str) -> tuple[str, dict[str, str]]:
    """The plugin and the settings of a published row.

    Example:
        >>> plugin_of("fedavg"), plugin_of("fedc2i (gamma=2)")
        (('fedavg', {}), ('fedc2i', {'gamma': '2'}))
    """
    name, _, rest = method.partition(" (")
    pairs = re.findall(r"([\w.]+)=([^,)]+)", rest)
    return name, dict(pairs)
