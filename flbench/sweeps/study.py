"""Studies: tables that no single run gives.

A study is a grid of runs, written as TOML (`Study`), or a measurement, written as a function
`(request, say, **parameters) -> rows`. Both are entry points of group `flbench.studies`; a grid's
is the path of its file. A row is plain data: what was set, and what was measured. What a study is
asked for is a `RunRequest` that names no method and no suite; its settings hold over all cells of a
grid, and are the parameters of a measurement.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product, takewhile
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flbench.core.parameters import checked
from flbench.core.setting_text import parse, written
from flbench.errors import BadParameter, Diverged, Interrupted, UserError
from flbench.plugin.registry import find, load_entry
from flbench.results.files import read_bounded, refuse_unwritable, write_atomically
from flbench.results.kept_files import KeepOptions
from flbench.results.schema import Result
from flbench.run.composition import load_method, suite_overrides
from flbench.suite import LARGEST, fingerprint
from flbench.sweeps.launchers import FAILED, Outcome, run_locally
from flbench.sweeps.request import KEPT, Cell, RunRequest, concerns, resolve
from flbench.sweeps.sweep import Launch, run_missing

if TYPE_CHECKING:
    from flbench.terminal.console import Console, SweepProgress

StudyRow = dict[str, Any]
StudyTable = list[StudyRow]


class Study(BaseModel):
    """A study as data: every suite with every method and every cell."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    summary: str = Field(description="one line")
    paper: str = Field(default="", description="the figure or table it answers to")
    suites: list[str] = Field(min_length=1, description="names of suites")
    methods: list[str] = Field(min_length=1, description="names of methods")
    columns: list[str] = Field(
        min_length=1, description="names in a result's summary, or of curves, whose end is shown"
    )
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
        return Study.model_validate(tomllib.loads(read_bounded(path, LARGEST).decode("utf-8-sig")))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise BadParameter(f"study {path}: '{place}': {problem['msg']}") from None
    except (OSError, ValueError) as error:
        raise BadParameter(f"study {path}: cannot be read: {error}") from None


def run_study(
    name: str, request: RunRequest, progress: SweepProgress, launch: Launch = run_locally
) -> StudyTable:
    """Run a study by name, or by the path of a grid's TOML; write and return its table.

    The table is written to `studies/<name>.json` in the folder of the results. With another data
    set or other settings than its own it has a hash of these in its name.

    Raises:
        UnknownName: no such study.
        UserError: something the person can mend.
        Interrupted: the person stops it.
    """
    study = Path(name) if name.endswith(".toml") else load_entry(find("studies", name))
    stem = Path(name).stem if name.endswith(".toml") else name
    asked = {"dataset": request.dataset, "settings": dict(request.settings)}
    mark = f"-{fingerprint(asked)}" if any(asked.values()) else ""
    target = request.out / "studies" / f"{stem}{mark}.json"
    is_grid = isinstance(study, Path)
    if not is_grid and (request.metrics or request.force or request.keep != KeepOptions()):
        options = ", ".join(f"--{one}" for one in KEPT.values())
        raise UserError(
            f"study '{name}' is a measurement, no grid: drop --metric, --force, {options}"
        )
    refuse_unwritable(target)

    def keep(rows: StudyTable) -> None:
        about = {**asked, "study": stem, "seeds": len(request.seeds)}
        text = json.dumps({**about, "rows": rows}, indent=1)
        write_atomically(target, f"{text}\n".encode())

    torch.set_num_threads(request.engine.threads)
    try:
        if isinstance(study, Path):
            rows = run_grid(read_grid(study), request, progress, keep, launch)
        else:
            parameters = checked(f"study '{name}'", study, request.settings, skip=2)
            rows = study(request, progress.say, **parameters)
    except KeyboardInterrupt:
        kept = "complete cells are kept" if is_grid else "nothing of a measurement is kept"
        raise Interrupted(f"interrupted; {kept}, type the same again") from None
    keep(rows)
    progress.say(f"wrote {target}")
    return rows


@dataclass(frozen=True)
class GridRow:
    """A row of a grid: one suite, one method, one point (what the grid sets), a cell per seed."""

    suite: str
    method: str
    point: StudyRow
    cells: Sequence[Cell]


