"""SuiteResults: what `run_suites` returns, as a table, columns, figures and differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.errors import BadParameter, UnknownName, UserError
from flbench.results.schema import OWN_NAME, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flbench.leaderboard.grouping import ResultGroup

    Rows = Sequence[tuple[str, Sequence[Result]]]

PARAMETERS = re.compile(r"(.+) \((.+)\)")
"""A method with parameters, as a table names it."""


@dataclass(frozen=True)
class SvgFigure:
    """A figure; a notebook draws it.

    Attributes:
        svg: the text of an SVG file.
    """

    svg: str

    def _repr_svg_(self) -> str:
        """What a notebook draws."""
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the file.

        Raises:
            BadParameter: its name does not end in .svg.
            MachineError: it cannot be written.
        """
        from flbench.results.files import write_atomically

        target = Path(path)
        if target.suffix.lower() != ".svg":
            raise BadParameter(f"expected a file that ends in .svg, got '{path}'")
        write_atomically(target, self.svg.encode())
        return target


@dataclass(frozen=True)
class PairedDifference:
    """By how much one method is better than another on a suite, on the same clients and seeds.

    Attributes:
        one, other: the methods, as the table names them.
        suite: the suite.
        headline: what is compared, such as "accuracy".
        gain: mean over clients and common seeds of the headline of the first less the second, with
            the other sign where lower is better; above 0 the first is better.
        interval: its 95 % interval (`leaderboard/statistics.py`); with one seed it says nothing of
            other seeds. NaN for one client of one seed.
        p: two-sided p that it is 0, not corrected for further pairs; NaN for one seed.
        seeds: the common seeds.
    """

    one: str
    other: str
    suite: str
    headline: str
    gain: float
    interval: tuple[float, float]
    p: float
    seeds: tuple[int, ...]

    @property
    def separable(self) -> bool:
        """Whether seeds and clients tell the two apart at the 5 % level."""
        return self.p < 0.05

    def __str__(self) -> str:
        low, high = self.interval
        count = "1 seed: clients alone" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        said = "cannot be told apart"
        if self.separable or (len(self.seeds) == 1 and low * high > 0):
            said = "better" if self.gain > 0 else "worse"
        return (
            f"{self.one} beside {self.other} on {self.suite}: {self.headline} better by"
            f" {self.gain:+.4f}"
            f" [{low:+.4f}, {high:+.4f}], {said} ({count})"
        )


