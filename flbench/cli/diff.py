"""`flbench diff`: why two results are in different rows or different tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.errors import UserError
from flbench.results.difference import differences, unlike, verdict
from flbench.terminal.lines import tell

if TYPE_CHECKING:
    from flbench.metrics import Metric, Value


def diff(
    one: Annotated[Path, typer.Argument(help="a result file, or a row's folder")],
    other: Annotated[Path, typer.Argument(help="another")],
) -> None:
    """Show why two results are in different tables, rows or runs; and their numbers.

    Exit code 1 if they cannot be in one table.
    """
    from flbench.leaderboard.grouping import ResultGroup, asked_of
    from flbench.metrics import columns_of
    from flbench.results.files import read_result

    paths = _chosen(one, other)
    a, b = (read_result(path) for path in paths)
    for name, path, result in zip("AB", paths, (a, b), strict=True):
        run = f"{result.method.name} on {result.suite['name']} ({result.dataset})"
        tell(f"{name}: {run}, seed {result.seed}: {path}")
    found = differences(a, b)
    tell(verdict(found) + unlike(a, b, found))
    for one_ in found:
        tell(f"  {one_.field}: {one_.one} | {one_.other}")
    asked = columns_of("pages", asked_of([ResultGroup("", (a, b))]))
    columns = [one for of in (a, b) for one in columns_of("terminal", task=of.headline.name)]
    known = {one.name: one for one in columns}  # of two tasks, those of both
    for metric in [*known.values(), *(one for one in asked if one.family == "clients")]:
        values = [result.metrics().get(metric.name) for result in (a, b)]
        if not metric.optional or values != [None, None]:
            shown = " | ".join("-" if value is None else f"{value:.4f}" for value in values)
            tell(f"  {metric.name}: {shown}{_better(metric, values)}")
    if any(d.kind == "table" for d in found):
        raise typer.Exit(1)


def _better(metric: Metric, values: Sequence[Value]) -> str:
    """Which of two is the better one, where a person may not expect that a low number is."""
    one, other = values
    if metric.family != "accuracy" or metric.higher_is_better is not False:
        return ""
    if one is None or other is None or one == other:
        return ""
    return f" ({'A' if one < other else 'B'} is better: lower)"


def _chosen(one: Path, other: Path) -> tuple[Path, Path]:
    """Two files; in folders, those of the lowest common seed, else of the lowest seed.

    Raises:
        UserError: a folder has several rows.
    """
    from flbench.results.files import some_result_files

    def seeds(path: Path) -> dict[str, Path]:
        if not path.is_dir():
            return {}
        found = some_result_files([path])
        if len(rows := sorted({str(file.parent) for file in found})) > 1:
            raise UserError(
                f"{path}: expected the folder of one row, or a file; got {len(rows)} rows, such as"
                f" {rows[0]}: name one of them"
            )
        return {file.name: file for file in found}

    mine, theirs = seeds(one), seeds(other)
    common = {*mine} & {*theirs}
    first, second = (min(common or found, key=_in_order, default="") for found in (mine, theirs))
    return mine.get(first, one), theirs.get(second, other)


def _in_order(name: str) -> tuple[int, str]:
    """What sorts names of result files by their seeds: `seed-10.json` comes after `seed-2.json`."""
    return len(name), name
