"""`flbench plot`: figures of result files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.errors import UnknownName, UserError
from flbench.terminal.lines import tell

if TYPE_CHECKING:
    from flbench.results.schema import Result

KINDS = {
    "curves": "no result holds a curve of accuracy, RMSE or mAP",
    "pareto": "no result holds an accuracy, RMSE or mAP, and its traffic",
    "clients": "no client was tested",
    "scores": "no result holds a score matrix of 4 entries",
    "membership": "nobody was ever grouped",
    "partition": "no result holds counts of labels",
}
"""Kind of figure -> why there is none."""

IMAGES = (".svg", ".png", ".pdf", ".jpg", ".jpeg", ".eps")
"""How names of figures end; any other name of `--out` is that of a folder."""


def plot(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT", help="files or folders")],
    kind: Annotated[str, typer.Option(help=f"{', '.join(KINDS)} or all")] = "all",
    out: Annotated[
        Path, typer.Option(metavar="DIR|FILE.svg", help="a folder, or the file of one kind")
    ] = Path("figures"),
    title: Annotated[str, typer.Option(help="on top [default: suite and data set]")] = "",
) -> None:
    """Draw results as SVG: curves, cost, clients, score matrices, groups, who held what."""
    if kind not in (*KINDS, "all"):
        raise UnknownName("kind", kind, [*KINDS, "all"], "known")
    file = out.suffix.lower() in IMAGES and not out.is_dir()
    if file and (out.suffix != ".svg" or kind == "all"):
        raise UserError(
            f"--out: expected a folder, or a file that ends in .svg with one --kind; got '{out}'"
        )
    found = read_all_results(results)
    refuse_mixed(found)
    rows = rows_of([result for _, result in found])
    first = rows[0][1][0]
    name = f"{first.suite['name']} on {first.dataset}"
    from flbench import figures
    from flbench.results.files import slug, write_atomically

    stem = slug(f"{first.suite['name']}-{first.dataset}")
    draw = {
        "curves": figures.curves,
        "pareto": figures.pareto,
        "clients": figures.clients,
        "scores": figures.scores,
        "membership": figures.memberships,
        "partition": figures.partition,
    }
    missing = []
    for one in KINDS if kind == "all" else [kind]:
        svg = draw[one](rows, title or name)
        if svg is None:
            missing.append(f"{one} ({KINDS[one]})")
            continue
        target = out if file else out / f"{stem}-{one}.svg"
        write_atomically(target, svg)
        tell(f"wrote {target}")
    if missing:
        line = f"not drawn: {', '.join(missing)}"
        if len(missing) == (len(KINDS) if kind == "all" else 1):
            raise UserError(line)
        tell(line)


def read_all_results(paths: Sequence[Path]) -> list[tuple[Path, Result]]:
    """Read result files and those below folders, each once, in the given order.

    Raises:
        UserError: there is none, one cannot be read, or two files are of one run.
    """
    from flbench.results.files import read_result, real_path, some_result_files

    found: dict[Path, tuple[Path, Result]] = {}
    for file in some_result_files(paths):
        if real_path(file) not in found:
            found[real_path(file)] = file, read_result(file)
    runs: dict[tuple[str, int], Path] = {}
    for file, result in found.values():
        other = runs.setdefault((result.fingerprint.config, result.seed), file)
        if other != file:
            raise UserError(f"{other} and {file} are of the same run: name one of them")
    return list(found.values())


def refuse_mixed(found: Sequence[tuple[Path, Result]]) -> None:
    """Refuse results of different suites or tasks; the message names the settings that differ."""
    path, first = found[0]
    for other, result in found:
        alike = result.headline == first.headline
        if result.fingerprint.suite != first.fingerprint.suite or not alike:
            mine, theirs = (
                {**one.suite, "dataset": one.dataset, "task": one.headline.name}
                for one in (first, result)
            )
            keys = sorted({*mine, *theirs})
            different = [key for key in keys if mine.get(key) != theirs.get(key)]
            raise UserError(
                f"results of different suites share no figure: {path} ({first.suite['name']} on"
                f" {first.dataset}) and {other} ({result.suite['name']} on {result.dataset})"
                f" differ in {', '.join(different) or 'their fingerprints'}; plot them one by one"
            )
        if result.fingerprint.data != first.fingerprint.data:
            raise UserError(
                f"results of different data share no figure: {path} and {other}; plot them one by"
                " one"
            )


def rows_of(results: Sequence[Result]) -> list[tuple[str, Sequence[Result]]]:
    """Results by row with the leaderboard's names, the best first; seeds in order."""
    from flbench.leaderboard.grouping import rows_of as by_table

    return [(row.name, row.results) for rows in by_table(results).values() for row in rows]