@dataclass(frozen=True)
class SuiteResults(Sequence[Result]):
    """The results of several methods, suites and seeds; a sequence of them.

    Attributes:
        results: in the order of methods, suites and seeds.
        missing: run -> why it has no result.
    """

    results: tuple[Result, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, at: Any) -> Any:  # noqa: ANN401 - a number or a slice
        if isinstance(at, str):
            raise UserError(
                f"results['{at}']: expected a number; of a method, type"
                f" [one for one in results if one.method.name == '{at}']"
            )
        return self.results[at]

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The table of each suite that the commands print, and what has no result."""
        from flbench.terminal.tables import table_text

        missing = [f"{title}: {why}" for title, why in self.missing.items()]
        return "\n".join([table_text(self.results), *missing])

    def columns(self) -> dict[str, list[Any]]:
        """A row for each result, as lists by name: the columns of `runs.parquet` (`export`)."""
        from flbench.results.export import COLUMNS, runs

        rows = [row for one in self.results for row in runs(one, {})]
        names = dict.fromkeys([one.name for one in COLUMNS["runs"]])
        names |= dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def frame(self) -> Any:  # noqa: ANN401 - a DataFrame of pandas, which is no requirement
        """The same as a DataFrame.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError(
                "frame: pandas is not installed: pip install pandas, or take columns(), which has"
                " the same as lists"
            ) from None
        return pandas.DataFrame(self.columns())

    def plot(self, kind: str = "accuracy", suite: str | None = None) -> SvgFigure:
        """Draw a figure of one suite, as `flbench plot` does.

        Args:
            kind: "accuracy" or "curves" (over rounds; of other tasks RMSE or mAP), "pareto",
                "clients", "scores", "membership" or "partition".
            suite: which; None = the only one.

        Raises:
            UnknownName: no such kind or suite.
            UserError: there is nothing to draw, or there are several suites and none is named.
        """
        from flbench import figures

        kinds: dict[str, Callable[[Rows, str], bytes | str | None]] = {
            "accuracy": figures.curves,
            "curves": figures.curves,
            "pareto": figures.pareto,
            "clients": figures.clients,
            "scores": figures.scores,
            "membership": figures.memberships,
            "partition": figures.partition,
        }
        if kind not in kinds:
            raise UnknownName("figure", kind, kinds, listed="there are")
        rows = self._rows(suite)
        first = rows[0].results[0]
        title = f"{first.suite['name']} on {first.dataset}"
        drawn = kinds[kind]([(row.name, row.results) for row in rows], title)
        if drawn is None:
            raise UserError(f"plot: the results of {title} hold nothing for a figure '{kind}'")
        return SvgFigure(drawn.decode() if isinstance(drawn, bytes) else drawn)

    def better(self, one: object, other: object, suite: str | None = None) -> PairedDifference:
        """Compare two methods on a suite by the pairs of their clients.

        Args:
            one: a method as the table names it; of one's own, the name of its class, or the object.
            other: another.
            suite: which; None = the only one.

        Raises:
            UnknownName: no such method or suite.
            UserError: several rows are meant, or the two have no seed in common.
        """
        from flbench.leaderboard.statistics import estimate
        from flbench.leaderboard.table import client_headlines, same_clients

        rows = self._rows(suite)
        first, second = (_row(rows, name) for name in (one, other))
        mine, theirs = client_headlines(first), client_headlines(second)
        seeds = tuple(sorted({*mine} & {*theirs}))
        if not seeds:
            raise UserError(f"'{first.name}' and '{second.name}' have no seed in common")
        task = first.task
        who = same_clients((first, second))
        ids = None if who is None else [who[seed] for seed in seeds]
        found = estimate([task.gain(mine[seed], theirs[seed]) for seed in seeds], ids)
        low, high = found.interval.tolist()
        name = str(first.results[0].suite["name"])
        pair = first.name, second.name
        return PairedDifference(
            *pair, name, task.headline, float(found.mean), (low, high), float(found.p), seeds
        )

    def _rows(self, suite: str | None) -> list[ResultGroup]:
        """The rows of a suite, the best first."""
        from flbench.leaderboard.grouping import grouped, named

        tables = {key[0]: rows for key, rows in grouped(self.results).items()}
        if suite is not None and suite not in tables:
            raise UnknownName("suite", suite, tables, listed="there are")
        if suite is None and len(tables) > 1:
            names = ", ".join(tables)
            raise UserError(f"expected one suite, there are {names}: give suite='{min(tables)}'")
        return named(tables[next(iter(tables)) if suite is None else suite])


def _row(rows: Sequence[ResultGroup], method: object) -> ResultGroup:
    """The row that a name, or an object or class of one's own, means."""
    name = method if isinstance(method, str) else _name_of(rows, method)
    exact = [row for row in rows if row.name == name]
    for found in (exact, [row for row in rows if _is_called(row, name)]):
        if len(found) == 1:
            return found[0]
        if found:
            raise UserError(f"'{name}' is several rows: {', '.join(row.name for row in found)}")
    raise UnknownName("method", name, [row.name for row in rows], listed="there are")


def _is_called(row: ResultGroup, name: str) -> bool:
    """Whether a name is the table's, the method's or that of a class; with parameters or without.

    The table leaves out parameters that all rows share.
    """
    plain = OWN_NAME.sub("", row.method)
    if name in (row.name, row.method, plain, row.name.replace(row.method, plain, 1)):
        return True
    given = PARAMETERS.fullmatch(name)
    if given is None or given[1] not in (row.method, plain):
        return False
    return {f"{key}={value}" for key, value in row.params.items()}.issuperset(given[2].split(", "))


def _name_of(rows: Sequence[ResultGroup], method: object) -> str:
    """What the table calls an object or class of one's own: by its parameters, if rows differ."""
    from flbench.plugin.own_objects import own_method

    entry, _ = own_method(method)
    alike = [row for row in rows if row.method == entry.name]
    if not isinstance(method, type):
        alike = [
            row
            for row in alike
            if all(getattr(method, key, None) == value for key, value in row.params.items())
        ]
    return alike[0].name if len(alike) == 1 else entry.name
