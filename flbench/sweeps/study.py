"""Studies: tables that no single run gives.

A study is a grid of runs, written as TOML (`Grid`), or a measurement, written as a function
`(request, **parameters) -> rows`. Both are entry points of group `flbench.studies`; a grid's is the
path of its file. A row is plain data: what was set, and what was measured.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flbench.core.parameters import checked, parse
from flbench.engine.options import EngineOptions
from flbench.errors import BadParameter, Diverged, MissingData, Undefined, UserError
from flbench.federation.loading import load_dataset
from flbench.plugin.registry import find, load_entry
from flbench.results.files import write_atomically
from flbench.results.schema import Result
from flbench.run.composition import compose
from flbench.run.runner import execute, resolve_dataset
from flbench.run.settings import suite_overrides
from flbench.run.spec import RunSpec
from flbench.suite import load_suite

Row = dict[str, Any]


Table = list[Row]


@dataclass(frozen=True)
class Request:
    """How a study is asked for.

    Attributes:
        seeds: seeds 0..seeds-1.
        settings: `--set` values: of a grid, over all its cells; of a function, its parameters.
        dataset: another data set than the study's own, or None.
        out: folder of the result files; the table is written to `studies/<name>.json` in it.
    """

    seeds: int
    data_root: Path
    out: Path
    settings: Mapping[str, object] = field(default_factory=dict)
    dataset: str | None = None
    force: bool = False
    resume: bool = False
    threads: int = 1
    sinks: Sequence[tuple[str, object]] = ()
    say: Callable[[str], None] = field(default=lambda message: None)


class Study(BaseModel):
    """A study as data: every suite with every method and every cell."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    summary: str = Field(description="one line")
    paper: str = Field(default="", description="the figure or table it answers to")
    suites: list[str] = Field(min_length=1, description="names of suites")
    methods: list[str] = Field(min_length=1, description="names of methods")
    columns: list[str] = Field(min_length=1, description="names in a result's summary")
    settings: dict[str, Any] = Field(default={}, description="`--set` values of all cells")
    grid: dict[str, list[Any]] = Field(default={}, description="`--set` key -> its values")
    cells: list[dict[str, Any]] = Field(
        default=[{}], description="cells that are no full grid: `--set` values of each"
    )

    def points(self) -> list[dict[str, Any]]:
        """The settings of every cell: `cells` times the product of `grid`."""
        axes = [[(key, value) for value in values] for key, values in self.grid.items()]
        return [{**cell, **dict(point)} for cell in self.cells for point in product(*axes)]


def read_grid(path: Path) -> Study:
    """Read a grid's file.

    Raises:
        BadParameter: it is no TOML, or no grid.
    """
    try:
        return Study.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise BadParameter(f"study {path}: '{place}': {problem['msg']}") from None
    except (OSError, ValueError) as error:
        raise BadParameter(f"study {path}: cannot be read: {error}") from None


def run_study(name: str, request: Request) -> Table:
    """Run a study by name, or by the path of a grid's TOML; write and return its table.

    Raises:
        UnknownName: no such study.
        UserError: something the person can mend.
    """
    study = Path(name) if name.endswith(".toml") else load_entry(find("studies", name))
    target = request.out / "studies" / f"{Path(name).stem if name.endswith('.toml') else name}.json"

    def keep(rows: Table) -> None:
        text = json.dumps({"study": target.stem, "rows": rows}, indent=1, sort_keys=True)
        write_atomically(target, f"{text}\n".encode())

    torch.set_num_threads(request.threads)
    if isinstance(study, Path):
        rows = run_grid(read_grid(study), request, keep)
    else:
        rows = study(request, **checked(f"study '{name}'", study, request.settings, skip=1))
    keep(rows)
    request.say(f"wrote {target}")
    return rows


def run_grid(grid: Study, request: Request, keep: Callable[[Table], None]) -> Table:
    """Run every cell of a grid that is not complete; a row per suite, method and cell.

    A cell that diverges, is not defined, or whose data are not there is left out and said.

    Args:
        keep: given the table after every cell.

    Raises:
        UserError: no cell could be run.
    """
    load = lru_cache(maxsize=1)(load_dataset)
    rows: Table = []
    done: set[Path] = set()
    for suite, method, point in product(grid.suites, grid.methods, grid.points()):
        settings = overlaid({**grid.settings, **point}, request.settings)
        point = {key: settings[key] for key in point if key in settings}
        overrides = suite_overrides(settings, grid.methods)
        found: list[Result] = []
        for seed in range(request.seeds):
            job = RunSpec(
                suite=load_suite(suite, request.dataset, overrides),
                method=compose(method, settings),
                seed=seed,
                data_root=request.data_root,
                out=request.out,
                engine=EngineOptions(threads=request.threads),
                resume=request.resume,
                force=request.force,
                sinks=request.sinks,
                say=request.say,
            )
            if job.path in done:
                break  # what the cell sets is not this method's
            done.add(job.path)
            request.say(f"{job.title}: {told(point)}")
            try:
                job, data = resolve_dataset(job, load)
                found.append(execute(job, data))
            except (Diverged, Undefined, MissingData) as error:
                request.say(f"{job.title}: skipped, {error}")
                break
        if found:
            named = {"suite": suite, "method": method, **point}
            rows.append({**named, **measured(found, grid.columns)})
            keep(rows)
    if not rows:
        raise UserError("no cell of the study could be run")
    return rows


def overlaid(settings: Mapping[str, Any], asked: Mapping[str, object]) -> dict[str, Any]:
    """Settings of a cell, but for those asked for, under whichever of their names.

    Words are read as `--set` reads them: "none" is None.

    Example:
        >>> overlaid({"local.epochs": 5, "partition.band": "none"}, {"epochs": 1})
        {'partition.band': None, 'epochs': 1}
    """

    def same(key: str) -> bool:
        return any(key.endswith(f".{name}") or name.endswith(f".{key}") for name in asked)

    kept = {key: value for key, value in settings.items() if not same(key)}
    read = {key: parse(value) if isinstance(value, str) else value for key, value in kept.items()}
    return {**read, **asked}


def measured(results: Sequence[Result], columns: Iterable[str]) -> Row:
    """Mean over seeds of each column, and its sample standard deviation where there are several.

    Raises:
        UserError: no result has such a column.
    """
    row: Row = {"seeds": len(results)}
    for name in columns:
        known = [result.summary for result in results if name in result.summary]
        if not known:
            have = ", ".join(sorted(results[0].summary))
            raise UserError(f"column '{name}': no such number in a result's summary: {have}")
        values = [float(value) for summary in known if (value := summary[name]) is not None]
        row[name] = round(mean(values), 6) if values else None
        if len(values) > 1:
            row[f"{name}_std"] = round(stdev(values), 6)
    return row


def correlations(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> Row:
    """Linear and rank correlation, `pearson` and `spearman`; None where one side never changes."""
    from scipy.stats import pearsonr, spearmanr

    if len({*one}) < 2 or len({*other}) < 2:
        return {"pearson": None, "spearman": None}
    found = {"pearson": pearsonr(one, other), "spearman": spearmanr(one, other)}
    return {name: round(float(value.statistic), 4) for name, value in found.items()}


def told(settings: Mapping[str, Any]) -> str:
    """Settings in one line."""
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "as the suite says"
