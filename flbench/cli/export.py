"""`flbench export`: result files as parquet, for pandas, polars, DuckDB or R."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flbench.cli.options import COMMITTED
from flbench.cli.plot import read_all_results
from flbench.errors import UserError
from flbench.terminal.lines import tell


def export(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULT|FOLDER", help="result files, or folders of them")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="folder of the three files")] = Path(
        "exported"
    ),
    audits: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"the log of audits [default: audits.jsonl beside {COMMITTED}, if it is there]",
        ),
    ] = None,
) -> None:
    """Write results as parquet: runs, rounds and clients, a file each (docs/export.md)."""
    from flbench.results.audits import LOG, read_audits
    from flbench.results.export import exported
    from flbench.results.files import write_atomically

    found = read_all_results(results)
    if audits is not None and not audits.is_file():
        raise UserError(f"--audits: expected a log of audits, there is no file '{audits}'")
    known = read_audits(audits or COMMITTED.parent / LOG)
    for name, data in exported((result for _, result in found), known).items():
        write_atomically(out / name, data)
        tell(f"wrote {out / name}")
    tell(f"{len(found)} results; what each column holds: docs/export.md")
