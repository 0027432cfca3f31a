"""`flbench run`: run methods on suites and write one result file per method, suite and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flbench.cli.options import takes_request
from flbench.engine.processes.workers import rank_zero_output
from flbench.errors import (
    Diverged,
    FlbenchError,
    Interrupted,
    MachineError,
    MissingData,
    PluginError,
    ProcessDied,
    Undefined,
    machine_error,
)
from flbench.sweeps.launchers import COMPLETE, CellInterrupted, run_cells
from flbench.sweeps.request import Cell, RunRequest, command, resolve, superseded

if TYPE_CHECKING:
    from flbench.results.schema import Result
    from flbench.run.spec import RunSpec
    from flbench.terminal.console import Console


@takes_request
def run(request: RunRequest) -> None:
    """Run methods on suites and write one result file per method, suite and seed."""
    if request.changed_source and not request.resume:
        raise typer.BadParameter("--changed-source goes with --resume")
    from flbench.terminal.console import Console

    with rank_zero_output(request.engine.devices, request.engine.nodes):
        console = Console()
        cells = resolve(request, console)
        for line in superseded(cells):
            console.say(line)
        run_all(request, cells, console)


def run_all(request: RunRequest, cells: Sequence[Cell], console: Console) -> None:
    """Run the cells of a request; one that diverges, is undefined or lacks data stops no other."""
    from flbench.terminal.tables import print_table

    finished: list[tuple[Path, Result]] = []
    diverged: Exception | None = None
    undefined: Exception | None = None
    try:
        for cell, outcome in run_cells(cells):
            error = outcome.error
            if outcome.path is not None and outcome.result is not None:
                finished.append((outcome.path, outcome.result))
                if outcome.what == COMPLETE:
                    console.say(describe_complete(cell.spec, outcome.path, outcome.result))
            elif isinstance(error, Diverged):
                console.say(f"{outcome.title}: {error}")
                diverged = error
            elif isinstance(error, (Undefined, MissingData)):
                if len(cells) > 1:
                    console.say(f"{outcome.title}: skipped, {error}")
                undefined = error
            else:
                assert error is not None, "a cell of this process has a result or an error"
                raise said_how_to_go_on(error, outcome.path, request)
    except CellInterrupted as stopped:
        kept = how_to_go_on(stopped.checkpoint, request)
        raise Interrupted(f"interrupted{kept}") from None
    finally:
        console.close()
        if finished:
            print_table(finished)
    if diverged is not None:
        raise diverged
    if undefined is not None and not finished:
        raise undefined


def describe_complete(spec: RunSpec, path: Path, result: Result) -> str:
    """The line about a result that was there already: what it has not, and what to type."""
    from flbench.run.composition import plugins_of

    code = [plugin.source for plugin in result.plugins]
    brought = plugins_of(spec.suite) if result.suite_plugins else []
    here = [plugin.source for plugin in (*spec.method.described.plugins, *brought)]
    changed = code != here and all(code)
    said = "complete, but its method's code has changed since" if changed else "complete"
    if lacking := spec.lacking(result):
        said += f"{',' if changed else ''} without {', '.join(lacking)}"
    return f"{path} is {said}; --force computes it again"


def said_how_to_go_on(error: Exception, path: Path | None, request: RunRequest) -> Exception:
    """The error that ended a run; after those that may not come again, with what to type then.

    Args:
        path: of the result that is not there.
    """
    from flbench.results.files import checkpoint_path
    from flbench.run.checkpoint_file import generations

    found = error if isinstance(error, FlbenchError) else machine_error(error) or error
    if path is None or not isinstance(found, (MachineError, PluginError, ProcessDied)):
        return found
    checkpoint = checkpoint_path(path)
    if not isinstance(found, ProcessDied) and not generations(checkpoint):
        return found
    said = type(found)(f"{found}{how_to_go_on(checkpoint, request)}")
    said.__cause__ = error
    return said


def how_to_go_on(checkpoint: Path, request: RunRequest) -> str:
    """What is kept of a run that was stopped, and what to type to go on."""
    from flbench.run.checkpoint_file import generations

    if not generations(checkpoint):
        return " before the first round was complete; nothing is kept"
    again = command(replace(request, resume=True, force=False))
    return f"; the last whole round is kept, go on with: {again}"
