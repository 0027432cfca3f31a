"""`flbench study`: run a grid of runs, or a measurement."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flbench.cli.options import (
    MOST_SEEDS,
    KeepCheckpoint,
    Metrics,
    Out,
    Root,
    SaveModels,
    SavePredictions,
    SettingsOption,
    Threads,
    Workers,
    names,
    read_settings,
    read_workers,
)
from flbench.engine.options import EngineOptions
from flbench.results.kept_files import KeepOptions
from flbench.sweeps.request import RunRequest


def study(
    name: Annotated[str, typer.Argument(help="a study (flbench list studies), or a TOML file")],
    seeds: Annotated[int, typer.Option(min=1, max=MOST_SEEDS, help="seeds 0..N-1")] = 1,
    settings: SettingsOption = None,
    dataset: Annotated[str | None, typer.Option(help="data set, instead of the study's")] = None,
    data_root: Root = None,
    out: Out = Path("flbench-results"),
    threads: Threads = 1,
    force: Annotated[bool, typer.Option("--force", help="compute complete cells again")] = False,
    metric: Metrics = None,
    save_models: SaveModels = False,
    save_predictions: SavePredictions = False,
    keep_checkpoint: KeepCheckpoint = False,
    workers: Workers = "auto",
) -> None:
    """Run a study: a grid of runs, or a measurement; cells that are complete are not run again."""
    from flbench.sweeps.workers import prepare_workers, run_in_workers
    from flbench.terminal.console import SweepProgress

    number = read_workers(workers)
    request = RunRequest(
        seeds=tuple(range(seeds)),
        settings=read_settings(settings),
        dataset=dataset,
        data_root=data_root,
        out=out,
        engine=EngineOptions(threads=threads),
        force=force,
        metrics=names(metric or []),
        keep=KeepOptions(save_models, save_predictions, keep_checkpoint),
    )

    progress = SweepProgress()
    prepare_workers(number)
    with progress.importing():
        from flbench.sweeps.study import run_study
        from flbench.terminal.tables import print_rows
    launch = partial(run_in_workers, progress=progress, workers=number)
    print_rows(name, run_study(name, request, progress, launch))
