"""`flbench sync`: push result files to W&B."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flbench.errors import UserError
from flbench.terminal.lines import tell


def sync(
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RESULT|FOLDER",
            help="result files, or folders of them",
            show_default=False,
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="W&B project [default: $WANDB_PROJECT, else flbench]")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="write folders for wandb sync, send nothing")
    ] = False,
) -> None:
    """Push result files (default: flbench-results) to W&B; a second push changes nothing."""
    from flbench.results.files import read_result, result_files
    from flbench.sinks.wandb import identity, push, run_id

    failed, pushed = 0, dict[str, Path]()
    paths = result_files(results or [Path("flbench-results")])
    for path in paths:
        try:
            if path.is_dir():
                raise UserError(f"{path}: no result below it; expected files seed-<n>.json")
            result = read_result(path)
            other = pushed.get(run_id(*identity(result)))
            if other is not None:
                tell(f"{path}: the run of {other}, not sent again")
                continue
            tell(f"{path}: {push(result, path, project, offline)}")
            pushed[run_id(*identity(result))] = path
        except UserError as error:
            failed += 1
            tell(error, errors=True)
        except Exception as error:  # an error of W&B; continue with the others
            failed += 1
            text = " ".join(str(error).split())
            tell(f"{path}: not sent, {type(error).__name__}: {text}", errors=True)
    if failed:
        raise UserError(f"{failed} of {len(paths)} could not be synced; the lines above say why")