def run_grid(
    study: Study,
    request: RunRequest,
    progress: SweepProgress,
    keep: Callable[[StudyTable], None],
    launch: Launch = run_locally,
) -> StudyTable:
    """Run every cell of a grid that is not complete; a row per suite, method and point.

    A row ends before the first seed that diverges, is not defined, or lacks its data. `keep` is
    given the table, in the order of the grid, when a row has become complete.

    Raises:
        UserError: a cell failed in another way, or none could be run.
    """
    rows = grid_rows(study, replace(request, resume=True), progress)
    cells = [cell for row in rows for cell in row.cells]
    known: dict[Cell, Outcome] = {}
    table: StudyTable = []

    def hear(cell: Cell, outcome: Outcome) -> None:
        known[cell] = outcome
        there = [row for row in rows if known.keys() >= set(row.cells)]
        found = [(row, results) for row in there if (results := _results(row, known))]
        if len(found) > len(table):
            table[:] = [
                {"suite": row.suite, "method": row.method, **row.point}
                | measured(results, study.columns)
                for row, results in found
            ]
            keep(table)

    outcomes = run_missing(cells, progress, launch, hear)
    broken = [
        f"{cell.title}: {one.why}"
        for cell, one in outcomes.items()
        if one.what == FAILED and one.code != Diverged.exit_code
    ]
    if broken:
        raise UserError(f"{len(broken)} of {len(cells)} cells failed; {broken[0]}")
    if not table:
        raise UserError("no cell of the study could be run")
    return table


def _results(row: GridRow, known: Mapping[Cell, Outcome]) -> list[Result]:
    """The results of a row, up to the first seed without one."""
    found = takewhile(lambda one: one is not None, (known[cell].result for cell in row.cells))
    return [one for one in found if one is not None]


def grid_rows(study: Study, request: RunRequest, console: Console) -> list[GridRow]:
    """The rows of a grid, without those that ask for what another asks for already."""
    load = cache(load_method)
    methods = [load(name) for name in study.methods]
    rows: list[GridRow] = []
    known: set[Path] = set()
    for suite, method, point in product(study.suites, study.methods, study.points()):
        settings = overlaid({**study.settings, **point}, request.settings)
        suite_overrides(settings, methods)  # a setting may be another method's, but must be one's
        own = {key: value for key, value in settings.items() if concerns(key, load(method))}
        one = replace(request, methods=(method,), suites=(suite,), settings=own)
        cells = resolve(one, console, load)
        paths = {cell.spec.path for cell in cells}
        if not paths & known:  # otherwise the point sets what is not this method's
            known |= paths
            point = {key: as_typed(own[key]) for key in point if key in own}
            noted = [replace(cell, note=shown(point)) for cell in cells]
            rows.append(GridRow(suite, method, point, noted))
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


def measured(results: Sequence[Result], columns: Iterable[str]) -> StudyRow:
    """Mean over seeds of each column, and its sample standard deviation where there are several.

    Where only some seeds have it, such as a target that was reached, `NAME_seeds` is how many.
    """
    row: StudyRow = {"seeds": len(results)}
    for name in columns:
        tables = [{**ends(result), **result.metrics()} for result in results]
        known = [table[name] for table in tables if name in table]
        if not known:
            have = ", ".join(sorted(results[0].metrics()))
            raise UserError(f"column '{name}': no such number in a result's summary: {have}")
        values = [float(value) for value in known if value is not None]
        row[name] = round(mean(values), 6) if values else None
        if len(values) > 1:
            row[f"{name}_std"] = round(stdev(values), 6)
        if 0 < len(values) < len(results):
            row[f"{name}_seeds"] = len(values)
    return row


def ends(result: Result) -> dict[str, float | None]:
    """The last value of every curve that has one."""
    return {name: curve[-1] for name, curve in result.curves.items() if curve}


def correlations(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> StudyRow:
    """Linear and rank correlation, `pearson` and `spearman`; None where one side never changes."""
    from scipy.stats import pearsonr, spearmanr

    if len({*one}) < 2 or len({*other}) < 2:
        return {"pearson": None, "spearman": None}
    found = {"pearson": pearsonr(one, other), "spearman": spearmanr(one, other)}
    return {name: round(float(value.statistic), 4) for name, value in found.items()}


def as_typed(value: Any) -> Any:  # noqa: ANN401 - plain data
    """A setting as a row has it: a list as it is typed after `--set`, other values as they are."""
    return written(value) if isinstance(value, list) else value


def shown(settings: Mapping[str, Any]) -> str:
    """Settings in one line."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())
