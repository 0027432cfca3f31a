"""Selection: the claims of an artifact, from a table of a paper or a study, and their results."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.errors import BadParameter, UnknownName, UserError
from flbench.papers.paper import SCALES, Paper, load_paper
from flbench.papers.reproduction import findings, in_words, planned, refuse_unknown
from flbench.plugin.registry import entries, find, load_entry
from flbench.results.files import read_bounded, read_in_place
from flbench.results.schema import Result
from flbench.run.other_versions import file_of_any_version
from flbench.submission.verification import engine_of
from flbench.suite import LARGEST
from flbench.sweeps.request import Cell, RunRequest, command
from flbench.sweeps.study import grid_rows, read_grid, shown

if TYPE_CHECKING:
    from flbench.terminal.console import SweepProgress

RERUN = "rerun"
"""The folder, in an artifact, of what a reviewer runs again."""


@dataclass(frozen=True)
class AskedArtifact:
    """What an artifact is to be made of.

    Attributes:
        study: a paper or a study: its name, or the path of its TOML file.
        tables: numbers of the paper's tables; empty = all.
        scale: at which the paper's tables are run.
        seeds: seeds 0..seeds-1; None = those of the paper's scale, or those that a study has.
        request: what is common to all runs: settings, data set; `out` is the folder of results.
    """

    study: str
    tables: tuple[str, ...] = ()
    scale: str | None = None
    seeds: int | None = None
    request: RunRequest = field(default_factory=RunRequest)


@dataclass(frozen=True)
class ClaimedRun:
    """One seed of a claim.

    Attributes:
        command: what a reviewer types in the artifact's folder.
        writes: the file that it writes, below the artifact's folder.
        file: the result file that is there; None = it was not run.
        result: its content.
        suite: the file of the suite, where it is named by its path.
    """

    seed: int
    command: str
    writes: str
    file: Path | None
    result: Result | None
    suite: Path | None = None


@dataclass(frozen=True)
class TableClaim:
    """A row of a table: one method on one suite and data set, over seeds.

    Attributes:
        table: the table's caption.
        columns: what is claimed, names in a result's summary or of curves, whose end is meant.
        published: the paper's number, as text; "" = there is none.
        verdict: what comes of the comparison with it; "" = there is none.
        why: why there are no runs, or no results of them; "" = there are some.
        mark: of the table, where there are several.
    """

    table: str
    suite: str
    dataset: str
    name: str
    columns: tuple[str, ...]
    runs: tuple[ClaimedRun, ...]
    published: str = ""
    verdict: str = ""
    why: str = ""
    mark: str = ""

    @property
    def place(self) -> str:
        """The suite and the data set."""
        return f"{self.suite} on {self.dataset}"

    @property
    def key(self) -> str:
        """What a reviewer types to choose it."""
        return f"{f'{self.mark}/' if self.mark else ''}{self.suite}/{self.dataset}/{self.name}"

    @property
    def results(self) -> list[Result]:
        """The results that are there."""
        return [run.result for run in self.runs if run.result is not None]

    @property
    def seconds(self) -> float:
        """Wall time of all seeds, by the result files."""
        return sum(result.seconds.get("total", 0.0) for result in self.results)


@dataclass(frozen=True)
class ClaimedWork:
    """What an artifact is about, and its claims.

    Attributes:
        title: in one line.
        paper: the paper whose tables they are; None = a study.
        reproduces: what a person types to see the tables beside the paper's; "" = there are none.
    """

    title: str
    paper: Paper | None
    reproduces: str
    claims: tuple[TableClaim, ...]

    @property
    def suites(self) -> list[Path]:
        """Files of suites that the claims name by their paths."""
        found = (run.suite for claim in self.claims for run in claim.runs)
        return list(dict.fromkeys(path for path in found if path is not None))

    @property
    def files(self) -> dict[Path, Result]:
        """Every result file and its content, each once."""
        runs = (run for claim in self.claims for run in claim.runs)
        return {run.file: run.result for run in runs if run.file and run.result is not None}


def selected(asked: AskedArtifact, progress: SweepProgress) -> ClaimedWork:
    """The claims of what was asked for.

    Raises:
        UserError: there is no such paper or study, an option belongs to the other, or there is
            nothing to claim.
    """
    work = _of_paper(asked, progress) if is_paper(asked.study) else _of_study(asked, progress)
    if not work.claims:
        raise UserError(f"{work.title}: expected at least one claim, found none")
    return work


def is_paper(name: str) -> bool:
    """Whether a name or a TOML file is that of a paper; else it is a study.

    Raises:
        UnknownName: it is the name of neither.
    """
    if name.endswith(".toml"):
        with suppress(OSError, ValueError):  # who reads it as a study says what is wrong
            table = tomllib.loads(read_bounded(Path(name), LARGEST).decode("utf-8-sig"))
            return "methods" not in table
        return False
    known = {*entries("papers"), *entries("studies")}
    if name not in known:
        raise UnknownName("paper or study", name, known)
    return name in entries("papers")


def _of_paper(asked: AskedArtifact, progress: SweepProgress) -> ClaimedWork:
    paper, scale = load_paper(asked.study), asked.scale or "small"
    if scale not in SCALES:
        raise UnknownName("scale", scale, SCALES, listed="there are")
    tables = {name: paper.table(name) for name in asked.tables or paper.tables}
    known = {name for table in tables.values() for name in table.datasets}
    if asked.request.dataset not in (None, *known):
        raise UnknownName(
            f"data set of '{paper.name}'", str(asked.request.dataset), known, listed="there are"
        )
    refuse_unknown(asked.request.settings, tables.values())
    claims = list[TableClaim]()
    for mark, table in tables.items():
        columns = tuple(table.measured(table.judged).split(" - "))
        plans = planned(table, scale, asked.request, asked.seeds, progress)
        for plan, found in zip(plans, findings(table, plans), strict=True):
            one = plan.printed
            std = "" if one.std is None else f" ± {one.std:g}"
            runs = tuple(_run(cell, file_of_any_version(cell.spec)) for cell in plan.cells)
            claims.append(
                TableClaim(
                    table.caption, _named(one.suite), one.dataset, one.method, columns, runs,
                    f"{one.value:g}{std}", in_words(found.verdict, scale), found.why,
                    f"table-{mark}" if len(tables) > 1 else "",
                )
            )  # fmt: skip
    words = [f"--table {name}" for name in asked.tables]
    words += [f"--scale {scale}"]
    words += [f"--dataset {asked.request.dataset}"] if asked.request.dataset else []
    captions = "; ".join(table.caption for table in tables.values())
    on = f", {asked.request.dataset}" if asked.request.dataset else ""
    own = asked.study.endswith(".toml")  # its file is not in the artifact
    reproduces = "" if own else f"flbench reproduce {paper.name} {' '.join(words)} --no-run"
    return ClaimedWork(
        f"{paper.name}, {captions} (scale {scale}{on})", paper, reproduces, tuple(claims)
    )


def _of_study(asked: AskedArtifact, progress: SweepProgress) -> ClaimedWork:
    if asked.tables or asked.scale:
        raise UserError(f"--table and --scale are of papers, '{asked.study}' is a study: drop them")
    by_path = asked.study.endswith(".toml")
    path = Path(asked.study) if by_path else load_entry(find("studies", asked.study))
    if not isinstance(path, Path):
        raise BadParameter(
            f"study '{asked.study}': expected a grid of runs, got a measurement, which has no"
            " result files"
        )
    study = read_grid(path)
    claims = list[TableClaim]()
    for row in grid_rows(study, replace(asked.request, seeds=(0,)), progress):
        (first,) = row.cells
        point = f" ({shown(row.point)})" if row.point else ""
        runs = tuple(_of_seeds(first, asked.seeds))
        why = "" if any(run.result for run in runs) else "no result yet"
        suite = first.spec.suite
        claims.append(
            TableClaim(
                study.summary, suite.name, suite.dataset, f"{row.method}{point}",
                tuple(study.columns), runs, why=why,
            )
        )  # fmt: skip
    return ClaimedWork(f"{path.stem}: {study.summary}", None, "", tuple(claims))


def _of_seeds(first: Cell, seeds: int | None) -> Iterator[ClaimedRun]:
    """The runs of a row, of which the cell of seed 0 is given; without seeds, those there are."""
    folder = first.spec.path.parent
    there = sorted(int(file.stem.removeprefix("seed-")) for file in folder.glob("seed-*.json"))
    for seed in range(seeds) if seeds else there or [0]:
        request, spec = replace(first.request, seeds=(seed,)), replace(first.spec, seed=seed)
        yield _run(Cell(request, spec), spec.path if spec.path.is_file() else None)


def _run(cell: Cell, file: Path | None) -> ClaimedRun:
    """One run: computed as its result was, where there is one, into the artifact's own folder."""
    result = None if file is None else read_in_place(file)
    request = replace(cell.request, out=Path(RERUN), data_root=None, resume=True)
    if result is not None:
        request = replace(request, engine=engine_of(result))
    (suite,) = request.suites
    own = Path(suite) if suite.endswith(".toml") else None
    if own is not None:  # an artifact holds the files of suites that are paths
        request = replace(request, suites=(f"suites/{own.name}",))
    writes = Path(RERUN) / cell.spec.path.relative_to(cell.request.out)
    return ClaimedRun(cell.spec.seed, command(request), writes.as_posix(), file, result, own)


def _named(suite: str) -> str:
    """The name of a suite, which may be the path of its file."""
    return Path(suite).stem if suite.endswith(".toml") else suite
